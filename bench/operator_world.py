"""What the operator meets in its benchmark beside the real API server: KubeRay's part, and the heads of all jobs.

KubeRay itself is off: it would need more of the machine than the operator that is measured. In its place each RayCluster gets the pods
that its groups ask for, made from its own templates, so that the watches carry what they would carry.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from typing import Any

from aiohttp import web

from e2e.cluster.addons.pod_status import READY, addresses, next_status
from e2e.cluster.addons.watching import Api, ApiError, Copy, Object, settle
from e2e.cluster.init import NODE_NAME
from tests.integration.operator.standin import Head, StandIn

RAYCLUSTERS = "/apis/ray.io/v1/rayclusters"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
AT_ONCE = 8
STEP_SECONDS = 5.0


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Heads(StandIn):
    """Drivers that make a step every five seconds and never end. A dead head takes connections and says nothing."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self.looks: dict[tuple[str, str], list[float]] = {}
        """Job -> when its ``/progress`` was read, by the monotonic clock."""
        self.dead: frozenset[tuple[str, str]] = frozenset()
        """Jobs whose heads do not answer."""

    def prepare(self, namespace: str, job: str) -> None:
        head = self.head(namespace, job)
        head.hold, head.step_seconds, head.total_steps = True, STEP_SECONDS, 10_000

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        namespace, service = request.match_info["namespace"], request.match_info["service"]
        # Whoever asked has long gone when it lives again.
        while (namespace, service.removesuffix("-head-svc")) in self.dead:
            await asyncio.sleep(1.0)
        return await super()._answer(request)

    def _progress(self, head: Head, request: web.Request) -> web.Response:
        key = (request.match_info["namespace"], request.match_info["service"].removesuffix("-head-svc"))
        self.looks.setdefault(key, []).append(time.monotonic())
        return super()._progress(head, request)


class Ray:
    """Makes and marks the pods of each RayCluster once, and says so in its status as KubeRay 1.6 does."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._changed = asyncio.Event()
        self._clusters = Copy(api, RAYCLUSTERS, self._changed.set)
        self._known: set[str] = set()
        self._addresses = iter(addresses([]))
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Runs for ever; raises what the API server refused."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._clusters.follow())
            while True:
                for cluster in list(self._clusters.objects.values()):
                    uid = cluster["metadata"]["uid"]
                    if uid not in self._known:
                        self._known.add(uid)
                        tasks.create_task(self._provide(cluster))
                await settle(self._changed, 1.0)

    async def _provide(self, cluster: Object) -> None:
        async with self._slots:
            spec = cluster["spec"]
            await self._pod(cluster, "headgroup", "head", 0, spec["headGroupSpec"]["template"])
            workers = 0
            for group in spec["workerGroupSpecs"]:
                for number in range(group["replicas"]):
                    await self._pod(cluster, group["groupName"], "worker", number, group["template"])
                    workers += 1
            await self._ready(cluster, workers)

    async def _pod(self, cluster: Object, group: str, role: str, number: int, template: Object) -> None:
        meta = cluster["metadata"]
        labels = {"ray.io/cluster": meta["name"], "ray.io/node-type": role, "ray.io/group": group, "ray.io/is-ray-node": "yes"}
        name = f"{meta['name']}-{group}-{number}"
        owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": meta["name"], "uid": meta["uid"], "controller": True}
        given = template.get("metadata") or {}
        body: Object = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**given, "name": name, "labels": {**(given.get("labels") or {}), **labels}, "ownerReferences": [owner]},
            "spec": {**template["spec"], "nodeName": NODE_NAME},
        }
        path = f"/api/v1/namespaces/{meta['namespace']}/pods"
        made = await self._api.call("POST", path, body)
        status = next_status(made, READY, next(self._addresses), now())
        await self._api.call("PATCH", f"{path}/{name}/status", {"status": status}, STRATEGIC_PATCH)

    async def _ready(self, cluster: Object, workers: int) -> None:
        meta = cluster["metadata"]

        def condition(kind: str, reason: str) -> Object:
            return {"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": now()}

        status: dict[str, Any] = {
            "state": "ready",
            "observedGeneration": meta["generation"],
            "desiredWorkerReplicas": workers,
            "readyWorkerReplicas": workers,
            "availableWorkerReplicas": workers,
            "head": {"serviceName": f"{meta['name']}-head-svc"},
            "conditions": [
                condition("HeadPodReady", "HeadPodRunningAndReady"),
                condition("RayClusterProvisioned", "AllPodRunningAndReadyFirstTime"),
            ],
        }
        path = f"/apis/ray.io/v1/namespaces/{meta['namespace']}/rayclusters/{meta['name']}/status"
        try:
            await self._api.patch(path, {"status": status})
        except ApiError as error:
            raise RuntimeError(f"RayCluster {meta['namespace']}/{meta['name']}: {error}") from error
