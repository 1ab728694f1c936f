"""What is written, in which order, and what is not done when a write fails. The API server is a table with a version check."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rlhf_api.progress import Progress
from rlhf_api.status import ProgressStatus, RLHFJobStatus
from rlhf_operator import names
from rlhf_operator.clients.jobs import Fault, Health, IdInUse, Refused, Submitted
from rlhf_operator.clients.kube import RLHFJOBS, Kind, KubeError
from rlhf_operator.decide.actions import (
    Action,
    Decision,
    DeleteCluster,
    EnsureCluster,
    EnsureConfig,
    EnsureNetworkPolicy,
    EnsureToken,
    EventNote,
    ReleaseWorkers,
    StopSubmission,
    Submit,
    SuspendCluster,
)
from rlhf_operator.decide.observation import Observation, SubmissionView
from rlhf_operator.decide.settings import DecideSettings
from rlhf_operator.runtime.act import Actor
from rlhf_operator.runtime.events import EventWriter
from rlhf_operator.runtime.keys import JobKey
from rlhf_operator.runtime.memory import Memories
from rlhf_operator.runtime.metrics import Metrics
from rlhf_operator.runtime.observe import Observer
from rlhf_operator.runtime.pollers import Pollers
from rlhf_operator.runtime.reconcile import Next, Reconciler
from rlhf_operator.runtime.store import Store
from rlhf_operator.settings import OperatorSettings

KEY = JobKey("ns", "job")
START = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = OperatorSettings(
    namespace="rlhf", pod_name="operator-0", default_image="trainer:1", default_ray_version="2.60.0", token_key=b"k" * 32, kueue=False
)
JOB = {
    "apiVersion": "rlhf.dev/v1alpha1",
    "kind": "RLHFJob",
    "metadata": {"namespace": "ns", "name": "job", "uid": "uid-1", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {
        "rl": {"algorithm": "grpo", "reward": {"sources": [{"function": {"file": "reward.py"}}]}},
        "models": {"actor": {"path": "/models/a"}},
        "data": {"datasets": [{"path": "/models/d.jsonl"}]},
        "placement": {"accelerator": "cpu", "actor": {"nodes": 1, "gpusPerNode": 1}, "rollout": {"engines": 1}},
        "checkpoint": {"volume": {"existingClaim": "ckpt"}},
        "cluster": {"files": {"configMap": "reward"}},
    },
}


def refused(status: int, reason: str = "", message: str = "no", **more: Any) -> KubeError:
    return KubeError(status, reason, message, request="x", **more)


class ApiTable:
    """The verbs of ``KubeClient``; ``calls`` has each write, ``fail`` an error for the next matching ones."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.version = 0
        self.calls: list[str] = []
        self.fail: dict[str, list[KubeError]] = {}

    def put(self, kind: Kind, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        body = copy.deepcopy(body)
        body["metadata"].setdefault("uid", f"uid-of-{kind.plural}")
        body["metadata"]["resourceVersion"] = str(self.version)
        self.objects[kind.plural, body["metadata"]["name"]] = body
        return copy.deepcopy(body)

    def may_write(self) -> None:
        pass

    def _may_fail(self, call: str) -> None:
        self.calls.append(call)
        if self.fail.get(call):
            raise self.fail[call].pop(0)

    async def find(self, kind: Kind, namespace: str | None, name: str) -> dict[str, Any] | None:
        if self.fail.get(f"get {kind.plural}"):
            raise self.fail[f"get {kind.plural}"].pop(0)
        return copy.deepcopy(self.objects.get((kind.plural, name)))

    async def list(self, kind: Kind, namespace: str | None, *, labels: str = "", fields: str = "") -> AsyncIterator[dict[str, Any]]:
        for (plural, _), body in list(self.objects.items()):
            if plural == kind.plural:
                yield body

    async def create(self, kind: Kind, body: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        self._may_fail(f"{'dry ' if dry_run else ''}create {kind.plural}")
        if (kind.plural, body["metadata"]["name"]) in self.objects:
            raise refused(409, "AlreadyExists")
        return copy.deepcopy(body) if dry_run else self.put(kind, body)

    async def merge_patch(self, kind: Kind, namespace: str, name: str, patch: dict[str, Any], *, subresource: str | None = None) -> Any:
        self._may_fail(f"patch {kind.plural}{'/' + subresource if subresource else ''}")
        stored = self.objects.get((kind.plural, name))
        if stored is None:
            raise refused(404, "NotFound")
        meta = patch.get("metadata", {})
        if any(meta.get(field, stored["metadata"][field]) != stored["metadata"][field] for field in ("uid", "resourceVersion")):
            raise refused(409, "Conflict")
        return self.put(kind, {**stored, **{part: {**stored.get(part, {}), **patch[part]} for part in patch if part != "metadata"}})

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str | None = None, propagation: str = "Background") -> bool:
        self._may_fail(f"delete {kind.plural}")
        return self.objects.pop((kind.plural, name), None) is not None


class Head:
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.outcome: Submitted | IdInUse | Refused = Submitted("job-a1")
        self.metadata: dict[str, str] = {}
        self.takes = 0.0

    async def submit(self, submission_id: str, entrypoint: str, metadata: dict[str, str]) -> Submitted | IdInUse | Refused:
        self.calls.append(f"POST {submission_id}")
        await asyncio.sleep(self.takes)
        return self.outcome

    async def stop(self, submission_id: str) -> Fault | None:
        self.calls.append(f"STOP {submission_id}")
        return None

    async def look(self, submission_id: str) -> SubmissionView | Fault:
        return SubmissionView(submission_id, True, status="RUNNING", metadata=self.metadata)

    async def health(self) -> Health:
        return Health(True, "2.60.0")

    async def log_tail(self, submission_id: str) -> str:
        return ""

    async def progress(self, job_uid: str, attempt: int) -> Progress | Fault:
        return Fault("none")


class Heads:
    def __init__(self, head: Head) -> None:
        self._head = head

    def at(self, namespace: str, service: str, job_uid: str) -> Head:
        return self._head


class World:
    """One job, its API server and its head; ``decide`` is what the test says."""

    def __init__(self, decide: Callable[[Observation], Decision]) -> None:
        self.seen: list[Observation] = []
        self.api = ApiTable()
        self.head = Head(self.api.calls)
        self.store, self.memories, self.metrics = Store(self.clock), Memories(), Metrics()
        self.pollers = Pollers(lambda key, uid, service: self.head, lambda key: None, self.now)
        heads: Any = Heads(self.head)
        kube: Any = self.api
        self.events = EventWriter(kube, "operator-0", self.now, self.metrics.events_dropped.inc)

        def decided(observation: Observation, now: datetime, settings: DecideSettings) -> Decision:
            self.seen.append(observation)
            return decide(observation)

        self.reconciler = Reconciler(
            kube=kube,
            store=self.store,
            memories=self.memories,
            observer=Observer(kube, self.store, self.memories, self.pollers, SETTINGS, self.clock),
            actor=Actor(kube, heads, self.store, self.pollers, SETTINGS, self.now, self.clock),
            pollers=self.pollers,
            heads=heads,
            events=self.events,
            metrics=self.metrics,
            decide=decided,
            settings=DecideSettings(),
            status_seconds=30.0,
            now=self.now,
            clock=self.clock,
        )
        self.store.put_job(self.api.put(RLHFJOBS, JOB))

    def clock(self) -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        return START + timedelta(seconds=self.clock())

    async def look(self) -> Next:
        return await self.reconciler.reconcile(KEY)

    def stored(self) -> dict[str, Any]:
        return dict(self.api.objects["rlhfjobs", "job"].get("status", {}))


def decision(*, before: tuple[Action, ...] = (), after: tuple[Action, ...] = (), **status: Any) -> Decision:
    return Decision(RLHFJobStatus(**status), before_status=before, after_status=after, urgent=True)


SUBMIT = decision(after=(Submit(1, "job-a1"),), phase="Starting", attempt=1)


def test_rc43_the_attempt_is_stored_before_it_is_posted(fake_time):
    async def main():
        world = World(lambda seen: SUBMIT)
        await world.look()
        assert world.api.calls == ["patch rlhfjobs/status", "POST job-a1"]
        assert world.stored()["attempt"] == 1

    fake_time(main())


@pytest.mark.parametrize(
    "error", [refused(500, "InternalError"), refused(0, "Unreachable"), refused(409, "Conflict"), refused(403, "Forbidden")]
)
def test_rc43_nothing_is_posted_while_the_attempt_is_not_stored(fake_time, error):
    async def main():
        world = World(lambda seen: SUBMIT)
        world.api.fail["patch rlhfjobs/status"] = [error]
        following = await world.look()
        assert world.api.calls == ["patch rlhfjobs/status"]
        assert following == Next(0.0 if error.status == 409 else 1.0)
        if error.status != 409:
            assert (await world.look()).seconds == 1.0
            assert world.api.calls == ["patch rlhfjobs/status"], "an event in between does not shorten the wait"
        await asyncio.sleep(1)
        await world.look()
        assert world.api.calls[1:] == ["patch rlhfjobs/status", "POST job-a1"]

    fake_time(main())


def test_a_status_that_was_decided_from_an_old_body_is_not_stored(fake_time):
    async def main():
        world = World(lambda seen: decision(phase="Running" if seen.job.generation == 1 else "Suspending"))
        world.api.put(RLHFJOBS, {**JOB, "metadata": {**JOB["metadata"], "generation": 2}})  # type: ignore[dict-item]
        assert await world.look() == Next(0.0)
        assert world.stored() == {}
        await world.look()
        assert world.stored() == {"phase": "Suspending"}

    fake_time(main())


def test_rc34_a_job_that_is_gone_costs_one_call(fake_time):
    async def main():
        world = World(lambda seen: SUBMIT)
        del world.api.objects["rlhfjobs", "job"]
        assert await world.look() == Next(0.0)
        assert await world.look() == Next()
        assert world.api.calls == ["patch rlhfjobs/status"]

    fake_time(main())


def test_progress_alone_waits_for_its_time_and_a_phase_does_not(fake_time):
    async def main():
        step, urgent = 0, False

        def decide(seen: Observation) -> Decision:
            status = RLHFJobStatus(phase="Failed" if urgent else "Running", progress=ProgressStatus(step=step))
            return Decision(status, urgent=urgent, requeue_after_seconds=600.0)

        world = World(decide)
        assert (await world.look()).seconds == 600
        step = 1
        await asyncio.sleep(10)
        assert (await world.look()).seconds == pytest.approx(20)
        assert world.stored()["progress"] == {"step": 0}
        await asyncio.sleep(20)
        await world.look()
        assert world.stored()["progress"] == {"step": 1}
        step, urgent = 2, True
        await world.look()
        assert world.stored() == {"phase": "Failed", "progress": {"step": 2}}
        assert len(world.api.calls) == 3
        await world.look()
        assert len(world.api.calls) == 3, "nothing changed, nothing is written"

    fake_time(main())


def test_rc65_a_status_that_is_too_large_is_written_smaller(fake_time):
    async def main():
        world = World(lambda seen: decision(phase="Failed", message="m" * 4096, progress=ProgressStatus(step=3)))
        world.api.fail["patch rlhfjobs/status"] = [refused(500, "", "etcdserver: request is too large")]
        await world.look()
        assert world.stored()["phase"] == "Failed"
        assert len(world.stored()["message"]) == 256
        assert "progress" not in world.stored()

    fake_time(main())


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


def test_after_a_failed_action_the_rest_waits_and_the_status_is_told(fake_time):
    async def main():
        plan = decision(before=(EnsureConfig(), EnsureToken()), after=(Submit(1, "job-a1"),), phase="Provisioning")
        world = World(lambda seen: plan)
        world.api.fail["create configmaps"] = [refused(500)]
        await world.look()
        assert world.api.calls == ["create configmaps", "patch rlhfjobs/status"]

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


@pytest.mark.parametrize(
    ("meta", "permanent", "says"),
    [
        ({"labels": {names.JOB_UID_LABEL: "uid-0"}}, False, "an earlier job of this name (UID uid-0)"),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, False, "belongs to somebody else"),
        ({}, True, "belongs to somebody else"),
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
        assert says in result.message

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
        assert (results == ()) is ok
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


def test_an_api_server_that_asks_for_patience_gets_it(fake_time):
    async def main():
        world = World(lambda seen: decision(phase="Running"))
        world.api.fail["patch rlhfjobs/status"] = [refused(429, "TooManyRequests", retry_after=40.0)] + [refused(503)] * 9
        waits = []
        while not world.stored():
            following = await world.look()
            waits.append(following.seconds)
            await asyncio.sleep(following.seconds or 0.0)
        assert waits == [40, 2, 4, 8, 15, 15, 15, 15, 15, 15, None]

    fake_time(main())


def test_events_are_sent_once_the_status_is_stored(fake_time):
    async def main():
        plan = dataclasses.replace(decision(phase="Running"), events=(EventNote("Normal", "Training", "é" * 2000),))
        world = World(lambda seen: plan)
        writing = asyncio.create_task(world.events.run())
        world.api.fail["patch rlhfjobs/status"] = [refused(500)]
        await world.look()
        await asyncio.sleep(1)
        assert "create events" not in world.api.calls
        await world.look()
        await world.events.flush()
        event = next(body for (plural, _), body in world.api.objects.items() if plural == "events")
        assert event["regarding"]["uid"] == "uid-1"
        assert len(event["note"].encode()) <= 1024
        writing.cancel()

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


def test_what_can_not_be_read_is_named_and_keeps_its_last_value(fake_time):
    async def main():
        world = World(lambda seen: decision(before=(EnsureConfig(),) if not seen.config else (), phase="Provisioning"))
        await world.look()
        await asyncio.sleep(400)
        world.api.fail["get configmaps"] = [refused(500), refused(500)]
        world.api.fail["get persistentvolumeclaims"] = [refused(0, "Unreachable")]
        await world.look()
        seen = world.seen[-1]
        assert seen.config
        assert set(seen.unread) == {"config", "claim", "missing"}
        await asyncio.sleep(6)
        await world.look()
        assert world.seen[-1].unread == ()
        assert world.seen[-1].missing == ("ConfigMap reward",)

    fake_time(main())


def test_a_deleted_jobs_driver_is_asked_to_stop(fake_time):
    async def main():
        world = World(lambda seen: decision(phase="Running"))
        status = {"phase": "Running", "run": {"submissionId": "job-a2", "submittedAt": "2026-01-01T00:00:00Z"}}
        world.reconciler.deleted(KEY, {**JOB, "status": status})
        await asyncio.sleep(1)
        world.reconciler.deleted(KEY, {**JOB, "status": {**status, "phase": "Succeeded"}})
        world.reconciler.deleted(KEY, JOB)
        await asyncio.sleep(1)
        assert world.api.calls == ["STOP job-a2"]

    fake_time(main())


def test_a_stop_is_a_call_to_the_head(fake_time):
    async def main():
        world = World(lambda seen: decision(after=(StopSubmission("job-a1"),), phase="Suspending"))
        await world.look()
        assert world.api.calls == ["patch rlhfjobs/status", "STOP job-a1"]

    fake_time(main())
