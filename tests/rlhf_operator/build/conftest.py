"""Jobs and settings that builders are tried with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_api.resolve import derive, resolve
from rlhf_api.spec import RLHFJob
from rlhf_operator.settings import OperatorSettings

UID = "6f1d3b52-0c5e-4b8e-9d3c-2a8f4f2f9a10"

JOBS = Path(__file__).parent / "jobs"

MakeJob = Callable[..., RLHFJob]


def _set(node: dict[str, Any], path: str, value: Any) -> None:
    first, _, rest = path.partition(".")
    if rest:
        _set(node.setdefault(first, {}), rest, value)
    else:
        node[first] = value


@pytest.fixture
def make_job() -> MakeJob:
    """``make_job("tiny", {"cluster.shmSize": "1Gi"}, name=…)``: a resolved job as the operator sees it."""

    def make(which: str = "tiny", changes: Mapping[str, Any] | None = None, name: str = "example") -> RLHFJob:
        raw = yaml.safe_load((JOBS / f"{which}.yaml").read_text())
        for path, value in (changes or {}).items():
            _set(raw["spec"], path, copy.deepcopy(value))
        raw["metadata"] = {"name": name, "namespace": "team", "uid": UID, "generation": 1, "annotations": {"note": "kept by kubectl"}}
        return derive(RLHFJob.model_validate(resolve(raw), by_alias=True, by_name=False))

    return make


@pytest.fixture
def settings() -> OperatorSettings:
    return OperatorSettings(
        namespace="rlhf-system",
        pod_name="rlhf-operator-0",
        default_image="ghcr.io/example/rlhf-trainer:0.1",
        default_ray_version="2.60.0",
        token_key=b"0123456789abcdef0123456789abcdef",
        metrics_from={"kubernetes.io/metadata.name": "monitoring"},
    )
