"""Checks what only a GPU can show: IPC and NCCL weight sync, sleep and wake, the bf16 log-prob gap, three GRPO steps each.

    make gpu-check                      a few minutes; one GPU for all but NCCL, which needs two
    make gpu-check ARGS='--model DIR'   another model than the quick start's SmolLM2

Prints one line a check, PASS, FAIL or NOT RUN, in the form of docs/gpu-status.md. Exit code 1 when a check failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
QUICKSTART = REPOSITORY / "examples" / "quickstart"
# Measured on CPU between two bf16 implementations: 0.04 in the mean.
LARGEST_MEAN_GAP = 0.1
SMALLEST_SHARE_GIVEN_BACK = 0.9
SLEEP_CHECK = """
import json, sys, torch
from rlhf_trainer.rollout.engine import RolloutEngine
from rlhf_trainer.rollout.settings import EngineSettings

def used():
    free, total = torch.cuda.mem_get_info()
    return total - free

before = used()
engine = RolloutEngine(EngineSettings(model=sys.argv[1], max_length=256, dtype="bfloat16", device="gpu", sleep=True,
                                      gpu_memory_utilization=0.4, enforce_eager=True, weight_sync="ipc"))
engine.start()
ids = list(range(5, 25))
awake, first = used(), engine.logprobs_of(ids)
engine.sleep(level=1)
asleep = used()
engine.wake()
engine.reset_prefix_cache()
second = engine.logprobs_of(ids)
print(json.dumps({"before": before, "awake": awake, "asleep": asleep, "difference": float(abs(first - second).max())}))
"""


def train(model: Path, root: Path, name: str, *overrides: str) -> str:
    """Three GRPO steps; the log-prob gap says whether the engine really holds the trainer's weights."""
    settings = (
        f"metadata.name={name}", f"checkpoint.path={root}", f"models.actor.path={model}", "training.maxSteps=3",
        "placement.accelerator=gpu", "evaluation=null", *overrides,
    )
    command = [Path(sys.executable).with_name("rlhf"), "run", QUICKSTART / "rlhfjob.yaml"]
    for setting in settings:
        command += ["--set", setting]
    subprocess.run(command, check=True)
    lines = (root / "default" / name / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "rollout/logprob_gap_abs_mean" in row]
    gap = max(row["rollout/logprob_gap_abs_mean"] for row in rows)
    if len(rows) != 3 or gap > LARGEST_MEAN_GAP:
        raise AssertionError(f"{len(rows)} steps, mean log-prob gap {gap:.4f} (at most {LARGEST_MEAN_GAP})")
    seconds = [sum(value for key, value in row.items() if key.startswith("timing_s/")) for row in rows]
    return f"3 steps, {min(seconds):.2f} s the fastest, mean log-prob gap at most {gap:.4f}"


def sleep_and_wake(model: Path) -> str:
    done = subprocess.run([sys.executable, "-c", SLEEP_CHECK, str(model)], check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    share = (found["awake"] - found["asleep"]) / (found["awake"] - found["before"])
    if share < SMALLEST_SHARE_GIVEN_BACK or found["difference"] > 1e-3:
        raise AssertionError(f"{share:.0%} of the engine's memory given back, log-probs differ by {found['difference']:.1e} after waking")
    return f"{share:.0%} of {(found['awake'] - found['before']) / 2**30:.1f} GiB given back, same log-probs after waking"


def main() -> int:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="Hugging Face folder; default: the quick start's")
    arguments = parser.parse_args()
    gpus = torch.cuda.device_count()
    if gpus == 0:
        print("gpu-check: torch sees no GPU. On a GPU machine: RLHF_STACK=gpu make setup, then make gpu-check.", file=sys.stderr)
        return 2
    for script in () if arguments.model else ("get_model.py", "make_data.py"):
        subprocess.run([sys.executable, QUICKSTART / script], check=True)
    model = (arguments.model or QUICKSTART / "model").resolve()
    print(f"{gpus} x {torch.cuda.get_device_name(0)}, torch {torch.__version__}")
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        checks: dict[str, Callable[[], str] | None] = {
            "engine sleep and wake": lambda: sleep_and_wake(model),
            "colocate all: IPC sync, sleep, GRPO in bf16": lambda: train(
                model, root, "gpu-ipc", "placement.rollout.weightSync=ipc", "training.precision=bf16"
            ),
            "colocate none: NCCL sync, GRPO in bf16": (
                lambda: train(
                    model, root, "gpu-nccl", "placement.colocate=none", "placement.rollout.weightSync=nccl", "training.precision=bf16"
                )
            )
            if gpus > 1
            else None,
        }
        for name, check in checks.items():
            if check is None:
                print(f"| {name} | NOT RUN | needs two GPUs |")
                continue
            try:
                print(f"| {name} | PASS | {check()} |")
            except (AssertionError, subprocess.CalledProcessError) as error:
                failed = True
                print(f"| {name} | FAIL | {error} |")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
