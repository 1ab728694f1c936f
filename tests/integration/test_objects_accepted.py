"""The built objects against a real API server and a real KubeRay: strict dry runs, and pods in a restricted namespace."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.kit.api import Api
from e2e.kit.waiting import eventually
from rlhf_api.resolve import derive, resolve
from rlhf_api.spec import RLHFJob
from rlhf_operator.build import Children, children
from rlhf_operator.settings import OperatorSettings

JOBS = Path(__file__).parents[1] / "rlhf_operator/build/jobs"
PLURALS = {
    "ConfigMap": "api/v1/namespaces/{}/configmaps",
    "NetworkPolicy": "apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "PersistentVolumeClaim": "api/v1/namespaces/{}/persistentvolumeclaims",
    "PodDisruptionBudget": "apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "Pod": "api/v1/namespaces/{}/pods",
    "RayCluster": "apis/ray.io/v1/namespaces/{}/rayclusters",
    "Secret": "api/v1/namespaces/{}/secrets",
}
SETTINGS = OperatorSettings(
    namespace="rlhf-system",
    pod_name="rlhf-operator-0",
    default_image="localhost/trainer:1",
    default_ray_version="2.60.0",
    token_key=b"0123456789abcdef0123456789abcdef",
    metrics_from={"kubernetes.io/metadata.name": "monitoring"},
    ray_auth_options=True,
    head_disruption_budget=True,
)


def built(which: str, namespace: str, cluster: Mapping[str, Any] | None = None, name: str = "example") -> Children:
    raw = yaml.safe_load((JOBS / f"{which}.yaml").read_text())
    raw["spec"].setdefault("cluster", {}).update(cluster or {})
    raw["metadata"] = {"name": name, "namespace": namespace, "uid": "6f1d3b52-0c5e-4b8e-9d3c-2a8f4f2f9a10"}
    return children(derive(RLHFJob.model_validate(resolve(raw), by_alias=True, by_name=False)), SETTINGS)


def dry_run(api: Api, found: Mapping[str, Any]) -> tuple[int, str]:
    path = PLURALS[found["kind"]].format(api.namespace)
    status, text = api.http("POST", f"/{path}?dryRun=All&fieldValidation=Strict", body=found)
    return status, text if status == 201 else str(json.loads(text).get("message", text))


def ray_cluster(found: Children) -> dict[str, Any]:
    assert isinstance(found.ray_cluster, dict), str(found.ray_cluster)
    return found.ray_cluster


def pod_of(template: Mapping[str, Any]) -> dict[str, Any]:
    """The pod as KubeRay makes it, but for what KubeRay adds."""
    found: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(dict(template))}
    found["metadata"]["generateName"] = "x-"
    return found


@pytest.mark.parametrize("which", ["tiny", "infiniband", "separate"])
@pytest.mark.parametrize("name", ["a", "a" * 40])
def test_rc14_rc31_every_object_passes_a_strict_dry_run(which: str, name: str, api: Api) -> None:
    for found in built(which, api.namespace, name=name).objects:
        status, text = dry_run(api, found)
        assert status == 201, f"{found['kind']}: {text}"


@pytest.mark.parametrize(
    ("overlay", "words"),
    [
        ({"hostnetwork": True}, 'unknown field "spec.headGroupSpec.template.spec.hostnetwork"'),
        ({"containers": [{"name": "ray", "lifecycel": {}}]}, 'unknown field "spec.headGroupSpec.template.spec.containers[0].lifecycel"'),
        ({"priority": "high"}, "spec.headGroupSpec.template.spec.priority"),
    ],
)
def test_rc31_misspelt_overlay_is_refused_with_its_path(overlay: dict[str, Any], words: str, api: Api) -> None:
    status, text = dry_run(api, ray_cluster(built("tiny", api.namespace, {"podOverlay": {"spec": overlay}})))
    assert status in (400, 422)
    assert words in text


@pytest.fixture
def restricted(api: Api) -> Api:
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.patch("Namespace", api.namespace, {"metadata": {"labels": level}})
    return api


@pytest.mark.parametrize("which", ["tiny", "separate"])
def test_restricted_namespace_takes_pods_without_adapters(which: str, restricted: Api) -> None:
    spec = ray_cluster(built(which, restricted.namespace))["spec"]
    for template in (spec["headGroupSpec"]["template"], *(group["template"] for group in spec["workerGroupSpecs"])):
        status, text = dry_run(restricted, pod_of(template))
        assert status == 201, text


def test_restricted_namespace_refuses_adapters_and_says_why(restricted: Api) -> None:
    network = {"infiniband": {"resource": {"rdma/hca_shared_devices_a": 1}}}
    spec = ray_cluster(built("tiny", restricted.namespace, {"network": network}))["spec"]
    assert dry_run(restricted, pod_of(spec["headGroupSpec"]["template"]))[0] == 201
    status, text = dry_run(restricted, pod_of(spec["workerGroupSpecs"][0]["template"]))
    assert status == 403
    assert 'must not include "IPC_LOCK" in securityContext.capabilities.add' in text


def test_kuberay_makes_the_pods_in_a_restricted_namespace(restricted: Api) -> None:
    """With what KubeRay adds: its init container, its variables, its head service with our ports."""
    found = ray_cluster(built("tiny", restricted.namespace))
    # No RLHFJob stands behind it, and the garbage collector would take it for an orphan.
    del found["metadata"]["ownerReferences"]
    restricted.create(found)

    def pods() -> list[dict[str, Any]] | None:
        there = restricted.list("Pod", labels="rlhf.dev/job=example")
        return there if len(there) == 2 else None

    there = eventually("head and worker pod", pods, seconds=30, every=0.2)
    for pod in there:
        ray = pod["spec"]["containers"][0]
        names = [entry["name"] for entry in ray["env"]]
        assert len(names) == len(set(names)), sorted(names)
        mounts = [mount["mountPath"] for mount in ray["volumeMounts"]]
        assert len(mounts) == len(set(mounts)), mounts
        assert ray["readinessProbe"]["httpGet"] == {"path": "/api/healthz", "port": 52365, "scheme": "HTTP"}
        assert "ray start" in ray["args"][0]
        init = pod["spec"].get("initContainers", [])
        assert all("RAY_AUTH_TOKEN" in [entry["name"] for entry in container["env"]] for container in init)
    head = next(pod for pod in there if pod["metadata"]["labels"]["ray.io/node-type"] == "head")
    assert "--num-cpus=0" in head["spec"]["containers"][0]["args"][0]
    service = eventually("head service", lambda: restricted.get("Service", "example-head-svc"), seconds=10, every=0.2)
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert ports == {
        "gcs-server": 6379,
        "dashboard": 8265,
        "client": 10001,
        "metrics": 8080,
        "rlhf-progress": 8290,
        "rlhf-metrics": 8291,
    }
    labels = head["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
