"""Nodes and capacities that this machine does not have: `python -m e2e.cluster.addons.nodes --kubeconfig FILE`.

Told by two annotations on Node objects, so that whoever can write Nodes can use it:

`e2e.rlhf.dev/capacity`: JSON, for example {"nvidia.com/gpu": "8", "rdma/hca_shared_devices_a": "1"}. Written into the node's capacity and
allocatable, and again whenever the kubelet resets them. "0" takes a resource away.

`e2e.rlhf.dev/status-only`: the node has no kubelet, only a status kept from here. `ready`; `not-ready`: heartbeats that say it is not
ready; `silent`: no heartbeats, so that the control plane finds the node lost after its own grace.
"""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Mapping
from typing import Any

from e2e.cluster.addons.watching import CONNECTION_ERRORS, Api, ApiError, Copy, Object, run_for_ever, settle

CAPACITY = "e2e.rlhf.dev/capacity"
STATUS_ONLY = "e2e.rlhf.dev/status-only"
STATES = ("ready", "not-ready", "silent")
NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
HEARTBEAT_SECONDS = 5.0
# The kubelet's own nodeLeaseDurationSeconds.
LEASE_SECONDS = 40
# What a node without a kubelet has beside its annotated capacity.
BASE_CAPACITY = {"cpu": "32", "memory": "128Gi", "pods": "110", "ephemeral-storage": "500Gi"}


def status_only_node(name: str, capacity: Mapping[str, str], labels: Mapping[str, str] | None = None, state: str = "ready") -> Object:
    """A Node without a kubelet, to be created by a test. Raises ValueError for an unknown state."""
    if state not in STATES:
        raise ValueError(f"node {name}: state {state!r}; possible are {', '.join(STATES)}")
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", **(labels or {})},
            "annotations": {STATUS_ONLY: state, CAPACITY: json.dumps(dict(capacity))},
        },
    }


def capacity_patch(capacity: Mapping[str, str]) -> Object:
    """Merge patch of a Node that asks for these fake resources."""
    return {"metadata": {"annotations": {CAPACITY: json.dumps(dict(capacity))}}}


def state_patch(state: str) -> Object:
    """Merge patch of a status-only Node that flips it. Raises ValueError for an unknown state."""
    if state not in STATES:
        raise ValueError(f"node state {state!r}; possible are {', '.join(STATES)}")
    return {"metadata": {"annotations": {STATUS_ONLY: state}}}


def status_change(node: Object, now: datetime.datetime) -> Object | None:
    """Merge patch of the node's status that its annotations ask for; None when it is as asked. Raises ValueError for a bad annotation."""
    annotations = node["metadata"].get("annotations", {})
    state = annotations.get(STATUS_ONLY)
    if state == "silent":
        return None
    if state is not None and state not in STATES:
        raise ValueError(f"{STATUS_ONLY}: {state!r}; possible are {', '.join(STATES)}")
    status = node.get("status", {})
    wanted = (BASE_CAPACITY if state else {}) | _fake_capacity(annotations.get(CAPACITY, "{}"))
    change: Object = {}
    for field in ("capacity", "allocatable"):
        have = status.get(field, {})
        if missing := {name: amount for name, amount in wanted.items() if have.get(name) != amount}:
            change[field] = missing
    if state is not None:
        conditions = _conditions(state == "ready", now)
        if [(c["type"], c["status"]) for c in status.get("conditions", [])] != [(c["type"], c["status"]) for c in conditions]:
            change["conditions"] = conditions
    return {"status": change} if change else None


def _fake_capacity(text: str) -> dict[str, str]:
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f'{CAPACITY}: {text!r} is not JSON ({error}); for example {{"nvidia.com/gpu": "8"}}') from error
    if not isinstance(parsed, dict) or not all(isinstance(amount, str) for amount in parsed.values()):
        raise ValueError(f'{CAPACITY}: {text!r}: an object of strings is wanted; for example {{"nvidia.com/gpu": "8"}}')
    return parsed


def _conditions(ready: bool, now: datetime.datetime) -> list[dict[str, Any]]:
    moment = now.strftime("%Y-%m-%dT%H:%M:%SZ")

    def one(kind: str, value: bool, reason: str) -> dict[str, Any]:
        times = {"lastHeartbeatTime": moment, "lastTransitionTime": moment}
        return {"type": kind, "status": str(value), "reason": reason, "message": "kept by the test cluster", **times}

    return [
        one("MemoryPressure", False, "KubeletHasSufficientMemory"),
        one("DiskPressure", False, "KubeletHasNoDiskPressure"),
        one("PIDPressure", False, "KubeletHasSufficientPID"),
        one("Ready", ready, "KubeletReady" if ready else "KubeletNotReady"),
    ]


def beats(node: Object) -> bool:
    """Whether this node's heartbeats come from here."""
    return node["metadata"].get("annotations", {}).get(STATUS_ONLY) in ("ready", "not-ready")


def lease(node: Object, now: datetime.datetime) -> Object:
    """The heartbeat of a node, owned by it."""
    metadata = node["metadata"]
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": metadata["name"],
            "namespace": "kube-node-lease",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": metadata["name"], "uid": metadata["uid"]}],
        },
        "spec": {
            "holderIdentity": metadata["name"],
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


class Keeper:
    """Keeps every annotated Node as its annotations ask."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.changed = asyncio.Event()
        self.nodes = Copy(api, NODES, self.changed.set)

    async def run(self) -> None:
        """Runs for ever."""
        await asyncio.gather(self.nodes.follow(), self._statuses(), self._heartbeats())

    async def _statuses(self) -> None:
        while True:
            for node in list(self.nodes.objects.values()):
                name = node["metadata"]["name"]
                try:
                    if change := status_change(node, datetime.datetime.now(datetime.UTC)):
                        await self.api.patch(f"{NODES}/{name}/status", change)
                except (ValueError, ApiError, *CONNECTION_ERRORS) as error:
                    print(f"node {name}: {type(error).__name__}: {error}", flush=True)
            await settle(self.changed, HEARTBEAT_SECONDS)

    async def _heartbeats(self) -> None:
        while True:
            for node in [node for node in self.nodes.objects.values() if beats(node)]:
                name, body = node["metadata"]["name"], lease(node, datetime.datetime.now(datetime.UTC))
                try:
                    try:
                        await self.api.patch(f"{LEASES}/{name}", body)
                    except ApiError as error:
                        if error.status != 404:
                            raise
                        await self.api.call("POST", LEASES, body)
                except (ApiError, *CONNECTION_ERRORS) as error:
                    print(f"lease {name}: {type(error).__name__}: {error}", flush=True)
            await asyncio.sleep(HEARTBEAT_SECONDS)


if __name__ == "__main__":
    run_for_ever(__doc__, lambda api: Keeper(api).run())
