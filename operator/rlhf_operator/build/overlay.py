"""``cluster.podOverlay``: a strategic merge, as ``kubectl patch`` does it, into a pod template.

Mappings are merged, null removes a field, and the lists below are matched by a key, keep their order and take new items at
the end. Every other list is replaced as a whole. Directives (``$patch``) are not supported.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from rlhf_api.violations import Violation
from rlhf_operator.build.metadata import Object

LIST_KEYS = {
    "claims": "name",
    "containers": "name",
    "env": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "resourceClaims": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""List field -> what tells its items apart; Kubernetes' patchMergeKey, 1.36."""

DEEP_LISTS = frozenset({"containers", "initContainers"})
"""Items that are merged. Those of other lists are replaced: a variable has a value or a source, a volume one source."""

UNIONS = frozenset({"tolerations"})
"""Items without a key that only ever permit more."""

FIELD = "spec.cluster.podOverlay"


def merge(template: Object, overlay: Object) -> tuple[Object, tuple[Violation, ...]]:
    """``template`` with ``overlay`` merged in, and what in ``overlay`` has no meaning. Neither argument is changed."""
    faults: list[Violation] = []
    merged = _mapping(template, overlay, FIELD, faults)
    return merged, tuple(faults)


def _mapping(base: Object, overlay: Object, at: str, faults: list[Violation]) -> Object:
    merged = copy.deepcopy(base)
    for name, value in overlay.items():
        place = f"{at}.{name}"
        if name.startswith("$"):
            faults.append(Violation(place, value, "directives of kubectl's patch format are not supported", "null, to remove a field"))
        elif value is None:
            merged.pop(name, None)
        else:
            merged[name] = _value(merged.get(name), value, name, place, faults)
    return merged


def _value(base: Any, overlay: Any, name: str, at: str, faults: list[Violation]) -> Any:
    if base is not None and _kind(base) != _kind(overlay):
        faults.append(Violation(at, overlay, f"a {_kind(base)} stands here", None))
        return base
    if isinstance(overlay, dict):
        return _mapping(base or {}, overlay, at, faults)
    if name in LIST_KEYS:
        if not isinstance(overlay, list):
            faults.append(Violation(at, overlay, "a list stands here", None))
            return base
        return _keyed(base or [], overlay, name, at, faults)
    if name in UNIONS and isinstance(overlay, list):
        return _union(base or [], overlay)
    return copy.deepcopy(overlay)


def _keyed(base: Sequence[Object], overlay: Sequence[Any], name: str, at: str, faults: list[Violation]) -> list[Object]:
    key = LIST_KEYS[name]
    merged = {item[key]: copy.deepcopy(item) for item in base}
    seen: set[Any] = set()
    for index, item in enumerate(overlay):
        place = f"{at}[{index}]"
        identity = item.get(key) if isinstance(item, dict) else None
        if not isinstance(item, dict) or not isinstance(identity, str | int):
            faults.append(Violation(place, item, f"each item of {name} has a {key}, by which it is matched", f"{key}: …"))
            continue
        if identity in seen:
            faults.append(Violation(f"{place}.{key}", identity, f"each {key} stands once in {name}", None))
            continue
        seen.add(identity)
        merged[identity] = _mapping(merged.get(identity, {}) if name in DEEP_LISTS else {}, item, place, faults)
    return list(merged.values())


def _union(base: Sequence[Any], overlay: Sequence[Any]) -> list[Any]:
    return [*copy.deepcopy(list(base)), *(copy.deepcopy(item) for item in overlay if item not in base)]


def _kind(value: Any) -> str:
    return "mapping" if isinstance(value, dict) else "list" if isinstance(value, list) else "single value"
