"""Whole jobs through the `rlhf run` command, on the tiny model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "tiny"
RUN_SECONDS = 900


@dataclass
class Run:
    """One call of the command that has ended."""

    code: int
    output: str
    folder: Path

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def series(self, key: str) -> list[float]:
        return [row[key] for row in self.metrics if row.get(key) is not None]


@dataclass
class Jobs:
    """Starts jobs in a folder of its own and ends what a failed test leaves."""

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    # Short, because Ray's socket paths below it are limited to 107 bytes; of its own, so that what is left is known to be this test's.
    scratch: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="rj")))

    def start_file(self, manifest: Path, *settings: str, flags: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        overrides = [word for setting in settings for word in ("--set", setting)]
        command = [sys.executable, "-m", "rlhf_api", "run", str(manifest), *overrides, *flags]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / root) for root in ("crds", "trainer", "operator"))}
        environment["TMPDIR"] = str(self.scratch)
        # The fast lane pins one thread for its own process; a job decides for itself.
        environment.pop("OMP_NUM_THREADS", None)
        process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.started.append(process)
        return process

    def start(self, example: str, *settings: str, flags: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        return self.start_file(EXAMPLES / example, *settings, flags=flags)

    def finish(self, process: subprocess.Popen[str], name: str) -> Run:
        output, _ = process.communicate(timeout=RUN_SECONDS)
        return Run(process.returncode, output, self.folder / "runs" / "default" / name)

    def run(self, example: str, *settings: str, flags: tuple[str, ...] = ()) -> Run:
        """Run one of examples/tiny to the end."""
        return self.finish(self.start(example, *settings, flags=flags), job_name(example))

    def run_file(self, manifest: Path, name: str, *settings: str) -> Run:
        return self.finish(self.start_file(manifest, *settings), name)

    def named(self, name: str) -> Run:
        """What a finished job of another name left in this folder."""
        return Run(0, "", self.folder / "runs" / "default" / name)

    def kill_driver(self, process: subprocess.Popen[str]) -> None:
        """SIGKILL to the driver, the command's child that runs the job (its other child is the guardian)."""
        for child in psutil.Process(process.pid).children():
            if "rlhf_trainer.run" in child.cmdline():
                child.kill()

    def kill_actor(self, process: subprocess.Popen[str], name: str) -> None:
        """SIGKILL to a Ray actor of the job, by its class name."""
        victims = [child for child in psutil.Process(process.pid).children(recursive=True) if f"ray::{name}" in " ".join(child.cmdline())]
        assert victims, f"no ray::{name}"
        for victim in victims:
            victim.kill()

    def leftovers(self, wait_seconds: float = 20.0) -> list[str]:
        """Processes and Ray folders of these runs that are still there, after giving them time to go."""
        deadline = time.monotonic() + wait_seconds
        while (found := traces(self.scratch)) and time.monotonic() < deadline:
            time.sleep(0.5)
        return found

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
        shutil.rmtree(self.scratch, ignore_errors=True)


def job_name(example: str) -> str:
    documents = yaml.safe_load_all((EXAMPLES / example).read_text())
    return str(next(each for each in documents if each["kind"] == "RLHFJob")["metadata"]["name"])


@pytest.fixture(scope="session")
def tiny_models() -> Path:
    """Models and data of examples/tiny, made once."""
    subprocess.run([sys.executable, str(EXAMPLES / "make_tiny.py")], check=True, timeout=300)
    return EXAMPLES


@pytest.fixture(scope="session")
def make_jobs(tmp_path_factory: pytest.TempPathFactory, tiny_models: Path) -> Iterator[Callable[[str], Jobs]]:
    """``make_jobs(name)``: a folder of its own, closed at the end of the session."""
    made: list[Jobs] = []

    def make(name: str) -> Jobs:
        made.append(Jobs(tmp_path_factory.mktemp(name)))
        return made[-1]

    yield make
    for runner in made:
        runner.close()


@pytest.fixture
def jobs(make_jobs: Callable[[str], Jobs]) -> Iterator[Jobs]:
    runner = make_jobs("jobs")
    yield runner
    runner.close()


@pytest.fixture
def leftovers(jobs: Jobs) -> Callable[..., list[str]]:
    return jobs.leftovers


def traces(scratch: Path) -> list[str]:
    found = [str(path) for path in scratch.glob("rlhf-*")]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            name = (process / "comm").read_text().strip()
        except OSError:
            continue
        if f"TMPDIR={scratch}".encode() in environment:
            found.append(f"process {process.name} {name}")
    return sorted(found)
