"""``cluster.podOverlay``: a strategic merge, as ``kubectl patch`` does it, into a pod template.

Mappings are merged, null removes a field, and the lists below are matched by a key, keep their order and take new items at
the end. Every other list is replaced as a whole. Directives (``$patch``) are not supported.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_api.violations import Violation
from rlhf_operator.build.metadata import Object


@dataclass(frozen=True, slots=True)
class Keyed:
    """A list whose items are told apart by ``key``: Kubernetes' patchMergeKey, 1.36."""

    key: str
    items: Shape | None = None
    """Shape of items that are merged. None: they are replaced, since a variable has a value or a source, a volume one source."""


@dataclass(frozen=True, slots=True)
class Union:
    """A list of things that only ever permit more."""


Shape = Mapping[str, "Shape | Keyed | Union"]
"""Where lists of the kinds above are; everything else is a plain mapping, list or value."""

_CONTAINER: Shape = {
    "env": Keyed("name"),
    "ports": Keyed("containerPort"),
    "resources": {"claims": Keyed("name")},
    "volumeDevices": Keyed("devicePath"),
    "volumeMounts": Keyed("mountPath"),
}
TEMPLATE: Shape = {
    "spec": {
        "containers": Keyed("name", _CONTAINER),
        "hostAliases": Keyed("ip"),
        "imagePullSecrets": Keyed("name"),
        "initContainers": Keyed("name", _CONTAINER),
        "resourceClaims": Keyed("name"),
        "tolerations": Union(),
        "topologySpreadConstraints": Keyed("topologyKey"),
        "volumes": Keyed("name"),
    }
}

FIELD = "spec.cluster.podOverlay"


def merge(template: Object, overlay: Object) -> tuple[Object, tuple[Violation, ...]]:
    """``template`` with ``overlay`` merged in, and what in ``overlay`` has no meaning. Neither argument is changed."""
    faults: list[Violation] = []
    merged = _mapping(template, overlay, TEMPLATE, FIELD, faults)
    return merged, tuple(faults)


def _mapping(base: Object, overlay: Object, shape: Shape, at: str, faults: list[Violation]) -> Object:
    merged = copy.deepcopy(base)
    for name, value in overlay.items():
        place = f"{at}.{name}"
        if name.startswith("$"):
            faults.append(Violation(place, value, "directives of kubectl's patch format are not supported", "null, to remove a field"))
        elif value is None:
            merged.pop(name, None)
        else:
            merged[name] = _value(merged.get(name), value, shape.get(name, {}), place, faults)
    return merged


def _value(base: Any, overlay: Any, shape: Shape | Keyed | Union, at: str, faults: list[Violation]) -> Any:
    expected = "list" if isinstance(shape, Keyed | Union) else "mapping" if shape else _kind(overlay if base is None else base)
    if _kind(overlay) != expected:
        faults.append(Violation(at, overlay, f"a {expected} stands here", None))
        return base
    if isinstance(shape, Keyed):
        return _keyed(base or [], overlay, shape, at, faults)
    if isinstance(shape, Union):
        return _union(base or [], overlay)
    return _mapping(base or {}, overlay, shape, at, faults) if isinstance(overlay, dict) else copy.deepcopy(overlay)


def _keyed(base: Sequence[Object], overlay: Sequence[Any], shape: Keyed, at: str, faults: list[Violation]) -> list[Object]:
    key = shape.key
    merged = {item[key]: copy.deepcopy(item) for item in base}
    seen: set[Any] = set()
    for index, item in enumerate(overlay):
        place = f"{at}[{index}]"
        identity = item.get(key) if isinstance(item, dict) else None
        if not isinstance(item, dict) or type(identity) is not (int if key == "containerPort" else str):
            faults.append(Violation(place, item, f"an item here has a {key}, by which it is matched", f"{key}: …"))
        elif identity in seen:
            faults.append(Violation(f"{place}.{key}", identity, f"each {key} stands once in this list", None))
        else:
            seen.add(identity)
            former = merged.get(identity, {}) if shape.items is not None else {}
            merged[identity] = _mapping(former, item, shape.items or {}, place, faults)
    return list(merged.values())


def _union(base: Sequence[Any], overlay: Sequence[Any]) -> list[Any]:
    return [*copy.deepcopy(list(base)), *(copy.deepcopy(item) for item in overlay if item not in base)]


def _kind(value: Any) -> str:
    return "mapping" if isinstance(value, dict) else "list" if isinstance(value, list) else "single value"
