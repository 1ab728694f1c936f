from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_api.resolve import resolve
from rlhf_api.spec import RLHFJob

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

RawJob = Callable[..., dict[str, Any]]


def _set(node: Any, path: str, value: Any) -> None:
    first, _, rest = path.partition(".")
    if rest:
        below = node.setdefault(first, {}) if isinstance(node, dict) else node[int(first)]
        _set(below, rest, value)
    elif isinstance(node, dict):
        node[first] = value
    else:
        node[int(first)] = value


@pytest.fixture
def raw_job() -> RawJob:
    """``raw_job({"rl.kl.coef": 0})`` is BASE with fields below ``spec`` (or ``metadata``) set; list items by number."""

    def build(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        raw = copy.deepcopy(BASE)
        for path, value in (changes or {}).items():
            _set(raw, path if path.startswith("metadata") else f"spec.{path}", copy.deepcopy(value))
        return raw

    return build


@pytest.fixture
def valid_job(raw_job: RawJob) -> Callable[..., RLHFJob]:
    """The same as a model: preset merged, schema checked, rules not."""

    def build(changes: Mapping[str, Any] | None = None) -> RLHFJob:
        return RLHFJob.model_validate(resolve(raw_job(changes)), by_alias=True, by_name=False)

    return build


@pytest.fixture
def write_manifest(tmp_path: Path, raw_job: RawJob) -> Callable[..., Path]:
    """Writes ``raw_job(changes)`` as job.yaml and returns its path."""

    def write(changes: Mapping[str, Any] | None = None) -> Path:
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(raw_job(changes), sort_keys=False))
        return path

    return write
