"""One job, its API server as a table with a version check, and its head: what reconciles are tested in."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from rlhf_api.progress import Progress
from rlhf_api.status import RLHFJobStatus
from rlhf_operator.clients.jobs import Fault, Health, IdInUse, Refused, Submitted
from rlhf_operator.clients.kube import RLHFJOBS, Kind, KubeError
from rlhf_operator.decide.actions import (
    Action,
    Decision,
    Submit,
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
        self.calls.append(f"list {kind.plural}")
        wanted = dict(each.split("=") for each in labels.split(",") if "=" in each)
        absent = {each[1:] for each in labels.split(",") if each.startswith("!")}
        for (plural, _), body in list(self.objects.items()):
            found = body["metadata"].get("labels", {})
            if plural == kind.plural and wanted.items() <= found.items() and not absent & found.keys():
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
        labels = {**stored["metadata"].get("labels", {}), **meta.get("labels", {})}
        merged = {"metadata": {**stored["metadata"], **meta, **({"labels": labels} if labels else {})}}
        return self.put(
            kind, {**stored, **{part: {**stored.get(part, {}), **patch[part]} for part in patch if part != "metadata"}, **merged}
        )

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

    async def unfinished(self, job_uid: str) -> tuple[SubmissionView, ...] | Fault:
        return ()

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

    def __init__(self, decide: Callable[[Observation], Decision], settings: OperatorSettings = SETTINGS) -> None:
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
            observer=Observer(kube, self.store, self.memories, self.pollers, settings, self.clock),
            actor=Actor(kube, heads, self.store, self.pollers, settings, self.now, self.clock),
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
