"""SIGKILL at any moment, the same command again: the end is the same, bit for bit, and nothing is left behind."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.slow

STEPS = 8
SETTINGS = (
    f"spec.training.maxSteps={STEPS}",
    "spec.checkpoint.everySteps=2",
    "spec.checkpoint.keepLast=2",
    "spec.logging.tensorboard=false",
)
EXACT = (
    "rollout/reward_mean", "rollout/response_length_mean", "actor/loss", "actor/grad_norm", "actor/entropy", "rollout/kl",
    "eval/heldout/score_mean",
)  # fmt: skip


def wait_for(condition: Callable[[], bool], seconds: float = 240.0, every: float = 0.05) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(every)
    return False


@pytest.fixture(scope="module")
def whole(make_jobs):
    """The run that nobody disturbed."""
    run = make_jobs("whole").run("grpo.yaml", *SETTINGS)
    assert run.code == 0, run.output
    return run


def same_end(whole, broken) -> None:
    """Weights bit for bit, and the same numbers at every step: one row a step, none twice."""
    assert [row["step"] for row in broken.metrics] == [row["step"] for row in whole.metrics]
    for key in EXACT:
        assert broken.series(key) == whole.series(key), key
    weights = "final/model.safetensors"
    assert (broken.folder / weights).read_bytes() == (whole.folder / weights).read_bytes()


def test_killed_at_random_moments_it_ends_as_if_nothing_had_happened(jobs, whole, leftovers) -> None:
    moments = random.Random(4)
    broken = None
    for _ in range(4):
        process = jobs.start("grpo.yaml", *SETTINGS)
        metrics = jobs.folder / "runs" / "default" / "tiny-grpo" / "driver.log"
        before = metrics.stat().st_size if metrics.exists() else 0
        wait_for(lambda: process.poll() is not None or (metrics.exists() and metrics.stat().st_size > before))  # noqa: B023
        if process.poll() is None:
            time.sleep(moments.uniform(0.0, 4.0))
            jobs.kill_driver(process)
        broken = jobs.finish(process, "tiny-grpo")
        assert leftovers() == []
        if broken.code == 0:
            break
        assert broken.code == 128 + signal.SIGKILL
    if broken.code != 0:
        broken = jobs.run("grpo.yaml", *SETTINGS)
    assert broken.code == 0, broken.output
    same_end(whole, broken)


def test_killed_inside_a_save_it_continues_from_the_checkpoint_before(jobs, whole) -> None:
    folder = jobs.folder / "runs" / "default" / "tiny-grpo"
    process = jobs.start("grpo.yaml", *SETTINGS)
    assert wait_for(lambda: any(folder.glob(".tmp-step-000004-*")), every=0.001)
    jobs.kill_driver(process)
    killed = jobs.finish(process, "tiny-grpo")
    assert killed.code == 128 + signal.SIGKILL
    assert (folder / "step-000002" / "manifest.json").is_file()
    assert not (folder / "step-000004").exists()
    again = jobs.run("grpo.yaml", *SETTINGS)
    assert again.code == 0, again.output
    assert "continuing after step 2" in again.output
    same_end(whole, again)


@pytest.mark.parametrize("actor", ["ModelWorker", pytest.param("RolloutEngine", marks=pytest.mark.nightly)])
def test_a_lost_process_is_an_infrastructure_failure_and_the_command_continues(jobs, whole, leftovers, actor: str) -> None:
    process = jobs.start("grpo.yaml", *SETTINGS)
    folder = jobs.folder / "runs" / "default" / "tiny-grpo"
    assert wait_for(lambda: (folder / "step-000002" / "manifest.json").exists())
    jobs.kill_actor(process, actor)
    lost = jobs.finish(process, "tiny-grpo")
    assert lost.code == 75, lost.output
    assert "lost" in lost.output
    assert leftovers() == []
    again = jobs.run("grpo.yaml", *SETTINGS)
    assert again.code == 0, again.output
    same_end(whole, again)


def test_the_command_itself_killed_leaves_nothing(jobs, leftovers) -> None:
    process = jobs.start("grpo.yaml", *SETTINGS)
    folder = jobs.folder / "runs" / "default" / "tiny-grpo"
    assert wait_for(lambda: (folder / "metrics.jsonl").exists())
    process.kill()
    process.wait(30)
    assert leftovers(40.0) == []


@pytest.mark.parametrize(
    "signum", [pytest.param(signal.SIGINT, id="ctrl-c"), pytest.param(signal.SIGHUP, id="closed terminal", marks=pytest.mark.nightly)]
)
def test_a_stop_signal_ends_after_a_checkpoint_and_the_command_continues_from_it(jobs, whole, leftovers, signum) -> None:
    process = jobs.start("grpo.yaml", *SETTINGS)
    folder = jobs.folder / "runs" / "default" / "tiny-grpo"
    assert wait_for(lambda: (folder / "metrics.jsonl").exists() and '"step": 1,' in (folder / "metrics.jsonl").read_text())
    process.send_signal(signum)
    stopped = jobs.finish(process, "tiny-grpo")
    assert stopped.code == 143, stopped.output
    assert leftovers() == []
    assert list(folder.glob("step-*/manifest.json"))
    again = jobs.run("grpo.yaml", *SETTINGS)
    assert again.code == 0, again.output
    same_end(whole, again)


def test_a_finished_job_is_not_trained_again(jobs, leftovers) -> None:
    short = ("spec.training.maxSteps=1", "spec.logging.tensorboard=false")
    assert jobs.run("grpo.yaml", *short).code == 0
    again = jobs.run("grpo.yaml", *short)
    assert again.code == 0
    assert "already done" in again.output
    assert leftovers() == []


@pytest.mark.nightly
def test_another_spec_under_the_same_name_is_refused_and_fresh_sets_the_old_one_aside(jobs, leftovers) -> None:
    short = ("spec.training.maxSteps=1", "spec.logging.tensorboard=false")
    assert jobs.run("grpo.yaml", *short).code == 0
    changed = (*short, "spec.rl.rollout.temperature=0.9")
    refused = jobs.run("grpo.yaml", *changed)
    assert refused.code == 2
    assert "spec.rl.rollout.temperature" in refused.output
    assert "--fresh" in refused.output
    assert jobs.run("grpo.yaml", *changed, flags=("--fresh",)).code == 0
    assert len(list((jobs.folder / "runs" / "default").glob("tiny-grpo.*/final"))) == 1
    assert leftovers() == []
