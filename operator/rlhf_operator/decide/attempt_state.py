"""What the condition Running says between two attempts."""

from __future__ import annotations

from rlhf_api.reasons import Reason
from rlhf_operator.decide.case import Case


def say_not_running(case: Case, message: str) -> None:
    """After a failure: that the job restarts, and what that waits for. Otherwise only that nothing runs."""
    run = case.status.run
    if run is None or run.outcome not in ("Failed", "Preempted"):
        case.condition("Running", "False", Reason.NOT_RUNNING, message)
        return
    failures = case.status.failures
    ended = f"attempt {case.status.attempt} ended with {failures[-1].reason}; " if failures else ""
    again = case.status.replacing is not None or case.condition_reason("Running") == Reason.RECREATING
    case.condition("Running", "False", Reason.RECREATING if again else Reason.RESTARTING, f"{ended}the next waits: {message}")
