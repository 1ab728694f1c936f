"""The phase, derived from the conditions by one function, and the one condition whose words stand at the top."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_api.reasons import Reason
from rlhf_api.status import Condition, ConditionType, Phase
from rlhf_operator.decide.conditions import find, is_true

RESTARTING = frozenset({Reason.RESTARTING, Reason.RECREATING})

DECIDING: dict[Phase, ConditionType] = {
    "Pending": "Validated",
    "Queued": "ClusterReady",
    "Provisioning": "ClusterReady",
    "Starting": "Running",
    "Running": "Running",
    "Restarting": "Running",
    "Suspending": "Suspended",
    "Suspended": "Suspended",
    "Succeeded": "Complete",
    "Failed": "Failed",
}
"""The condition that matters in a phase: its reason and message are the status'."""


def phase_of(conditions: Sequence[Condition]) -> Phase:
    if is_true(conditions, "Failed"):
        return "Failed"
    if is_true(conditions, "Complete"):
        return "Succeeded"
    if is_true(conditions, "Suspended"):
        return "Suspended"
    if _reason(conditions, "Suspended") == Reason.SUSPEND_REQUESTED:
        return "Suspending"
    cluster, running = find(conditions, "ClusterReady"), find(conditions, "Running")
    if cluster is not None and cluster.status == "False" and cluster.reason == Reason.QUEUED:
        return "Queued"
    if running is not None and (running.status == "True" or running.reason == Reason.HEAD_UNREACHABLE):
        return "Running"
    if running is not None and running.reason in RESTARTING:
        return "Restarting"
    if running is not None and running.reason == Reason.SUBMITTED:
        return "Starting"
    if cluster is None or cluster.status == "Unknown":
        return "Pending"
    return "Starting" if cluster.status == "True" else "Provisioning"


def deciding_condition(conditions: Sequence[Condition]) -> Condition | None:
    phase = phase_of(conditions)
    condition = find(conditions, DECIDING[phase])
    # Before any pod was asked for, what holds the job up stands in ClusterReady.
    if phase == "Pending" and condition is not None and condition.status == "True":
        return find(conditions, "ClusterReady")
    return condition


def _reason(conditions: Sequence[Condition], kind: ConditionType) -> str:
    condition = find(conditions, kind)
    return condition.reason if condition is not None else ""
