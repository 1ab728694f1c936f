"""What of a status is written: the parts that changed, and less where the whole does not fit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from pydantic.alias_generators import to_camel

from rlhf_api.reasons import Reason
from rlhf_api.status import MESSAGE_MAX, RLHFJobStatus
from rlhf_operator.decide.conditions import with_condition
from rlhf_operator.decide.texts import cut_middle
from rlhf_operator.runtime.jobview import status_body

SMALL_MESSAGE = 256
KEPT_WHEN_SMALL = ("phase", "reason", "message", "algorithm", "conditions", "observedGeneration", "attempt", "run", "counters", "retryAt")
"""What the operator needs to go on, and what says how the job fares."""


def merge_patch(before: Any, after: Any) -> Any:
    """RFC 7386 patch that makes ``before`` into ``after``; an empty mapping where nothing differs."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return after
    patch: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        if name not in before:
            patch[name] = value
        elif isinstance(value, Mapping) and isinstance(before[name], Mapping):
            inner = merge_patch(before[name], value)
            if inner:
                patch[name] = inner
        elif before[name] != value:
            patch[name] = value
    return patch


def changes(stored: RLHFJobStatus, wanted: RLHFJobStatus) -> dict[str, Any]:
    """Fields that this version does not know are left alone: a newer one may have written them."""
    patch: dict[str, Any] = merge_patch(status_body(stored), status_body(wanted))
    return patch


def small(stored: RLHFJobStatus, wanted: RLHFJobStatus) -> dict[str, Any]:
    """The least that a job needs, every text cut, everything else removed: for an object that grew past what the server stores."""
    body = {name: _cut(value) for name, value in status_body(wanted).items() if name in KEPT_WHEN_SMALL}
    patch: dict[str, Any] = merge_patch(status_body(stored), body)
    return patch


DISPENSABLE = {name: to_camel(name) for name in ("progress", "checkpoint", "model", "evidence", "algorithm", "gpus", "ray_cluster")}
"""Fields that a job goes on without, where the server takes no new value."""


def without(stored: RLHFJobStatus, wanted: RLHFJobStatus, fields: Iterable[str]) -> RLHFJobStatus | None:
    """``wanted`` with the stored value of each part that the server refused; None where it is one that must be stored, or none is named.

    ``fields``: as the server names them, ``status.progress.step``.
    """
    parts = {field.removeprefix("status.").partition(".")[0].partition("[")[0] for field in fields}
    if not parts or not parts <= set(DISPENSABLE.values()):
        return None
    return wanted.model_copy(update={name: getattr(stored, name) for name, alias in DISPENSABLE.items() if alias in parts})


def refused(stored: RLHFJobStatus, wanted: RLHFJobStatus, words: str, now: datetime) -> RLHFJobStatus:
    """What is stored already, and that the server takes no more: what was decided must not be lost in silence."""
    message = cut_middle(f"the API server refuses the status of this job, and nothing goes on until it takes it: {words}", MESSAGE_MAX)
    conditions = stored.conditions
    if conditions:
        generation = wanted.observed_generation or 0
        conditions = with_condition(conditions, "Running", "Unknown", Reason.API_ERROR, message, now, generation)
    phase = stored.phase or wanted.phase
    return stored.model_copy(update={"phase": phase, "reason": Reason.API_ERROR.value, "message": message, "conditions": conditions})


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= SMALL_MESSAGE else value[: SMALL_MESSAGE - 1] + "…"
    if isinstance(value, Mapping):
        return {name: _cut(each) for name, each in value.items()}
    return [_cut(each) for each in value] if isinstance(value, list) else value
