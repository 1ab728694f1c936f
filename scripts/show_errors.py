"""Provoke bad input through the `rlhf` command, for real, and write docs/errors.md as it prints.

    .venv/bin/python scripts/show_errors.py            # a few minutes: three of the cases start a training run

Each case changes one thing of a job that works. Paths of the scratch folder are shown as `/jobs`.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import string
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
RLHF = Path(sys.executable).with_name("rlhf")
SHOWN_FOLDER = "/jobs"
SMALL_DISK = "6m"

MANIFEST = """\
apiVersion: rlhf.dev/v1alpha1
kind: RLHFJob
metadata:
  name: example
spec:
  rl:
    algorithm: grpo
    kl: {coef: 0.0}
    rollout: {promptsPerStep: 8, samplesPerPrompt: 4, maxNewTokens: 8}
    reward:
      sources:
        - function: {file: reward.py, timeoutSeconds: 5}
  models:
    actor: {path: model}
  data:
    datasets: [{path: train.jsonl}]
    promptKey: prompt
    labelKey: answer
    maxLength: 32
  training:
    maxSteps: 1
    globalBatchSize: 32
    microBatchSize: 8
    learningRate: {actor: 1.0e-4}
    precision: fp32
  checkpoint: {path: out}
"""
REWARD = """\
def reward_func(queries, prompts, labels):
    return {"rewards": [float(len(query) % 3) for query in queries]}
"""


@dataclass(frozen=True)
class Case:
    title: str
    change: Callable[[Path], None]
    command: str = "validate"
    options: tuple[str, ...] = ()
    before: Callable[[Path], None] | None = None
    """Something that must have happened first, and is not shown."""
    prefix: Callable[[Path], list[str]] | None = None
    """Command that runs the command in another setting."""


def replace_in(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        text = path.read_text()
        assert old in text, f"{name} has no {old!r}"
        path.write_text(text.replace(old, new))

    return change


def both(*changes: Callable[[Path], None]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for each in changes:
            each(folder)

    return change


def nothing(folder: Path) -> None:
    pass


def empty_data(folder: Path) -> None:
    (folder / "train.jsonl").write_text("")


def torn_row(folder: Path) -> None:
    with (folder / "train.jsonl").open("a") as file:
        file.write('{"prompt": \n')


def remove_tokenizer(folder: Path) -> None:
    for path in (folder / "model").glob("*token*"):
        path.unlink()


def run_once(folder: Path) -> None:
    subprocess.run([RLHF, "run", "rlhfjob.yaml"], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def small_disk(folder: Path) -> list[str]:
    (folder / "out").mkdir()
    script = f'mount -t tmpfs -o size={SMALL_DISK} tmpfs out && exec "$@"'
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh"]


JOB = "rlhfjob.yaml"
CASES = (
    Case("Unreadable YAML", replace_in(JOB, "    kl: {coef: 0.0}", "    kl: {coef: 0.0")),
    Case("Unknown field", replace_in(JOB, "samplesPerPrompt: 4", "samplesPerPromt: 4")),
    Case("Wrong type", replace_in(JOB, "maxNewTokens: 8", "maxNewTokens: eight")),
    Case("`globalBatchSize` that does not divide", replace_in(JOB, "microBatchSize: 8", "microBatchSize: 7")),
    Case("Several faults at once", both(replace_in(JOB, ": grpo", ": gpro"), replace_in(JOB, "maxLength: 32", "maxLength: 8"))),
    Case("Missing data file", replace_in(JOB, "train.jsonl", "trian.jsonl")),
    Case("Missing column", replace_in(JOB, "promptKey: prompt", "promptKey: question")),
    Case("Empty data set", empty_data),
    Case("A broken row far down in the data, which only a run reads", torn_row, "run"),
    Case("Reward file with a syntax error", replace_in("reward.py", "return {", "return [")),
    Case("Reward function with another signature", replace_in("reward.py", "(queries, prompts, labels)", "(completions, tokenizer)")),
    Case("Reward function with the wrong count", replace_in("reward.py", "[float(len(query) % 3) for query in queries]", "[1.0]")),
    Case("Reward function that raises", replace_in("reward.py", "float(len(query) % 3)", "1 / 0")),
    Case("Endless loop in the reward function", replace_in("reward.py", "    return", "    while True:\n        pass\n    return")),
    Case("Model folder without tokenizer", remove_tokenizer),
    Case("Model folder that is not there", replace_in(JOB, "path: model", "path: ./modle")),
    Case("Port in use", nothing, "run", ("--progress-port", "{port}")),
    Case("Checkpoint of a job with other settings", replace_in(JOB, "actor: 1.0e-4", "actor: 2.0e-4"), "run", before=run_once),
    Case("Full disk", nothing, "run", prefix=small_disk),
)


def prepare(folder: Path, model: Path) -> None:
    folder.mkdir()
    shutil.copytree(model, folder / "model")
    (folder / JOB).write_text(MANIFEST)
    (folder / "reward.py").write_text(REWARD)
    draw = random.Random(0)
    rows = ["".join(draw.choices(string.ascii_lowercase, k=6)) for _ in range(32)]
    (folder / "train.jsonl").write_text("".join(f'{{"prompt": "{row}", "answer": "{row[0]}"}}\n' for row in rows))


@contextmanager
def busy_port() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield str(taken.getsockname()[1])


def show(case: Case, folder: Path) -> str:
    if case.before is not None:
        case.before(folder)
    case.change(folder)
    with busy_port() as port:
        options = [option.format(port=port) for option in case.options]
        prefix = case.prefix(folder) if case.prefix is not None else []
        done = subprocess.run(
            [*prefix, RLHF, case.command, JOB, *options],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL, check=False,
            env={**os.environ, "COLUMNS": "110", "NO_COLOR": "1"},
        )
        printed = re.sub(r"\d+ is free", "38814 is free", done.stdout.replace(port, "PORT")) if case.options else done.stdout
    printed = re.sub(rf"(/private)?{re.escape(str(folder.parent))}/[a-z0-9-]+", SHOWN_FOLDER, printed).replace(f"{REPOSITORY}/", "")
    command = " ".join(["rlhf", case.command, JOB, *case.options]).replace("{port}", "PORT")
    if done.returncode == 0:
        print(f"  {case.title}: exit code 0, an error was expected", file=sys.stderr)
    return f"## {case.title}\n\n```console\n$ {command}\n{printed.rstrip()}\n$ echo $?\n{done.returncode}\n```\n"


HEADER = """\
# Errors, as they print

Each case is a job that works with one thing spoilt. Written by `scripts/show_errors.py`, which runs them.

`rlhf validate` finds what is wrong with a manifest, its data and its reward code before any model is loaded; `rlhf run` refuses
the same with the same words. Exit codes of `rlhf run`: 2 bad configuration, 3 bad data or reward code, 75 infrastructure,
1 anything else; `rlhf validate` exits with 0 or 2.
"""


def main() -> int:
    from rlhf_trainer.models import tiny

    wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch).resolve()
        model = tiny.make(root / "model")
        parts = [HEADER]
        for number, case in enumerate(CASES):
            if wanted and not any(word.lower() in case.title.lower() for word in wanted):
                continue
            folder = root / f"case-{number}"
            prepare(folder, model)
            parts.append(show(case, folder))
            print(case.title, flush=True)
    text = "\n".join(parts)
    if wanted:
        print(text)
    else:
        (REPOSITORY / "docs" / "errors.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
