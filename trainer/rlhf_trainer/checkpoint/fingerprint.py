"""Which fields of a job a checkpoint depends on, and where two jobs differ in them.

All of ``models``, ``data``, ``rl`` and ``training`` count: they decide what is learnt, and ``epochs`` and ``maxSteps``
are the horizon of the learning-rate schedule. Of ``placement`` only the ranks of the trained roles count, because
their states are sharded (the ZeRO stage is a training field). Where a job runs, what it logs, evaluates and keeps may change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_api.spec import RLHFJob

ABSENT = "absent"
MAX_VALUE_CHARS = 120


@dataclass(frozen=True, slots=True)
class Difference:
    field: str
    """Dotted path as in the manifest: ``spec.rl.rollout.temperature``."""
    saved: Any
    current: Any

    def __str__(self) -> str:
        return f"{self.field}: saved with {_show(self.saved)}, now {_show(self.current)}"


def fingerprint(job: RLHFJob, precision: str) -> dict[str, Any]:
    """Field path -> value (JSON) of a resolved job.

    ``precision`` is what ``training.precision: auto`` became on this machine (``bf16`` or ``fp32``).
    """
    spec = job.spec
    parts = {"models": spec.models, "data": spec.data, "rl": spec.rl, "training": spec.training}
    fields: dict[str, Any] = {f"spec.{name}": part.model_dump(mode="json", by_alias=True) for name, part in parts.items()}
    fields["spec.training"]["precision"] = precision
    fields["spec.placement.actor"] = _ranks(spec.placement.actor.total)
    if spec.models.critic is not None:
        fields["spec.placement.critic"] = _ranks((spec.placement.critic or spec.placement.actor).total)
    return fields


def differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[Difference]:
    """Where two fingerprints differ.

    A field that the saving release did not know yet and that is off now (null, false, 0, empty) is no difference.
    """
    return [difference for field in _union(saved, current) for difference in _compare(field, saved, current, field)]


def _compare(path: str, saved: Mapping[str, Any], current: Mapping[str, Any], key: str) -> Iterator[Difference]:
    if key not in saved:
        if current[key]:
            yield Difference(path, ABSENT, current[key])
        return
    if key not in current:
        if saved[key]:
            yield Difference(path, saved[key], ABSENT)
        return
    old, new = saved[key], current[key]
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for child in _union(old, new):
            yield from _compare(f"{path}.{child}", old, new, child)
    elif _is_object_list(old) and _is_object_list(new) and len(old) == len(new):
        for index, (first, second) in enumerate(zip(old, new, strict=True)):
            for child in _union(first, second):
                yield from _compare(f"{path}[{index}].{child}", first, second, child)
    elif old != new:
        yield Difference(path, old, new)


def _is_object_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(item, Mapping) for item in value)


def _union(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys([*first, *second]))


def _ranks(count: int) -> str:
    return f"{count} rank" if count == 1 else f"{count} ranks"


def _show(value: Any) -> str:
    if value is ABSENT or (isinstance(value, str) and value.endswith((" rank", " ranks"))):
        return str(value)
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE_CHARS else text[:MAX_VALUE_CHARS] + "…"
