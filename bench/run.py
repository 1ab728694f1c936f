"""Where a step's time goes, how far it is from the floor, and TRL on the same work. `make bench`; a quarter of an hour on two cores.

Everything is measured in this one run, one process group after the other, so that the ratios hold on a machine whose speed
drifts. First steps are warm-up and are left out; figures are medians of the others.

- step: `rlhf run bench/rlhfjob.yaml`, by phase, from its metrics.jsonl.
- floor: the same prompts through bare vLLM, and bare forward and backward over the same rows, packed the same way.
- TRL: GRPOTrainer with Hugging Face generate, when `trl` is installed (`.venv/bin/uv pip install --no-deps trl==1.16.0`).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import prompts

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
STEP_PHASES = ("data", "rollout", "reward", "experience", "update", "sync")


def median(values: Sequence[float]) -> float:
    """Without the first: it compiles, allocates and faults pages in."""
    return statistics.median(list(values)[1:] or values)


def run_job(overrides: Sequence[str], root: Path) -> list[dict[str, Any]]:
    command = [Path(sys.executable).with_name("rlhf"), "run", HERE / "rlhfjob.yaml", "--set", f"checkpoint.path={root}"]
    for override in overrides:
        command += ["--set", override]
    subprocess.run(command, check=True, env={**os.environ, "RAY_worker_niceness": "0"})
    lines = (root / "default" / "bench" / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "timing_s/update" in row]


def run_script(name: str, *arguments: Path) -> None:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(os.cpu_count()),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    print(f"\n{name} ...", flush=True)
    subprocess.run([sys.executable, HERE / name, *arguments], check=True, env=environment)


def settings_of(job: Any, base_dir: Path) -> dict[str, Any]:
    """The job's own numbers, so that nothing is written twice."""
    import torch

    from rlhf_trainer.models.precision import choose

    spec = job.spec
    device = "gpu" if torch.cuda.is_available() and spec.placement.accelerator != "cpu" else "cpu"
    return {
        "model": str((base_dir / spec.models.actor.path).resolve()),
        "prompts": prompts.prompts(),
        "prompts_per_step": spec.rl.rollout.prompts_per_step,
        "samples": spec.rl.rollout.samples_per_prompt,
        "max_new_tokens": spec.rl.rollout.max_new_tokens,
        "max_length": spec.data.max_length,
        "micro_batch_size": spec.training.micro_batch_size,
        "steps": spec.training.max_steps,
        "dtype": str(choose(spec.training.precision, "cuda" if device == "gpu" else "cpu")).removeprefix("torch."),
        "device": device,
        "threads": os.cpu_count(),
    }


def table(rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)])


def step_rows(metrics: Sequence[dict[str, Any]]) -> tuple[float, list[tuple[str, str]]]:
    phases = {phase: median([row.get(f"timing_s/{phase}", 0.0) for row in metrics]) for phase in STEP_PHASES}
    step = median([sum(row.get(f"timing_s/{phase}", 0.0) for phase in STEP_PHASES) for row in metrics])
    rows = [("**step**", f"**{step:.2f} s**")]
    rows += [(f"  {phase}", f"{seconds:.2f} s, {seconds / step:.0%}") for phase, seconds in phases.items()]
    return step, rows


def floor_rows(step: float, rollout: Any, train: dict[str, Any]) -> list[tuple[str, str]]:
    generate, learn = median(rollout["seconds"]), median(train["seconds"])
    return [
        ("**floor**: bare vLLM + bare forward/backward", f"**{generate + learn:.2f} s**"),
        ("  bare vLLM", f"{generate:.2f} s, {median(rollout['tokens']) / generate:.0f} tokens/s"),
        ("  bare forward/backward, same rows", f"{learn:.2f} s"),
        ("  (plain AdamW step, not in the floor)", f"{median(train['optimizer_seconds']):.2f} s"),
        ("**share of the floor** (floor / step)", f"**{(generate + learn) / step:.2f}**"),
    ]


def sync_rows(metrics: Sequence[dict[str, Any]], memcpy: float) -> list[tuple[str, str]]:
    speed = median([row["perf/sync_gb_per_second"] for row in metrics])
    return [("weight sync", f"{speed:.2f} GB/s; memcpy of the same tensors {memcpy:.2f} GB/s, ratio {speed / memcpy:.2f}")]


def memory_rows(metrics: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    prefix = "perf/peak_memory_gb/"
    peaks: dict[str, float] = {}
    for row in metrics:
        for key, value in row.items():
            if key.startswith(prefix):
                peaks[key.removeprefix(prefix)] = max(value, peaks.get(key.removeprefix(prefix), 0.0))
    return [(f"peak memory, {process}", f"{peak:.2f} GB") for process, peak in peaks.items()]


def trl_rows(step: float, length: float, result: dict[str, Any]) -> list[tuple[str, str]]:
    seconds = median(result["seconds"])
    return [
        ("**TRL GRPOTrainer step**, Hugging Face generate", f"**{seconds:.2f} s**, peak {result['peak_bytes'] / 1e9:.2f} GB"),
        ("  mean response length, ours and TRL's", f"{length:.1f}, {median(result['mean_length']):.1f} tokens"),
        ("**TRL / ours**", f"**{seconds / step:.2f}x**"),
    ]


def main() -> None:
    from rlhf_api import manifest

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="as in rlhf run")
    parser.add_argument("--no-trl", action="store_true")
    arguments = parser.parse_args()
    prompts.write(HERE / "prompts.jsonl")
    subprocess.run([sys.executable, REPOSITORY / "examples/quickstart/get_model.py"], check=True, stdout=subprocess.DEVNULL)
    loaded = manifest.load(HERE / "rlhfjob.yaml", arguments.set)
    settings = settings_of(loaded.job, HERE)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        given, sampled, trained, trl = (root / name for name in ("settings.json", "rollout.npz", "train.json", "trl.json"))
        given.write_text(json.dumps(settings))
        metrics = run_job(arguments.set, root / "runs")
        step, rows = step_rows(metrics)
        run_script("floor_rollout.py", given, sampled)
        run_script("floor_train.py", given, sampled, trained)
        train = json.loads(trained.read_text())
        with np.load(sampled) as rollout:
            rows += floor_rows(step, rollout, train)
        rows += sync_rows(metrics, train["memcpy_gb_per_second"]) + memory_rows(metrics)
        work = f"{settings['prompts_per_step']} prompts x {settings['samples']} samples x {settings['max_new_tokens']} tokens"
        print(f"\n{work}, {settings['dtype']}, {settings['threads']} threads, medians without the first of {settings['steps']} steps\n")
        print(table(rows), flush=True)
        if arguments.no_trl or importlib.util.find_spec("trl") is None:
            print("\nTRL was not measured: not installed, or --no-trl")
        else:
            run_script("trl_grpo.py", given, trl)
            length = median([row["rollout/response_length_mean"] for row in metrics])
            print(table(trl_rows(step, length, json.loads(trl.read_text()))))
    print(f"\n{(time.monotonic() - started) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
