"""What is read again when, and what is believed meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rlhf_api.status import RayClusterStatus
from rlhf_operator.clients.kube import CLAIMS, CONFIG_MAPS, PODS, RAYCLUSTERS
from rlhf_operator.decide.actions import Action, EnsureCluster, EnsureConfig, EnsureNetworkPolicy, EnsureToken
from rlhf_operator.decide.observation import Observation
from rlhf_operator.runtime.observe import CHILD_SECONDS, SETTLED_SECONDS, TOKEN_SECONDS
from tests.rlhf_operator.runtime.world import KEY, World, decision, refused

CHILDREN = [("configmaps", "job-config"), ("secrets", "job-ray-token"), ("networkpolicies", "job")]
READY = {"conditions": [{"type": "HeadPodReady", "status": "True"}], "readyWorkerReplicas": 1}


def restored(seen: Observation) -> Any:
    """A decision that makes whatever is absent."""
    absent: list[Action] = []
    if not seen.config:
        absent.append(EnsureConfig())
    if not seen.token:
        absent.append(EnsureToken())
    if not seen.network_policy:
        absent.append(EnsureNetworkPolicy())
    if seen.cluster is None:
        absent.append(EnsureCluster())
    return decision(after=tuple(absent), phase="Provisioning")


@pytest.mark.parametrize(
    ("status", "spec", "seconds", "token_seconds"),
    [
        ({}, {}, CHILD_SECONDS, TOKEN_SECONDS),
        (READY, {}, SETTLED_SECONDS, SETTLED_SECONDS),
        ({}, {"suspend": True}, SETTLED_SECONDS, SETTLED_SECONDS),
    ],
    ids=["pods are awaited", "all pods are ready", "suspended"],
)
@pytest.mark.parametrize("child", CHILDREN, ids=lambda child: child[0])
def test_children_that_somebody_deletes_are_made_again(fake_time, child, status, spec, seconds, token_seconds):
    async def main():
        world = World(restored)
        await world.look()
        stored = world.api.objects["rayclusters", "job"]
        world.store.put_cluster(world.api.put(RAYCLUSTERS, {**stored, "status": status, "spec": {**stored["spec"], **spec}}))
        await world.look()
        del world.api.objects[child]
        await asyncio.sleep((token_seconds if child[0] == "secrets" else seconds) - 1)
        await world.look()
        assert child not in world.api.objects, "believed to be there"
        await asyncio.sleep(2)
        await world.look()
        assert child in world.api.objects

    fake_time(main())


def test_what_somebody_must_create_is_seen_at_the_next_look(fake_time):
    async def main():
        world = World(lambda seen: decision(phase="Provisioning"))
        await world.look()
        assert (world.seen[-1].missing, world.seen[-1].claim) == (("ConfigMap reward",), None)
        world.api.put(CONFIG_MAPS, {"metadata": {"namespace": "ns", "name": "reward"}})
        world.api.put(CLAIMS, {"metadata": {"namespace": "ns", "name": "ckpt"}})
        await asyncio.sleep(1)
        await world.look()
        assert world.seen[-1].missing == ()
        assert world.seen[-1].claim is not None
        assert world.store.cluster(KEY) is None

    fake_time(main())


CLUSTER = RayClusterStatus(name="job", uid="uid-of-rayclusters")


async def with_a_cluster(phase: str) -> World:
    """A job of this phase whose RayCluster was just made; nothing more is decided from then on."""
    plans = [decision(after=after, phase=phase, ray_cluster=CLUSTER) for after in ((EnsureCluster(),), ())]
    world = World(lambda seen: plans.pop(0) if len(plans) > 1 else plans[0])
    await world.look()
    return world


def test_a_cluster_that_left_the_watch_is_asked_for_before_it_is_believed_gone(fake_time):
    async def main():
        world = await with_a_cluster("Running")
        stored = world.api.objects["rayclusters", "job"]
        unlabelled = world.api.put(RAYCLUSTERS, {**stored, "metadata": {**stored["metadata"], "labels": {}}})
        world.store.drop_cluster(KEY, CLUSTER.uid or "", int(unlabelled["metadata"]["resourceVersion"]))
        await world.look()
        cluster = world.seen[-1].cluster
        assert cluster is not None
        assert (cluster.owned, cluster.marked) == (True, False)

    fake_time(main())


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_a_cluster_that_is_deleted_is_asked_for_once(fake_time, phase):
    async def main():
        world = await with_a_cluster(phase)
        del world.api.objects["rayclusters", "job"]
        world.api.fail["get rayclusters"] = [refused(500, "InternalError")]
        world.store.drop_cluster(KEY, CLUSTER.uid or "", 99)
        await world.look()
        assert world.seen[-1].unread == ("cluster",)
        await world.look()
        assert world.seen[-1].cluster is None
        assert "cluster" not in world.seen[-1].unread
        world.api.fail["get rayclusters"] = [refused(500, "InternalError")]
        await world.look()
        assert "cluster" not in world.seen[-1].unread, "not asked for again"

    fake_time(main())


def pod(name: str, kind: str, **labels: str) -> dict[str, Any]:
    owner = {"uid": CLUSTER.uid}
    meta = {"namespace": "ns", "name": name, "uid": name, "ownerReferences": [owner]}
    ray = {"ray.io/cluster": "job", "ray.io/node-type": kind, "rlhf.dev/job-uid": "uid-1"}
    return {"metadata": {**meta, "labels": {**ray, **labels}}, "status": {"phase": "Running"}}


def test_pods_that_lost_the_label_are_seen_while_kuberay_counts_them(fake_time):
    async def main():
        world = await with_a_cluster("Running")
        stored = world.api.objects["rayclusters", "job"]
        world.store.put_cluster(world.api.put(RAYCLUSTERS, {**stored, "status": READY}))
        label = {"rlhf.dev/job": "job"}
        for name, kind in (("head", "head"), ("worker", "worker")):
            world.store.put_pod(world.api.put(PODS, pod(name, kind, **label)))
        await world.look()
        assert "list pods" not in world.api.calls, "nothing is missing"
        for name, kind in (("head", "head"), ("worker", "worker")):
            bare = world.api.put(PODS, pod(name, kind))
            world.store.put_pod(
                {**pod(name, kind, **label), "metadata": {**bare["metadata"], "labels": label | bare["metadata"]["labels"]}}, gone=True
            )
        await world.look()
        assert [(each.name, each.head, each.gone) for each in world.seen[-1].pods] == [("head", True, False), ("worker", False, False)]
        del world.api.objects["pods", "worker"]
        await asyncio.sleep(6)
        await world.look()
        assert [(each.name, each.gone) for each in world.seen[-1].pods] == [("head", False), ("worker", True)]

    fake_time(main())
