"""The order of one step, where a stop is honoured, and what a resumed loop does. Collaborators only record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_trainer.algorithms.kl import AdaptiveKl, FixedKl
from rlhf_trainer.errors import StopRequested
from rlhf_trainer.loops.rl import RlParts, RlState, train


class Recorder:
    """Every collaborator at once; ``calls`` is the order of events."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.calls.append(f"[{name}]")
        yield

    def take(self, num_groups: int) -> list[Any]:
        return [None] * num_groups

    def sample(self, groups: Any, *, version: int) -> list[Any]:
        self.calls.append(f"sample v{version}")
        return [None] * len(groups)

    def score(self, rollouts: Any) -> list[Any]:
        return [None] * len(rollouts)

    def experience(self, rollouts: Any, rewards: Any, kl: Any) -> Any:
        return SimpleNamespace(rows=list(rollouts))

    def update(self, experience: Any, state: RlState) -> dict[str, float]:
        return {"updates": 2.0, "kl_k3_mean": 5.0}

    def push(self, version: int) -> dict[str, float]:
        self.calls.append(f"push v{version}")
        return {}

    def evaluate(self, state: RlState) -> dict[str, float]:
        self.calls.append(f"evaluate {state.step}")
        return {}

    def save(self, state: RlState) -> None:
        self.calls.append(f"save {state.step}")

    def report(self, state: RlState, metrics: Any) -> None:
        self.calls.append(f"report {state.step}")


def run(recorder: Recorder, state: RlState, stop: Callable[[], bool] = lambda: False, saves: int = 100, evaluates: bool = False) -> RlState:
    parts = RlParts(
        phase=recorder.phase,
        prompts=recorder,
        rollouts=recorder,
        rewards=recorder,
        learner=recorder,
        weights=recorder,
        outputs=recorder,
        prompts_per_step=2,
        evaluates_at=lambda step: evaluates,
        saves_at=lambda step: step % saves == 0,
        stop_requested=stop,
    )
    return train(parts, state, lambda *args: {})


def state(step: int = 0, total: int = 1, kl: Any = None) -> RlState:
    return RlState(step=step, total_steps=total, updates=2 * step, kl=kl or FixedKl(0.1))


def test_a_step_syncs_before_the_first_rollout_and_reports_before_it_saves() -> None:
    recorder = Recorder()
    end = run(recorder, state())
    assert end.done
    assert end.updates == 2
    assert recorder.calls == [
        "[sync]", "push v0",
        "[data]", "[rollout]", "sample v0", "[reward]", "[experience]", "[update]", "[sync]", "push v1",
        "report 1", "[checkpoint]", "save 1",
    ]  # fmt: skip


def test_a_resumed_loop_pushes_the_saved_weights_and_does_not_evaluate_step_zero_again() -> None:
    recorder = Recorder()
    run(recorder, state(step=3, total=4), evaluates=True)
    assert [call for call in recorder.calls if "push" in call or "evaluate " in call or "sample" in call] == [
        "push v3", "sample v3", "push v4", "evaluate 4",
    ]  # fmt: skip


def test_evaluation_before_training_is_reported_as_step_zero() -> None:
    recorder = Recorder()
    run(recorder, state(), evaluates=True)
    assert recorder.calls.index("evaluate 0") < recorder.calls.index("report 0") < recorder.calls.index("[data]")


def test_a_stop_request_ends_after_a_checkpoint_of_the_step_in_progress() -> None:
    recorder = Recorder()
    with pytest.raises(StopRequested, match="after step 1 of 9"):
        run(recorder, state(total=9), stop=lambda: "[update]" in recorder.calls)
    assert recorder.calls[-1] == "save 1"


def test_a_stop_request_before_the_first_step_does_no_step() -> None:
    recorder = Recorder()
    with pytest.raises(StopRequested, match="at step 0"):
        run(recorder, state(total=9), stop=lambda: True)
    assert "[rollout]" not in recorder.calls


def test_a_stop_request_during_the_load_does_not_even_evaluate() -> None:
    recorder = Recorder()
    with pytest.raises(StopRequested):
        run(recorder, state(total=9), stop=lambda: True, evaluates=True)
    assert recorder.calls == []


def test_a_stop_request_that_comes_after_the_save_waits_for_the_next_one() -> None:
    recorder = Recorder()
    with pytest.raises(StopRequested, match="after step 2"):
        run(recorder, state(total=9), stop=lambda: "save 1" in recorder.calls, saves=1)
    assert recorder.calls[-1] == "save 2"


def test_a_stop_request_in_the_last_step_changes_nothing() -> None:
    recorder = Recorder()
    assert run(recorder, state(), stop=lambda: "[update]" in recorder.calls).done


def test_the_kl_coefficient_moves_once_a_step_by_the_rollouts_that_entered_it() -> None:
    end = run(Recorder(), state(total=2, kl=AdaptiveKl(coef=0.1, target=1.0, horizon=20.0)))
    # k3 far above target: e = 0.2, N / horizon = 2 / 20
    assert end.kl.state_dict()["coef"] == pytest.approx(0.1 * 1.02**2)


def test_saves_fall_on_multiples_and_on_the_last_step() -> None:
    recorder = Recorder()
    run(recorder, state(total=5), saves=2)
    assert [call for call in recorder.calls if call.startswith("save")] == ["save 2", "save 4", "save 5"]
