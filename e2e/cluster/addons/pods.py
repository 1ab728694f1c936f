"""Plays the kubelet where there is none: `python -m e2e.cluster.addons.pods --kubeconfig FILE`.

Marks every pod Running and Ready, or whatever else its annotations or its namespace's ConfigMap `e2e-pods` ask for; see `pod_status`
for how to ask. Deleted pods end at once. A pod's address is set once: a second one would be refused.
"""

from __future__ import annotations

import asyncio
import datetime
import time

from e2e.cluster.addons.pod_status import (
    READY,
    RULES_NAME,
    Behaviour,
    Object,
    Rule,
    addresses,
    ended,
    from_annotations,
    mark_of,
    next_status,
    parse_rules,
    started,
)
from e2e.cluster.addons.watching import CONNECTION_ERRORS, Api, ApiError, Copy, run_for_ever, settle
from e2e.cluster.init import NODE_NAME

PODS = "/api/v1/pods"
RULES = f"/api/v1/configmaps?fieldSelector=metadata.name%3D{RULES_NAME}"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
LOOK_AGAIN_SECONDS = 5.0


class Marker:
    """Holds what was done to each pod, by its uid."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.changed = asyncio.Event()
        self.pods = Copy(api, PODS, self.changed.set)
        self.rules = Copy(api, RULES, self.changed.set)
        self.done: dict[str, str] = {}
        self.addresses: dict[str, str] = {}
        self.first_asked: dict[tuple[str, str], float] = {}
        self.deleted: set[str] = set()
        self.bound: set[str] = set()
        self.counted: dict[tuple[str, Rule], list[str]] = {}
        self.complained: set[str] = set()
        self.announced = False

    async def run(self) -> None:
        """Runs for ever."""
        await asyncio.gather(self.pods.follow(), self.rules.follow(), self._mark_all())

    async def _mark_all(self) -> None:
        while True:
            next_look = LOOK_AGAIN_SECONDS
            if self.pods.complete and self.rules.complete:
                if not self.announced:
                    print("watching pods", flush=True)
                    self.announced = True
                for pod in list(self.pods.objects.values()):
                    next_look = min(next_look, await self._look_at(pod))
                self._forget()
            await settle(self.changed, next_look)

    async def _look_at(self, pod: Object) -> float:
        """Does what is due to one pod; returns in how many seconds something more will be."""
        name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        try:
            return await self._mark(pod)
        except ApiError as error:
            # Gone, or replaced by a pod of the same name, while we looked: its own event follows.
            if error.status not in (404, 409):
                self._complain(f"pod {name}: {error}")
        except ValueError as error:
            self._complain(f"pod {name}: {error}")
        except CONNECTION_ERRORS as error:
            print(f"pod {name}: {type(error).__name__}: {error}", flush=True)
            return 0.3
        return LOOK_AGAIN_SECONDS

    async def _mark(self, pod: Object) -> float:
        metadata = pod["metadata"]
        uid, path = metadata["uid"], f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        behaviour = self._behaviour(pod)
        if metadata.get("deletionTimestamp"):
            if not behaviour.hold_deletion and uid not in self.deleted:
                self.deleted.add(uid)
                await self.api.call("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
            return LOOK_AGAIN_SECONDS
        if behaviour.outcome != "unschedulable" and not pod["spec"].get("nodeName") and uid not in self.bound:
            self.bound.add(uid)
            # Without a node a pod never gets into the EndpointSlices of its Services.
            target = {"apiVersion": "v1", "kind": "Node", "name": behaviour.node or NODE_NAME}
            await self.api.call("POST", f"{path}/binding", {"metadata": {"name": metadata["name"], "uid": uid}, "target": target})
        asked = self.first_asked.setdefault((uid, behaviour.signature), time.monotonic())
        left = asked + behaviour.after_seconds - time.monotonic()
        if left > 0:
            if behaviour.ends and not started(pod):
                await self._set(pod, path, Behaviour(address=behaviour.address))
            return left
        await self._set(pod, path, behaviour)
        return LOOK_AGAIN_SECONDS

    def _behaviour(self, pod: Object) -> Behaviour:
        own = from_annotations(pod)
        if own is not None:
            return own
        namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
        config = self.rules.objects.get((namespace, RULES_NAME), {})
        for rule in parse_rules((config.get("data") or {}).get("rules", "")):
            if not rule.matches(pod):
                continue
            counted = self.counted.setdefault((namespace, rule), [])
            if uid not in counted and not ended(pod):
                counted.append(uid)
            if rule.count is None or uid in counted[: rule.count]:
                return rule.behaviour
        return READY

    async def _set(self, pod: Object, path: str, behaviour: Behaviour) -> None:
        uid = pod["metadata"]["uid"]
        if self.done.get(uid, mark_of(pod)) == behaviour.signature:
            return
        address = self._address(pod, behaviour)
        status = next_status(pod, behaviour, address, datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        self.done[uid] = behaviour.signature
        if status is None:
            return
        try:
            await self.api.call("PATCH", f"{path}/status", {"metadata": {"uid": uid}, "status": status}, STRATEGIC_PATCH)
        except CONNECTION_ERRORS:
            del self.done[uid]
            raise
        print(f"{behaviour.outcome}: {pod['metadata']['namespace']}/{pod['metadata']['name']} {status.get('podIP', '')}", flush=True)

    def _address(self, pod: Object, behaviour: Behaviour) -> str:
        uid, given = pod["metadata"]["uid"], pod.get("status", {}).get("podIP")
        if uid not in self.addresses:
            others = (other.get("status", {}).get("podIP", "") for other in self.pods.objects.values())
            self.addresses[uid] = given or behaviour.address or next(iter(addresses([*others, *self.addresses.values()])))
        return self.addresses[uid]

    def _forget(self) -> None:
        alive = {pod["metadata"]["uid"] for pod in self.pods.objects.values()}
        for uid in [uid for uid in self.done if uid not in alive]:
            del self.done[uid]
        for uid in [uid for uid in self.addresses if uid not in alive]:
            del self.addresses[uid]
        for key in [key for key in self.first_asked if key[0] not in alive]:
            del self.first_asked[key]
        self.deleted &= alive
        self.bound &= alive

    def _complain(self, text: str) -> None:
        """Once for each text: a wrong annotation stays wrong."""
        if text not in self.complained:
            self.complained.add(text)
            print(text, flush=True)


if __name__ == "__main__":
    run_for_ever(__doc__, lambda api: Marker(api).run())
