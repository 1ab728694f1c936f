"""Pieces of pod templates that a spec holds as Kubernetes has them: mapping or list, where the operator adds to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlhf_api.rules.registry import Finding, rule
from rlhf_api.spec import JobSpec

Shape = Mapping[str, "Shape"] | Sequence["Shape"]
"""A mapping with the shapes below some of its keys, or a list with the shape of its items."""

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PODS: Shape = {_REQUIRED: [{}]}
_AFFINITY: Shape = {
    "nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [{"matchFields": [{}]}]}},
    "podAffinity": _PODS,
    "podAntiAffinity": _PODS,
}
_OVERLAY: Shape = {
    "metadata": {"labels": {}, "annotations": {}},
    "spec": {"affinity": _AFFINITY, "volumes": [{"projected": {"sources": [{}]}}]},
}


def _misshapen(value: Any, shape: Shape, at: str, *, removable: bool) -> Iterator[Finding]:
    """``removable``: null below a mapping removes a field, as it does in an overlay."""
    is_mapping = isinstance(shape, Mapping)
    if isinstance(value, dict) and isinstance(shape, Mapping):
        for key, below in shape.items():
            if key in value and not (removable and value[key] is None):
                yield from _misshapen(value[key], below, f"{at}.{key}", removable=removable)
    elif isinstance(value, list) and not isinstance(shape, Mapping):
        for index, item in enumerate(value):
            yield from _misshapen(item, shape[0], f"{at}[{index}]", removable=False)
    else:
        shown = value if value is not None else "null"
        shown = f"list of {len(value)}" if isinstance(value, list) else f"mapping of {len(value)}" if isinstance(value, dict) else shown
        name = at.rpartition(".")[2]
        yield Finding(at, shown, f"{name}: {{…}}, a mapping" if is_mapping else f"{name}: […], a list")


@rule(
    "pod-templates-have-their-shape",
    "affinity and podOverlay hold mappings and lists where a pod template of Kubernetes has them",
)
def pod_templates_have_their_shape(spec: JobSpec) -> Iterator[Finding]:
    cluster = spec.cluster
    yield from _misshapen(cluster.head.affinity, _AFFINITY, "cluster.head.affinity", removable=False)
    yield from _misshapen(cluster.workers.affinity, _AFFINITY, "cluster.workers.affinity", removable=False)
    overlay = {key: value for key, value in cluster.pod_overlay.items() if isinstance(value, dict)}
    yield from _misshapen(overlay, _OVERLAY, "cluster.podOverlay", removable=True)
