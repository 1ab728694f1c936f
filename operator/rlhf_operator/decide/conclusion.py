"""The last step of a decision: what follows from conditions, what changed, what is said, when to look again."""

from __future__ import annotations

from rlhf_api.reasons import FACTS, Reason
from rlhf_api.status import Condition, RLHFJobStatus
from rlhf_operator import names
from rlhf_operator.decide.actions import Decision, EventNote, MarkCluster, Watch
from rlhf_operator.decide.case import Case
from rlhf_operator.decide.conditions import find
from rlhf_operator.decide.phase import deciding_condition, phase_of
from rlhf_operator.decide.texts import EVENT_MAX, cut

QUIET = frozenset({Reason.ACCEPTED, Reason.VALID, Reason.NOT_RUNNING, Reason.NOT_SUSPENDED, Reason.RELEASED, Reason.DELETING})
"""Reasons that are no news."""


def conclude(case: Case, stored: RLHFJobStatus) -> Decision:
    if case.status.conditions and not case.seen.job.deleting:
        top = deciding_condition(case.status.conditions)
        case.set(phase=phase_of(case.status.conditions))
        if top is not None:
            case.set(reason=top.reason, message=top.message)
    return Decision(
        status=case.status,
        before_status=tuple(case.before),
        # A failed action keeps those after it from being taken, and none needs the labels.
        after_status=tuple(sorted(case.after, key=lambda action: isinstance(action, MarkCluster))),
        events=_events(case, stored),
        watch=_watch(case),
        requeue_after_seconds=max((min(case.wakes) - case.now).total_seconds(), 0.0) if case.wakes else None,
        urgent=_weight(case.status) != _weight(stored),
    )


def _events(case: Case, stored: RLHFJobStatus) -> tuple[EventNote, ...]:
    """One a transition: failures and notes, then every condition whose status or reason is another than the stored."""
    changed = [condition for condition in case.status.conditions if _is_news(condition, find(stored.conditions, condition.type))]
    told = {condition.reason for condition in changed if condition.type == "Failed"}
    notes = [note for note in case.events if note.reason not in told]
    for condition in changed:
        kind = "Warning" if FACTS[Reason(condition.reason)].warning else "Normal"
        notes.append(EventNote("Warning" if kind == "Warning" else "Normal", condition.reason, cut(condition.message, EVENT_MAX)))
    return tuple(dict.fromkeys(notes))


def _is_news(new: Condition, old: Condition | None) -> bool:
    if (old is not None and (old.status, old.reason) == (new.status, new.reason)) or new.reason in QUIET:
        return False
    return new.type not in ("Complete", "Failed") or new.status == "True"


def _watch(case: Case) -> Watch | None:
    """What the pollers follow: the head of a cluster that exists and is not about to go."""
    cluster, run = case.cluster, case.status.run
    if cluster is None or cluster.deleting or cluster.suspend or case.finished or case.seen.job.deleting:
        return None
    service = cluster.head_service or names.head_service(case.seen.job.name)
    return Watch(run.submission_id if run is not None else None, case.status.attempt or 0, service)


def _weight(status: RLHFJobStatus) -> RLHFJobStatus:
    """What must be stored at once: all but numbers that move all the time and the wording of messages."""
    conditions = [condition.model_copy(update={"message": ""}) for condition in status.conditions]
    run = status.run.model_copy(update={"last_step": None, "last_step_at": None}) if status.run is not None else None
    quiet = {"progress": None, "checkpoint": None, "message": None, "gpus": None}
    return status.model_copy(update={**quiet, "conditions": conditions, "run": run})
