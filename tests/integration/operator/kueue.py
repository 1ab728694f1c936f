"""Kueue, played: its webhook, its Workload, and its flips of ``suspend``, with the words and the order of Kueue 0.14.

Everything goes through the real API server, and the real KubeRay follows ``suspend``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from kubernetes.client import ApiException

from e2e.kit.api import Api
from e2e.kit.waiting import eventually
from tests.integration.operator.standin import Head

GROUP = "kueue.x-k8s.io"
QUEUE_LABEL = f"{GROUP}/queue-name"
WEBHOOK = "kueue-webhook-played"
WORKLOADS = f"workloads.{GROUP}"
POLICIES = "/apis/admissionregistration.k8s.io/v1"


def workload_crd(version: str) -> dict[str, Any]:
    names = {"kind": "Workload", "listKind": "WorkloadList", "plural": "workloads", "singular": "workload"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    served = {"name": version, "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
    # The group of a Kubernetes project is protected: without this note the API server refuses the definition.
    approved = {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/kueue/pull/1"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": WORKLOADS, "annotations": approved},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [served]},
    }


def webhook() -> tuple[dict[str, Any], dict[str, Any]]:
    """What Kueue's webhook does to a labelled RayCluster: it is suspended from its first moment."""
    rule = {"apiGroups": ["ray.io"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["rayclusters"]}
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": WEBHOOK},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": [
                {"name": "queued", "expression": f"has(object.metadata.labels) && '{QUEUE_LABEL}' in object.metadata.labels"}
            ],
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "mutations": [
                {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{spec: Object.spec{suspend: true}}"}}
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": WEBHOOK},
        "spec": {"policyName": WEBHOOK},
    }
    return policy, binding


@contextmanager
def installed(admin: Api, api: Api, version: str) -> Iterator[None]:
    """Webhook and Workload of one version, gone afterwards. Returns when both work."""
    policy, binding = webhook()
    admin.create(workload_crd(version))
    try:
        for plural, body in (("mutatingadmissionpolicies", policy), ("mutatingadmissionpolicybindings", binding)):
            status, text = admin.http("POST", f"{POLICIES}/{plural}", body)
            assert status == 201, text
        group = {"rayStartParams": {}, "template": {"spec": {"containers": [{"name": "ray", "image": "i"}]}}}
        probe = {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": {"name": "probe", "labels": {QUEUE_LABEL: "probe"}},
            "spec": {"headGroupSpec": group},
        }
        eventually("the webhook to act", lambda: api.create(probe, dry_run="All")["spec"].get("suspend") is True, seconds=30)
        eventually("Workloads to be served", lambda: admin.http("GET", f"/apis/{GROUP}/{version}/workloads")[0] == 200, seconds=30)
        yield
    finally:
        for plural in ("mutatingadmissionpolicybindings", "mutatingadmissionpolicies"):
            admin.http("DELETE", f"{POLICIES}/{plural}/{WEBHOOK}")
        admin.delete("CustomResourceDefinition", WORKLOADS)
        eventually("the CRD to be gone", lambda: admin.get("CustomResourceDefinition", WORKLOADS) is None, seconds=30)


class Kueue:
    """Queues one job's RayCluster. Each verb writes what Kueue writes, in its order."""

    def __init__(self, api: Api, version: str, name: str = "tiny") -> None:
        self._api, self._version, self._name = api, version, name
        self._path = f"/apis/{GROUP}/{version}/namespaces/{api.namespace}/workloads"
        self._workload = ""
        self._conditions: dict[str, dict[str, str]] = {}

    def cluster(self) -> dict[str, Any]:
        found = self._api.get("RayCluster", self._name)
        assert found is not None, f"RayCluster {self._name} does not exist"
        return found

    def takes(self, message: str) -> None:
        """A Workload for the RayCluster that is there now; its quota is not reserved."""
        meta = self.cluster()["metadata"]
        owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": self._name, "uid": meta["uid"], "controller": True}
        self._workload = f"raycluster-{self._name}-{meta['uid'][:5]}"
        self._conditions = {}
        body = {
            "apiVersion": f"{GROUP}/{self._version}",
            "kind": "Workload",
            "metadata": {"name": self._workload, "labels": {f"{GROUP}/job-uid": meta["uid"]}, "ownerReferences": [owner]},
            "spec": {"queueName": meta["labels"][QUEUE_LABEL], "active": True},
        }
        status, text = self._api.http("POST", self._path, body)
        assert status == 201, text
        self.says(QuotaReserved=("False", "Pending", message))

    def says(self, **conditions: tuple[str, str, str]) -> None:
        """Sets conditions: status, reason, message. One that is known keeps its place in the list."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for kind, (state, reason, message) in conditions.items():
            self._conditions[kind] = {"type": kind, "status": state, "reason": reason, "message": message, "lastTransitionTime": now}
        patch = {"status": {"conditions": list(self._conditions.values())}}
        headers = {"Content-Type": "application/merge-patch+json"}
        status, text = self._api.http("PATCH", f"{self._path}/{self._workload}/status", patch, headers)
        assert status == 200, text

    def admits(self) -> None:
        self.says(
            QuotaReserved=("True", "QuotaReserved", "Quota reserved in ClusterQueue gpus, wait time since queued was 3s"),
            Admitted=("True", "Admitted", "Admitted by ClusterQueue gpus, wait time since reservation was 0s"),
        )
        if "Evicted" in self._conditions:
            self.says(Evicted=("False", "QuotaReserved", "Previously: Preempted to accommodate a workload"))
        self.unsuspends()

    def preempts(self, message: str) -> None:
        """First the Workload says so, then the RayCluster is suspended, and at last the quota is given back."""
        self.says(Evicted=("True", "Preempted", message), Preempted=("True", "InClusterQueue", message))
        self.suspends()
        self.says(
            QuotaReserved=("False", "Pending", message),
            Admitted=("False", "NoReservation", "The workload has no reservation"),
            Requeued=("True", "Preempted", message),
        )

    def suspends(self) -> None:
        self._api.patch("RayCluster", self._name, {"spec": {"suspend": True}})

    def unsuspends(self) -> None:
        self._api.patch("RayCluster", self._name, {"spec": {"suspend": False}})


@contextmanager
def following_pods(api: Api, head: Head, name: str = "tiny") -> Iterator[None]:
    """The stand-in lives and dies with the head pod: without one it answers nothing, and a new one knows no submission."""
    ended = threading.Event()
    head.down = True

    def follow() -> None:
        known = ""
        while not ended.wait(0.05):
            try:
                pods = api.list("Pod", labels=f"rlhf.dev/job={name},ray.io/node-type=head")
            except ApiException:
                continue
            uid = next((pod["metadata"]["uid"] for pod in pods if not pod["metadata"].get("deletionTimestamp")), "")
            if uid != known:
                head.lose_state()
            known, head.down = uid, not uid

    thread = threading.Thread(target=follow, name="head pod", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(10)
