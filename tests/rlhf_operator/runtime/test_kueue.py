"""Which of a Workload's messages is told, and where it is looked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rlhf_operator.clients.kube import Kind, KubeError
from rlhf_operator.runtime.kueue import Workloads, words_of

QUOTA = "couldn't assign flavors to pod set workers: insufficient unused quota for nvidia.com/gpu in flavor h200, 8 more needed"
PREEMPTED = "Preempted to accommodate a workload (UID: 1b2c) due to prioritization in the ClusterQueue"


def workload(*conditions: tuple[str, str, str], checks: list[dict[str, str]] | None = None) -> dict[str, Any]:
    found = [{"type": kind, "status": status, "reason": "R", "message": message} for kind, status, message in conditions]
    return {
        "metadata": {"name": "w", "ownerReferences": [{"uid": "u"}]},
        "status": {"conditions": found, "admissionChecks": checks or []},
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ""),
        (workload(), ""),
        (workload(("QuotaReserved", "False", QUOTA)), QUOTA),
        (workload(("QuotaReserved", "True", "Quota reserved"), ("Evicted", "True", PREEMPTED)), PREEMPTED),
        (workload(("QuotaReserved", "False", QUOTA), ("Evicted", "True", PREEMPTED)), QUOTA),
        (workload(("QuotaReserved", "True", "Quota reserved"), ("Admitted", "True", "Admitted"), ("Evicted", "False", "Previously")), ""),
        (workload(("QuotaReserved", "False", QUOTA), ("Requeued", "True", PREEMPTED)), QUOTA),
        (workload(("QuotaReserved", "True", "Quota reserved"), ("Admitted", "False", "not yet")), "not yet"),
        (
            workload(
                ("QuotaReserved", "True", "Quota reserved"),
                checks=[
                    {"name": "ready", "state": "Ready", "message": "done"},
                    {"name": "capacity", "state": "Pending", "message": "nodes in 10 min"},
                    {"name": "approval", "state": "Pending"},
                ],
            ),
            "admission check capacity: nodes in 10 min; admission check approval: Pending",
        ),
    ],
)
def test_the_words_are_of_what_the_job_waits_for(given: dict[str, Any], words: str) -> None:
    assert words_of(given) == words


class Server:
    """One version of Workloads at a time."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.asked: list[str] = []

    async def read(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        return {"preferredVersion": {"groupVersion": f"kueue.x-k8s.io/{self.version}", "version": self.version}}

    async def list(self, kind: Kind, namespace: str | None, *, labels: str = "", fields: str = "") -> AsyncIterator[dict[str, Any]]:
        self.asked.append(f"{kind.path(namespace)} {labels}")
        if self.version not in kind.prefix:
            raise KubeError(404, "NotFound", "the server could not find the requested resource", request="list")
        for uid in ("other", "u"):
            yield {**workload(("QuotaReserved", "False", f"{QUOTA} for {uid}")), "metadata": {"ownerReferences": [{"uid": uid}]}}


def test_the_served_version_is_found_once_and_again_after_an_upgrade() -> None:
    server = Server("v1beta1")
    kube: Any = server
    workloads = Workloads(kube)

    async def main() -> None:
        assert await workloads.words("ns", "u") == f"{QUOTA} for u"
        assert await workloads.words("ns", "none") == ""
        server.version = "v1beta2"
        with pytest.raises(KubeError):
            await workloads.words("ns", "u")
        assert await workloads.words("ns", "u") == f"{QUOTA} for u"

    asyncio.run(main())
    path = "/apis/kueue.x-k8s.io/{}/namespaces/ns/workloads kueue.x-k8s.io/job-uid={}"
    assert server.asked == [
        "/apis/kueue.x-k8s.io",
        path.format("v1beta1", "u"),
        path.format("v1beta1", "none"),
        path.format("v1beta1", "u"),
        "/apis/kueue.x-k8s.io",
        path.format("v1beta2", "u"),
    ]
