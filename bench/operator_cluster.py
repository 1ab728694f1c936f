"""A cluster for the operator's benchmark: its own account with the chart's rights, its requests counted, nothing of KubeRay running."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from e2e import tools
from e2e.cluster.cluster import PODS, Cluster
from e2e.cluster.control import KUBERAY
from e2e.kit.api import Api
from e2e.kit.helm import Helm
from e2e.kit.objects import claim, config_map
from rlhf_api import crd

RELEASE, SYSTEM = "rlhf-operator", "rlhf-system"
NAMESPACES = tuple(f"team-{number}" for number in range(5))
ACCOUNT_KINDS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
FLOW_SCHEMAS = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"
WRITES, READS = "bench-operator-writes", "bench-operator-reads"
"""Flow schemas, by which the API server counts the operator's requests."""


def account(admin: Api, cluster: Cluster, folder: Path) -> Path:
    """A kubeconfig with exactly the rights that the chart gives."""
    helm = Helm(tools.prepare(("helm",)).binary("helm"), folder / "helm")
    for body in helm.render({}, release=RELEASE, namespace=SYSTEM):
        if body["kind"] in ACCOUNT_KINDS and "helm.sh/hook" not in (body["metadata"].get("annotations") or {}):
            admin.create(body)
    return cluster.kubeconfig_for(RELEASE, SYSTEM)


def count_requests(cluster: Cluster) -> None:
    """Flow schemas of the operator's account alone: the API server then counts its requests apart from all others.

    Their priority level is the one that service accounts have anyway.
    """
    subject = {"kind": "ServiceAccount", "serviceAccount": {"name": RELEASE, "namespace": SYSTEM}}
    verbs = {WRITES: ["create", "update", "patch", "delete", "deletecollection"], READS: ["get", "list", "watch"]}
    for precedence, (name, which) in enumerate(verbs.items(), 500):
        rule = {"verbs": which, "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True}
        body = {
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
            "kind": "FlowSchema",
            "metadata": {"name": name},
            "spec": {
                "priorityLevelConfiguration": {"name": "workload-low"},
                "matchingPrecedence": precedence,
                "distinguisherMethod": {"type": "ByUser"},
                "rules": [{"subjects": [subject], "resourceRules": [rule]}],
            },
        }
        cluster.api.call("POST", FLOW_SCHEMAS, body)


def prepare(admin: Api) -> None:
    """What the jobs refer to: in each namespace a reward function and one shared claim for checkpoints."""
    for name in NAMESPACES:
        admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        admin.create(config_map("reward", {"reward.py": "def reward(sample): return 1.0"}), namespace=name)
        volume = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "hostPath": {"path": "/tmp"},
            "claimRef": {"namespace": name, "name": "checkpoints"},
        }
        admin.create({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"{name}-checkpoints"}, "spec": volume})
        admin.create(claim("checkpoints", storage_class="", modes=("ReadWriteMany",)), namespace=name)


@contextlib.contextmanager
def control_plane(folder: Path) -> Iterator[tuple[Cluster, Path]]:
    """A cluster without KubeRay and without the helper that marks pods, and the kubeconfig of the operator's account."""
    cluster = Cluster.up(f"bench-operator-{os.getpid()}", tied=True)
    try:
        for part in (KUBERAY, PODS):
            cluster.sandbox.stop_part(part)
        admin = Api(cluster.admin_kubeconfig)
        admin.create(crd.definition())
        admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
        found = account(admin, cluster, folder)
        count_requests(cluster)
        prepare(admin)
        yield cluster, found
    finally:
        cluster.down()
