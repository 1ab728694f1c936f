"""What `rlhf run` refuses before anything starts, and where a job's folder is."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_api.resolve import derive, resolve
from rlhf_api.spec import RLHFJob
from rlhf_trainer import run
from rlhf_trainer.driver import job_folder, set_aside
from rlhf_trainer.errors import ConfigError
from rlhf_trainer.stop import StopFlag, stop_on_signals


def job(path: str | None = None) -> RLHFJob:
    raw = {
        "apiVersion": "rlhf.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": "j", "namespace": "team"},
        "spec": {
            "rl": {"algorithm": "grpo", "reward": {"sources": [{"function": {"file": "r.py"}}]}},
            "models": {"actor": {"path": "a"}},
            "data": {"datasets": [{"path": "d.jsonl"}]},
            "checkpoint": {} if path is None else {"path": path},
        },
    }
    return derive(RLHFJob.model_validate(resolve(raw)))


def test_a_second_run_of_the_same_job_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "j"
    with run.only_run(folder), pytest.raises(ConfigError, match="running already"), run.only_run(folder):
        pass
    with run.only_run(folder):
        pass


def test_a_relative_checkpoint_path_refers_to_the_manifests_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    manifests = tmp_path / "manifests"
    assert job_folder(job("out"), manifests) == manifests / "out" / "team" / "j"
    assert job_folder(job("/volume"), manifests) == Path("/volume/team/j")
    assert job_folder(job(), manifests) == tmp_path / "runs" / "team" / "j"


def test_former_runs_are_set_aside_under_names_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "j"
    asides = []
    for content in ("first", "second"):
        folder.mkdir()
        (folder / "metrics.jsonl").write_text(content)
        asides.append(set_aside(folder))
    assert [(aside / "metrics.jsonl").read_text() for aside in asides if aside] == ["first", "second"]
    assert set_aside(folder) is None


@pytest.mark.parametrize(("check", "text"), [(run.port, "99999"), (run.port, "0"), (run.at_least_one, "0"), (run.at_least_one, "-1")])
def test_numbers_out_of_range_are_refused_by_the_command_line(check, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        check(text)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_and_the_second_interrupts(signum: signal.Signals) -> None:
    said: list[str] = []
    before = signal.getsignal(signum)
    with stop_on_signals(said.append) as stop:
        signal.raise_signal(signum)
        assert stop()
        assert signum.name in said[0]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signum)
    assert signal.getsignal(signum) is before


def test_a_signal_after_the_outcome_changes_nothing() -> None:
    stop = StopFlag(lambda text: None)
    stop.ended = True
    stop.handle(signal.SIGINT, None)
    assert not stop()


@pytest.mark.parametrize(("arguments", "flag"), [(["--help"], "--version"), (["run", "--help"], "--fresh")])
def test_help_says_what_run_does_and_loads_no_torch(arguments: list[str], flag: str) -> None:
    script = f"""
import sys
from rlhf_api import cli
try:
    cli.main({arguments!r})
except SystemExit:
    print([name for name in ("torch", "ray", "vllm", "transformers") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    printed = " ".join(done.stdout.split())
    assert "Run a job on this machine: train as on a cluster" in printed
    assert flag in printed
    assert printed.endswith(" []")
