"""A trainer that Ray calls running and whose ``/progress`` gives no report: what is said, and when it counts as stalled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlhf_operator.decide.actions import StopSubmission
from rlhf_operator.decide.observation import HeadView, ProgressFault
from tests.rlhf_operator.decide.builders import (
    NAME,
    actions,
    ago,
    condition,
    decided,
    head_view,
    later,
    observe,
    running_status,
    silent,
    submission,
)

STOP = StopSubmission(f"{NAME}-a1")


def unread(seconds: float, message: str = "401 unauthorized", **changes: Any) -> HeadView:
    """Since ``seconds``; the log was read, and has not grown. Nothing was ever reported."""
    fault = ProgressFault(message, later(-seconds), answered=True, log_end="a", log_read_at=later(-1))
    return head_view(submission(), progress=None, progress_at=None, progress_fault=replace(fault, **changes))


@pytest.mark.parametrize(
    ("seconds", "changes", "run", "shown"),
    [
        (4, {}, {}, False),
        (16, {}, {}, True),
        (16, {"answered": False}, {}, False),
        (61, {"answered": False}, {}, True),
        (61, {"answered": False}, {"last_step": None, "last_step_at": None}, False),
        (121, {"answered": False}, {"last_step": None, "last_step_at": None}, True),
    ],
)
def test_an_unreadable_report_is_told_once_it_is_no_passing_moment(
    seconds: float, changes: dict[str, Any], run: dict[str, Any], shown: bool
) -> None:
    decision = decided(observe(running_status(run=run), head=unread(seconds, **changes)))
    running = condition(decision, "Running")
    assert (running.status, running.reason) == ("True", "ProgressUnreadable" if shown else "Training")
    assert decision.status.phase == "Running"
    assert actions(decision) == []
    if shown:
        assert "1 runs, but /progress of the trainer can't be read: 401 unauthorized; its log has not grown since" in running.message
        assert [note.reason for note in decision.events] == ["ProgressUnreadable"]
        assert decision.events[0].type == "Warning"
        again = decided(observe(decision.status, head=unread(0, "<html>")))
        assert "can't be read: <html>" in condition(again, "Running").message
        assert again.events == (), "another process that has just begun to look tells nothing new"
        read = decided(observe(decision.status, head=head_view(submission())))
        assert condition(read, "Running").reason == "Training"
    else:
        assert decision.requeue_after_seconds is not None


def test_a_head_that_takes_the_token_is_not_to_be_deleted_for_its_trainers_401() -> None:
    assert "ray-token" not in condition(decided(observe(head=unread(16))), "Running").message


def test_a_running_head_that_does_not_take_the_token_names_the_secret() -> None:
    running = condition(decided(observe(head=replace(silent(100), error="403 Forbidden"))), "Running")
    assert running.reason == "HeadUnreachable"
    assert f"kubectl -n research delete secret/{NAME}-ray-token raycluster/{NAME}" in running.message
    assert "continues from the last checkpoint" in running.message


GROWS = {"log_grew_at": later(-100)}
STALLED: tuple[tuple[str, HeadView, bool], ...] = (
    ("never read, and nothing in the log either", unread(3601), True),
    ("never read, but its log grows", unread(9000, **GROWS), False),
    ("never read, and its log has stood still for long", unread(9000, log_grew_at=later(-3601)), True),
    ("never read, and this process looks only since a moment", unread(10), False),
    ("the log is about to be read", unread(3601, log_read_at=None), False),
    ("read before: the log must speak", replace(unread(10), progress=head_view().progress), True),
    ("read before, and the log speaks", replace(unread(10, **GROWS), progress=head_view().progress), False),
)


@pytest.mark.parametrize(("head", "stalled"), [case[1:] for case in STALLED], ids=[case[0] for case in STALLED])
def test_a_training_that_goes_on_is_not_stopped_for_a_port_that_is_shut(head: HeadView, stalled: bool) -> None:
    status = running_status(run={"running_since": ago(9000), "last_step_at": ago(7200)})
    decision = decided(observe(status, head=head))
    assert actions(decision) == ([STOP] if stalled else [])
    if not stalled:
        assert decision.requeue_after_seconds is not None
        assert decision.requeue_after_seconds <= 3600
        return
    assert "no step for 1h00m" in condition(decision, "Running").message
    ended = decided(observe(decision.status, head=replace(head, submission=submission("STOPPED"))))
    failure = ended.status.failures[-1]
    assert (failure.class_, failure.reason) == ("Infra", "Stalled")
    assert "/progress of the trainer can't be read: 401 unauthorized" in failure.message
