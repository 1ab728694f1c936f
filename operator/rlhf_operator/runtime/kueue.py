"""Kueue's words on why a RayCluster waits, or why its place was taken back. Only read: Kueue's objects are its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_operator.clients.kube import Kind, KubeClient, KubeError
from rlhf_operator.runtime.views import conditions, items, mapping, owners, text

GROUP = "kueue.x-k8s.io"
OWNER_LABEL = f"{GROUP}/job-uid"
"""Kueue 0.14: on a Workload, the UID of the object that it queues."""


def words_of(workload: Mapping[str, Any]) -> str:
    """The message of the condition that keeps the workload from running; empty when none does.

    Kueue 0.14 suspends an evicted object while ``QuotaReserved`` is still true, and copies the eviction's words there a moment later.
    """
    status = mapping(workload.get("status"))
    known = conditions(status.get("conditions"))
    for kind, state in (("QuotaReserved", "False"), ("Evicted", "True")):
        found, _, message = known.get(kind, ("", "", ""))
        if found == state and message:
            return message
    waiting = [each for each in items(status.get("admissionChecks")) if each.get("state") != "Ready"]
    checks = [f"admission check {text(each.get('name'))}: {text(each.get('message')) or text(each.get('state'))}" for each in waiting]
    return "; ".join(checks) or (known["Admitted"][2] if known.get("Admitted", ("",))[0] == "False" else "")


class Workloads:
    """The Workloads of the version that this cluster's Kueue prefers: v1beta1 is leaving, v1beta2 has come."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube
        self._kind: Kind | None = None

    async def words(self, namespace: str, uid: str) -> str:
        """About the object of this UID; empty without a Workload of it. Raises KubeError."""
        if self._kind is None:
            found = mapping((await self._kube.read(f"/apis/{GROUP}")).get("preferredVersion"))
            self._kind = Kind(f"apis/{GROUP}/{text(found.get('version')) or 'v1beta1'}", "workloads")
        try:
            async for workload in self._kube.list(self._kind, namespace, labels=f"{OWNER_LABEL}={uid}"):
                if uid in owners(workload):
                    return words_of(workload)
        except KubeError as error:
            if error.not_found:
                self._kind = None
            raise
        return ""
