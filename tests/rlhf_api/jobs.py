"""A valid job as a mapping, and changes of single fields of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

# A GRPO job that every rule accepts; tests change single fields of it.
BASE: dict[str, Any] = {
    "apiVersion": "rlhf.dev/v1alpha1",
    "kind": "RLHFJob",
    "metadata": {"name": "example"},
    "spec": {
        "rl": {
            "algorithm": "grpo",
            "rollout": {"promptsPerStep": 16, "maxNewTokens": 64},
            "reward": {"sources": [{"function": {"file": "reward.py"}}]},
        },
        "models": {"actor": {"path": "model"}},
        "data": {"datasets": [{"path": "train.jsonl"}], "maxLength": 256},
        "training": {"globalBatchSize": 32, "microBatchSize": 4},
    },
}

ON_CLUSTER: Mapping[str, Any] = {"checkpoint": {"volume": {"create": {"size": "10Gi"}}}, "cluster": {"files": {"configMap": "files"}}}
"""What a job needs besides on a cluster."""


def changed(changes: Mapping[str, Any]) -> dict[str, Any]:
    """BASE with fields below ``spec`` (or ``metadata``) set; list items by number: ``{"rl.kl.coef": 0}``."""
    raw = copy.deepcopy(BASE)
    for path, value in changes.items():
        _set(raw, path if path.startswith("metadata") else f"spec.{path}", copy.deepcopy(value))
    return raw


def _set(node: Any, path: str, value: Any) -> None:
    first, _, rest = path.partition(".")
    if rest:
        below = node.setdefault(first, {}) if isinstance(node, dict) else node[int(first)]
        _set(below, rest, value)
    elif isinstance(node, dict):
        node[first] = value
    else:
        node[int(first)] = value
