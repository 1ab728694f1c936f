"""The whole quick start: model, data, training, and what changed. Arguments go to `rlhf run` (for example --fresh)."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import get_model
import make_data

HERE = Path(__file__).resolve().parent
JOB_DIR = Path("runs/default/quickstart")
NUM_SHOWN = 12


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def score(samples: list[dict[str, Any]]) -> str:
    """Mean and standard error of right answers."""
    mean = sum(sample["score"] for sample in samples) / len(samples)
    return f"{mean:.3f} ± {math.sqrt(mean * (1 - mean) / len(samples)):.3f}"


def answer(sample: dict[str, Any]) -> str:
    return repr(sample["response"].replace("<|im_end|>", "").strip()).strip("'")


def report(job_dir: Path) -> None:
    first, *_, last = sorted((job_dir / "eval").glob("step-*.jsonl"))
    before, after = read(first), read(last)
    print(f"\nThe same held-out questions before and after {int(last.stem.removeprefix('step-'))} steps, greedy:\n")
    print(f"  {'question':<14}{'right':>7}   {'before':<18}{'after':<18}")
    for old, new in list(zip(before, after, strict=True))[:NUM_SHOWN]:
        question = old["prompt"].rsplit("\n", 1)[-1]
        marks = ["+" if sample["score"] == 1 else " " for sample in (old, new)]
        print(f"  {question:<14}{old['label']:>7}   {marks[0]} {answer(old):<16}{marks[1]} {answer(new):<16}".rstrip())
    print(f"\nHeld-out answers right, of {len(after)}: {score(before)} before, {score(after)} after.")
    print(f"Reward curve: {job_dir / 'reward.png'}    the trained model: {job_dir / 'final'}")


def main() -> int:
    get_model.get()
    (HERE / "data").mkdir(exist_ok=True)
    make_data.write(HERE / "data", seed=0)
    started = time.monotonic()
    # Ctrl-C reaches the run as well, which stops after a checkpoint; this process waits for that.
    signal.signal(signal.SIGINT, lambda *_: None)
    code = subprocess.Popen([Path(sys.executable).with_name("rlhf"), "run", HERE / "rlhfjob.yaml", *sys.argv[1:]]).wait()
    if code == 0:
        report(JOB_DIR)
        print(f"{(time.monotonic() - started) / 60:.1f} minutes. Again from the start: make demo ARGS=--fresh")
    return code


if __name__ == "__main__":
    sys.exit(main())
