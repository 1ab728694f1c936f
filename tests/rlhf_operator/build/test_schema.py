"""RayClusters against KubeRay's own schema, unknown fields refused: what a strict dry run on an API server does, without one."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from rlhf_api.spec import RLHFJob
from rlhf_operator.build import ray_cluster
from rlhf_operator.settings import OperatorSettings

MakeJob = Callable[..., RLHFJob]

CRD = "config/crd/bases/ray.io_rayclusters.yaml"
MODULES = Path(os.environ.get("GOMODCACHE", Path.home() / "go/pkg/mod")) / "github.com/ray-project/kuberay"
CACHE = Path(os.environ.get("RLHF_CACHE", Path.home() / ".cache/rlhf-kube"))


def strict(schema: Any) -> Any:
    """A structural schema as JSON schema, every mapping closed that does not say it is open."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(value) for name, value in schema.items() if name not in ("properties", "format", "default", "description")}
    if "properties" in schema:
        found["properties"] = {name: strict(value) for name, value in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            found["additionalProperties"] = False
    return found


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    files = [*sorted(MODULES.glob(f"ray-operator@*/{CRD}")), *sorted(CACHE.glob(f"tools/*/kuberay/{CRD}"))]
    if not files:
        pytest.skip(f"no KubeRay in {MODULES} or {CACHE}; `python -m e2e.tools` fetches it")
    definition = yaml.load(files[-1].read_text(), Loader=yaml.CSafeLoader)
    version = next(each for each in definition["spec"]["versions"] if each["name"] == "v1")
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    return Draft202012Validator(schema)


def faults(validator: Draft202012Validator, found: object) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(found)]


@pytest.mark.parametrize("which", ["tiny", "infiniband", "separate"])
def test_rc31_no_field_is_unknown_to_kuberay(
    which: str, validator: Draft202012Validator, make_job: MakeJob, settings: OperatorSettings
) -> None:
    newer = dataclasses.replace(settings, ray_auth_options=True)
    assert faults(validator, ray_cluster(make_job(which), newer, avoid_nodes=("node-a",))) == []


@pytest.mark.parametrize(
    ("overlay", "place"),
    [
        ({"hostnetwork": True}, "$.spec.headGroupSpec.template.spec"),
        ({"containers": [{"name": "ray", "lifecycel": {}}]}, "$.spec.headGroupSpec.template.spec.containers[0]"),
        ({"priority": "high"}, "$.spec.headGroupSpec.template.spec.priority"),
    ],
)
def test_rc31_misspelt_overlay_is_seen_before_any_pod(
    overlay: dict[str, Any], place: str, validator: Draft202012Validator, make_job: MakeJob, settings: OperatorSettings
) -> None:
    found = faults(validator, ray_cluster(make_job("tiny", {"cluster.podOverlay": {"spec": overlay}}), settings))
    assert any(fault.startswith(f"{place}: ") for fault in found)
