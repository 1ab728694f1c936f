"""How actions go, what a failed one leaves, and when it is tried again."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from rlhf_api.status import RayClusterStatus
from rlhf_operator import names
from rlhf_operator.clients.jobs import IdInUse, Refused
from rlhf_operator.clients.kube import RAYCLUSTERS, RLHFJOBS, Kind
from rlhf_operator.decide.actions import (
    DeleteCluster,
    DeleteDisruptionBudget,
    EnsureCluster,
    EnsureConfig,
    EnsureDisruptionBudget,
    EnsureNetworkPolicy,
    EnsureToken,
    MarkCluster,
    ReleaseWorkers,
    StopSubmission,
    SuspendCluster,
)
from rlhf_operator.runtime.keys import JobKey
from rlhf_operator.runtime.reconcile import Next
from tests.rlhf_operator.runtime.world import JOB, KEY, SETTINGS, SUBMIT, World, decision, refused


def test_rc32_a_refused_child_is_seen_by_the_next_decision_and_backed_off(fake_time):
    async def main():
        world = World(lambda seen: decision(before=(EnsureCluster(),), phase="Provisioning"))
        quota = refused(403, "Forbidden", "exceeded quota: gpus")
        world.api.fail["dry create rayclusters"] = [quota] * 3
        assert await world.look() == Next(0.0)
        await world.look()
        (result,) = world.seen[-1].results
        assert (result.action, result.code, result.permanent, result.failures) == ("EnsureCluster", 403, True, 1)
        assert "exceeded quota: gpus" in result.message
        tries: list[float] = []
        while ("rayclusters", "job") not in world.api.objects:
            following = await world.look()
            tries.append(world.api.calls.count("dry create rayclusters"))
            await asyncio.sleep(following.seconds or 0.001)
        assert world.clock() == pytest.approx(1 + 2 + 4, abs=0.1)
        assert world.api.calls.count("dry create rayclusters") == 4
        await world.look()
        assert world.seen[-1].results == ()
        assert world.seen[-1].cluster is not None
        assert world.seen[-1].cluster.owned

    fake_time(main())


def test_children_that_exist_are_taken_when_they_are_ours(fake_time):
    async def main():
        world = World(
            lambda seen: decision(before=(EnsureConfig(), EnsureToken(), EnsureNetworkPolicy(), EnsureCluster()), phase="Provisioning")
        )
        for _ in range(3):
            world.memories.forget(KEY)
            await world.look()
        assert world.seen[-1].cluster is not None
        assert world.seen[-1].config
        assert world.seen[-1].network_policy
        assert world.metrics.registry.get_sample_value("rlhf_operator_api_errors_total", {"action": "EnsureCluster"}) is None

    fake_time(main())


def test_what_succeeds_and_is_not_seen_is_not_repeated_at_once(fake_time):
    """Whatever hides an object from the operator, no action of its may run in a loop."""

    async def main():
        world = World(lambda seen: decision(before=(EnsureCluster(),), phase="Provisioning"))
        began = world.clock()
        while world.clock() < began + 120:
            following = await world.look()
            await asyncio.sleep(following.seconds or 0.001)
        assert world.api.calls.count("dry create rayclusters") <= 9

    fake_time(main())


@pytest.mark.parametrize("taken", ["labels", "ownerReferences"])
def test_a_cluster_gets_back_what_says_whose_it_is(fake_time, taken):
    async def main():
        plan = decision(before=(EnsureCluster(),), phase="Provisioning", ray_cluster=RayClusterStatus(name="job", uid="uid-of-rayclusters"))
        world = World(lambda seen: plan)
        await world.look()
        built = world.api.objects["rayclusters", "job"]
        stripped = {name: value for name, value in built["metadata"].items() if name != taken}
        world.store.put_cluster(world.api.put(RAYCLUSTERS, {**built, "metadata": {**stripped, "annotations": {"mine": "1"}}}))
        plan = replace(plan, before_status=(MarkCluster("uid-of-rayclusters"),))
        assert await world.look() == Next(0.0)
        cluster = world.seen[-1].cluster
        assert cluster is not None
        assert (cluster.owned, cluster.marked) == (True, False)
        await world.look()
        cluster = world.seen[-1].cluster
        assert cluster is not None
        assert cluster.marked
        meta = world.api.objects["rayclusters", "job"]["metadata"]
        assert (meta["labels"], meta["ownerReferences"]) == (built["metadata"]["labels"], built["metadata"]["ownerReferences"])
        assert meta["annotations"] == {"mine": "1"}

    fake_time(main())


def test_the_heads_disruption_budget_is_known_by_its_uid_until_it_is_gone(fake_time):
    async def main():
        def decide(seen):
            if seen.disruption_budget:
                return decision(before=(DeleteDisruptionBudget(seen.disruption_budget),), phase="Succeeded")
            if seen.job.status.phase == "Succeeded":
                return decision(phase="Succeeded")
            return decision(before=(EnsureDisruptionBudget(), EnsureCluster()), phase="Provisioning")

        world = World(decide, replace(SETTINGS, head_disruption_budget=True))
        await world.look()
        assert world.seen[-1].disruption_budget == ""
        world.memories.forget(KEY)
        await world.look()
        assert world.seen[-1].disruption_budget == "uid-of-poddisruptionbudgets", "read, after a restart"
        await world.look()
        assert world.seen[-1].disruption_budget == "", "deleted, and not read again of a job that has ended"
        assert ("poddisruptionbudgets", "job-head") not in world.api.objects

    fake_time(main())


def test_a_disruption_budget_of_somebody_else_is_not_the_jobs(fake_time):
    async def main():
        asked = decision(before=(EnsureDisruptionBudget(),), phase="Provisioning")
        world = World(lambda seen: asked, replace(SETTINGS, head_disruption_budget=True))
        world.api.put(Kind("apis/policy/v1", "poddisruptionbudgets"), {"metadata": {"namespace": "ns", "name": "job-head", "uid": "other"}})
        await world.look()
        await world.look()
        assert world.seen[-1].disruption_budget == ""
        (result,) = world.seen[-1].results
        assert (result.action, result.code, result.permanent) == ("EnsureDisruptionBudget", 409, True)

    fake_time(main())


def test_disruption_budgets_are_neither_read_nor_made_where_the_settings_say_so(fake_time):
    async def main():
        world = World(lambda seen: decision(phase="Provisioning"))
        world.api.fail["get poddisruptionbudgets"] = [refused(403, "Forbidden")]
        await world.look()
        assert world.seen[-1].disruption_budget is None
        assert world.seen[-1].unread == ()

    fake_time(main())


@pytest.mark.parametrize(
    ("meta", "permanent", "says"),
    [
        (
            {"labels": {names.JOB_UID_LABEL: "uid-0"}, "ownerReferences": [{"uid": "uid-0"}]},
            False,
            "rayclusters.ray.io job exists and belongs to an earlier job of this name (UID uid-0)",
        ),
        (
            {"labels": {names.JOB_UID_LABEL: "uid-0"}},
            False,
            "(UID uid-0); nothing removes it, so if it is not needed: kubectl -n ns delete rayclusters.ray.io job",
        ),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, False, "belongs to somebody else; it is being deleted"),
        ({}, True, "belongs to somebody else; nothing removes it, so if it is not needed: kubectl -n ns delete rayclusters.ray.io job"),
    ],
)
def test_rc64_a_child_of_somebody_else_is_never_taken(fake_time, meta, permanent, says):
    async def main():
        world = World(lambda seen: decision(before=(EnsureCluster(),), phase="Provisioning"))
        world.api.put(Kind("apis/ray.io/v1", "rayclusters"), {"metadata": {"namespace": "ns", "name": "job", "uid": "other", **meta}})
        await world.look()
        await world.look()
        (result,) = world.seen[-1].results
        assert (result.code, result.permanent) == (409, permanent)
        assert result.message.endswith(says)

    fake_time(main())


@pytest.mark.parametrize(
    ("metadata", "ok"),
    [
        ({names.JOB_UID_METADATA: "uid-1", names.ATTEMPT_METADATA: "1"}, True),
        ({names.JOB_UID_METADATA: "uid-0", names.ATTEMPT_METADATA: "1"}, False),
        ({names.JOB_UID_METADATA: "uid-1", names.ATTEMPT_METADATA: "2"}, False),
        ({}, False),
    ],
)
def test_rc43_an_id_in_use_counts_as_submitted_only_when_it_is_ours(fake_time, metadata, ok):
    async def main():
        world = World(lambda seen: SUBMIT)
        world.head.outcome, world.head.metadata = IdInUse(), metadata
        await world.look()
        await world.look()
        results = world.seen[-1].results
        assert [result.ok for result in results] == [ok]
        if not ok:
            assert (results[0].code, results[0].permanent) == (409, True)

    fake_time(main())


def test_rc37_a_head_without_an_agent_is_asked_again(fake_time):
    async def main():
        world = World(lambda seen: SUBMIT)
        world.head.outcome = Refused("500 No available agent to submit job", 500, retry=True)
        await world.look()
        following = await world.look()
        (result,) = world.seen[-1].results
        assert (result.action, result.permanent, result.failures) == ("Submit", False, 1)
        assert following.seconds == pytest.approx(1)
        assert world.api.calls.count("POST job-a1") == 1, "an event in between does not shorten the wait"

    fake_time(main())


def test_slow_posts_leave_half_of_the_workers_free(fake_time):
    async def main():
        world = World(lambda seen: SUBMIT)
        world.head.takes = 10.0
        for number in range(20):
            meta = {**JOB["metadata"], "name": f"job-{number}", "uid": f"uid-{number}"}  # type: ignore[dict-item]
            world.store.put_job(world.api.put(RLHFJOBS, {**JOB, "metadata": meta}))
        looks = [asyncio.create_task(world.reconciler.reconcile(JobKey("ns", f"job-{number}"))) for number in range(20)]
        await asyncio.sleep(5)
        assert sum(not each.done() for each in looks) == SETTINGS.workers // 2
        assert {each.result().seconds for each in looks if each.done()} == {1.0}
        await asyncio.gather(*looks)
        assert world.api.calls.count("POST job-a1") == SETTINGS.workers // 2

    fake_time(main())


def test_a_result_is_forgotten_when_nobody_asks_for_the_action_any_more(fake_time):
    async def main():
        plan = SUBMIT
        world = World(lambda seen: plan)
        world.head.outcome = Refused("no", 500, retry=True)
        await world.look()
        plan = decision(phase="Failed", attempt=1)
        await world.look()
        await world.look()
        assert world.seen[-1].results == ()

    fake_time(main())


def test_clusters_are_changed_under_their_uid(fake_time):
    async def main():
        plan = decision(before=(EnsureCluster(),), phase="Provisioning")
        world = World(lambda seen: plan)
        await world.look()
        cluster = world.store.cluster(KEY)
        assert cluster is not None
        uid = cluster.view.uid
        plan = decision(before=(SuspendCluster("another uid", True),), phase="Suspending")
        await world.look()
        assert "suspend" not in world.api.objects["rayclusters", "job"]["spec"]
        plan = decision(before=(SuspendCluster(uid, True), ReleaseWorkers(uid)), phase="Suspending")
        await world.look()
        spec = world.api.objects["rayclusters", "job"]["spec"]
        assert spec["suspend"] is True
        assert [(group["replicas"], group["minReplicas"]) for group in spec["workerGroupSpecs"]] == [(0, 0)]
        plan = decision(before=(DeleteCluster(uid),), phase="Succeeded")
        await world.look()
        assert ("rayclusters", "job") not in world.api.objects
        await world.look()
        assert world.store.cluster(KEY) is None

    fake_time(main())


def test_a_terminating_namespace_is_told(fake_time):
    async def main():
        world = World(lambda seen: decision(before=(EnsureConfig(),), phase="Provisioning"))
        world.api.fail["create configmaps"] = [refused(403, "Forbidden", "is being terminated", causes=("NamespaceTerminating",))]
        await world.look()
        await world.look()
        assert world.seen[-1].namespace_terminating

    fake_time(main())


def test_a_stop_is_a_call_to_the_head(fake_time):
    async def main():
        world = World(lambda seen: decision(after=(StopSubmission("job-a1"),), phase="Suspending"))
        await world.look()
        assert world.api.calls == ["patch rlhfjobs/status", "STOP job-a1"]

    fake_time(main())
