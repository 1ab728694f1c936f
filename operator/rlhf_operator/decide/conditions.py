"""Conditions are the truth about a job: one entry a type, all of them from the first visit on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, get_args

from rlhf_api.reasons import Reason
from rlhf_api.status import MESSAGE_MAX, Condition, ConditionType
from rlhf_operator.decide.texts import cut_middle, stamp_seconds

State = Literal["True", "False", "Unknown"]
TYPES: tuple[ConditionType, ...] = get_args(ConditionType)


def unknown(now: datetime, generation: int) -> list[Condition]:
    """The conditions of a job that was just seen for the first time."""
    return [
        Condition(
            type=kind,
            status="Unknown",
            observed_generation=generation,
            last_transition_time=stamp_seconds(now),
            reason=Reason.ACCEPTED,
            message="the operator has taken the job up",
        )
        for kind in TYPES
    ]


def find(conditions: Sequence[Condition], kind: ConditionType) -> Condition | None:
    return next((condition for condition in conditions if condition.type == kind), None)


def is_true(conditions: Sequence[Condition], kind: ConditionType) -> bool:
    condition = find(conditions, kind)
    return condition is not None and condition.status == "True"


def with_condition(
    conditions: Sequence[Condition], kind: ConditionType, state: State, reason: Reason, message: str, now: datetime, generation: int
) -> list[Condition]:
    """``conditions`` with one replaced; its transition time moves only when its status does."""
    old = find(conditions, kind)
    since = old.last_transition_time if old is not None and old.status == state else stamp_seconds(now)
    new = Condition(
        type=kind,
        status=state,
        observed_generation=generation,
        last_transition_time=since,
        reason=reason,
        message=cut_middle(message, MESSAGE_MAX),
    )
    by_type = {condition.type: condition for condition in conditions} | {kind: new}
    return [by_type[each] for each in TYPES if each in by_type]
