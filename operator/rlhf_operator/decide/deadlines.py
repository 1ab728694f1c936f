"""Waiting that is seen and bounded: what is waited for stands in a condition, and the job fails when it takes too long."""

from __future__ import annotations

from rlhf_api.reasons import Reason
from rlhf_operator.decide.attempt_state import say_not_running
from rlhf_operator.decide.case import Case
from rlhf_operator.decide.outcome import add_failure, fail
from rlhf_operator.decide.texts import duration, stamp
from rlhf_operator.decide.waiting import Trouble


def wait_for(case: Case, trouble: Trouble, *, bounded: bool = True, every: float | None = None) -> bool:
    """Say what keeps the pods from being ready; fails the job at the provisioning deadline if ``bounded``. Always True: decided.

    Looks again after ``every`` seconds, the settings' recheck_seconds by default: most of what is waited for sends no event.
    """
    if case.terms is None:
        return True
    if case.status.provisioning_since is None:
        case.set(provisioning_since=stamp(case.now))
    case.condition("ClusterReady", "False", trouble.reason, trouble.message)
    say_not_running(case, trouble.message)
    deadline = case.terms.lifecycle.provisioning_deadline_seconds
    if case.passed(case.status.provisioning_since, deadline) and bounded:
        add_failure(case, "Config", trouble.reason, trouble.message)
        fail(case, Reason.PROVISIONING_DEADLINE, f"not ready within {duration(deadline)} ({trouble.reason}): {trouble.message}")
        return True
    case.wake_in(every if every is not None else case.settings.recheck_seconds)
    return True
