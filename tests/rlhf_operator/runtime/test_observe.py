"""What is read again when, and what is believed meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rlhf_operator.clients.kube import CLAIMS, CONFIG_MAPS, RAYCLUSTERS
from rlhf_operator.decide.actions import Action, EnsureCluster, EnsureConfig, EnsureNetworkPolicy, EnsureToken
from rlhf_operator.decide.observation import Observation
from rlhf_operator.runtime.observe import CHILD_SECONDS, SETTLED_SECONDS
from tests.rlhf_operator.runtime.world import KEY, World, decision

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
    ("status", "spec", "seconds"),
    [({}, {}, CHILD_SECONDS), (READY, {}, SETTLED_SECONDS), ({}, {"suspend": True}, SETTLED_SECONDS)],
    ids=["pods are awaited", "all pods are ready", "suspended"],
)
def test_children_that_somebody_deletes_are_made_again(fake_time, status, spec, seconds):
    async def main():
        world = World(restored)
        await world.look()
        stored = world.api.objects["rayclusters", "job"]
        world.store.put_cluster(world.api.put(RAYCLUSTERS, {**stored, "status": status, "spec": {**stored["spec"], **spec}}))
        await world.look()
        children = [("configmaps", "job-config"), ("secrets", "job-ray-token"), ("networkpolicies", "job")]
        for child in children:
            del world.api.objects[child]
        await asyncio.sleep(seconds - 1)
        await world.look()
        assert not [child for child in children if child in world.api.objects], "believed to be there"
        await asyncio.sleep(2)
        await world.look()
        assert [child for child in children if child in world.api.objects] == children

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
