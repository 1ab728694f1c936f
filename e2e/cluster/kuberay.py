"""KubeRay's definitions and rights, as its own release ships them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import yaml

from e2e.cluster.api import Api

NAMESPACE = "kuberay-system"
SERVICE_ACCOUNT = "kuberay-operator"
CRDS = ("rayclusters", "rayjobs", "rayservices", "raycronjobs")
_CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_RBAC_PATH = "/apis/rbac.authorization.k8s.io/v1"


def manifests(kuberay_dir: Path) -> Iterator[tuple[str, bytes]]:
    """Path in the API and content of every object, in an order that can be applied."""
    for name in CRDS:
        yield f"{_CRD_PATH}/{name}.ray.io", (kuberay_dir / "config" / "crd" / "bases" / f"ray.io_{name}.yaml").read_bytes()
    role = (kuberay_dir / "config" / "rbac" / "role.yaml").read_bytes()
    role_name = yaml.safe_load(role)["metadata"]["name"]
    yield f"{_RBAC_PATH}/clusterroles/{role_name}", role
    yield (
        f"/api/v1/namespaces/{NAMESPACE}",
        json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}).encode(),
    )
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": SERVICE_ACCOUNT, "namespace": NAMESPACE}}
    yield f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{SERVICE_ACCOUNT}", json.dumps(account).encode()
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": SERVICE_ACCOUNT},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role_name},
        "subjects": [{"kind": "ServiceAccount", "name": SERVICE_ACCOUNT, "namespace": NAMESPACE}],
    }
    yield f"{_RBAC_PATH}/clusterrolebindings/{SERVICE_ACCOUNT}", json.dumps(binding).encode()


def install(api: Api, kuberay_dir: Path) -> None:
    """Server-side apply: the definitions are too big for the annotation of a client-side one."""
    for path, manifest in manifests(kuberay_dir):
        api.apply(path, manifest)


def established(api: Api) -> bool:
    """Whether the API server serves all of KubeRay's kinds."""
    for name in CRDS:
        conditions = api.call("GET", f"{_CRD_PATH}/{name}.ray.io").get("status", {}).get("conditions", [])
        if not any(item["type"] == "Established" and item["status"] == "True" for item in conditions):
            return False
    return True
