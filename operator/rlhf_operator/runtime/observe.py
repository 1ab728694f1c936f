"""Gathers what a decision needs: the caches that the watches feed, and a few small reads that are remembered for a while.

A read that fails leaves the last value in place and is named in ``unread``.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rlhf_api.spec import RLHFJob
from rlhf_operator import build, names
from rlhf_operator.clients.kube import (
    CLAIMS,
    CONFIG_MAPS,
    CORE_EVENTS,
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    PODS,
    RAYCLUSTERS,
    Kind,
    KubeClient,
    KubeError,
)
from rlhf_operator.decide.observation import JobView, Observation, PodView, RayClusterView, Unread, VolumeClaimView
from rlhf_operator.runtime import jobview
from rlhf_operator.runtime.keys import JobKey
from rlhf_operator.runtime.kueue import Workloads
from rlhf_operator.runtime.memory import JobMemory, Memories, Read
from rlhf_operator.runtime.pollers import Pollers
from rlhf_operator.runtime.store import Store, uid_of
from rlhf_operator.runtime.views import claim_view, mapping, owners, pod_view, text
from rlhf_operator.settings import OperatorSettings

T = TypeVar("T")

SETTLED_SECONDS = 300.0
"""A child that was there is believed to be there for so long; a lost one is found at the next resync."""
CHILD_SECONDS = 120.0
"""While pods are awaited their small children are looked at this often: a pod that starts without one of them never gets ready. Hundreds of
jobs may wait for GPUs for days, and each look is a call."""
TOKEN_SECONDS = 30.0
"""The same for the Secret: an earlier job's of the same name may just have been collected."""
UNSETTLED_SECONDS = 5.0
"""What is awaited is read at most this often."""
ABSENT_SECONDS = 1.0
"""What somebody must create is read at every look, but for looks that follow each other at once: one look may be the last."""
WARNING_SECONDS = 10.0
WARNINGS = 32
"""Objects of one job whose last warning is remembered."""
STUCK_PODS = 4
"""Pods whose Warning events are read: those of one group fail for the same reason."""

FINISHED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Seen:
    observation: Observation
    resource_version: str
    """Of the RLHFJob whose status the observation holds."""
    memory: JobMemory


class Observer:
    def __init__(
        self,
        kube: KubeClient,
        store: Store,
        memories: Memories,
        pollers: Pollers,
        settings: OperatorSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube, self._store, self._memories, self._pollers, self._settings = kube, store, memories, pollers, settings
        self._clock = clock
        self._workloads = Workloads(kube)

    async def observe(self, key: JobKey) -> Seen | None:
        """None where the job does not exist any more."""
        body = self._store.job(key)
        if body is None:
            return None
        memory = self._memories.of(key, uid_of(body))
        return Seen(await self._gather(key, body, memory), text(mapping(body.get("metadata")).get("resourceVersion")), memory)

    async def _gather(self, key: JobKey, body: Mapping[str, Any], memory: JobMemory) -> Observation:
        job = self._job(body, memory)
        unread: list[Unread] = []
        known = job.status.ray_cluster.uid if job.status.ray_cluster is not None else None
        await self._unwatched_cluster(key, job, memory, unread)
        record = self._store.cluster(key)
        cluster = record.for_job(job.uid, "", known) if record is not None else None
        pods = await self._unwatched_pods(key, job, cluster, self._store.pods(key, job.uid), memory, unread)
        settled = cluster is not None and ready(cluster, job.worker_pods)
        # A cluster that its queue or its user suspends awaits no pods.
        period = SETTLED_SECONDS if settled or (cluster is not None and cluster.suspend) else CHILD_SECONDS
        if job.spec is None or job.status.phase in FINISHED:
            if cluster is not None:
                await self._budget(key, job, memory, unread, SETTLED_SECONDS)
            return self._assemble(job, memory, cluster, pods, unread)
        spec = job.spec
        await self._config(key, spec, memory, unread, period)
        await self._policy(key, spec, memory, unread, period)
        await self._budget(key, job, memory, unread, period)
        await self._claim(key, spec, memory, unread, period)
        await self._references(key, spec, memory, unread, period)
        if memory.config is not None and memory.config.value is not None:
            job = _with_edits(job, memory, memory.config.value)
        if cluster is not None and cluster.owned and not settled:
            cluster = replace(cluster, warning=await self._warning(key, cluster.uid, memory, unread, "cluster"))
            pods = await self._pod_warnings(key, pods, memory, unread)
        await self._queue(key, cluster, memory, unread)
        if memory.token is not None and self._clock() - memory.token.at >= (period if period == SETTLED_SECONDS else TOKEN_SECONDS):
            # It may not be read: creating it again tells whether it is there.
            memory.token = None
        return self._assemble(job, memory, cluster, pods, unread)

    def _assemble(
        self, job: JobView, memory: JobMemory, cluster: RayClusterView | None, pods: tuple[PodView, ...], unread: list[Unread]
    ) -> Observation:
        return Observation(
            job=job,
            config=memory.config is not None and memory.config.value is not None,
            token=memory.token is not None and memory.token.value,
            network_policy=memory.policy is not None and memory.policy.value,
            disruption_budget=self._budget_seen(memory),
            claim=memory.claim.value if memory.claim is not None else None,
            cluster=cluster,
            pods=pods,
            head=self._pollers.view(JobKey(job.namespace, job.name), job.uid),
            missing=tuple(name for name, exists in memory.references.items() if not exists.value),
            queue_message=memory.queue_message.value if memory.queue_message is not None else "",
            results=tuple(memory.results.values()),
            unread=tuple(dict.fromkeys(unread)),
            namespace_terminating=memory.namespace_terminating,
        )

    def _job(self, body: Mapping[str, Any], memory: JobMemory) -> JobView:
        generation = mapping(body.get("metadata")).get("generation")
        known = memory.parsed[1] if memory.parsed is not None and memory.parsed[0] == generation else None
        view = jobview.job_view(body, known)
        memory.parsed = (view.generation, view)
        return view

    def _fresh(self, read: Read[Any] | None, seconds: float) -> bool:
        return read is not None and self._clock() - read.at < seconds

    async def _reading(self, part: Unread, unread: list[Unread], read: Awaitable[T], before: Read[T] | None) -> Read[T] | None:
        try:
            return Read(await read, self._clock())
        except KubeError:
            unread.append(part)
            return before

    async def _unwatched_cluster(self, key: JobKey, job: JobView, memory: JobMemory, unread: list[Unread]) -> None:
        """A RayCluster that lost our label looks deleted to the watch, and its trainer runs on: the API server is asked before that is
        believed. A finished job's only when it left the watch just now: most of them are deleted, and stay so.
        """
        vanished = self._store.vanished(key)
        if self._store.cluster(key) is not None or job.status.ray_cluster is None:
            memory.cluster = None
            return
        if job.status.phase in FINISHED and not vanished:
            return
        if not vanished and self._fresh(memory.cluster, UNSETTLED_SECONDS):
            return

        async def read() -> bool:
            body = await self._kube.find(RAYCLUSTERS, key.namespace, names.ray_cluster(key.name))
            if body is not None:
                self._store.put_cluster(body)
            return body is not None

        memory.cluster = await self._reading("cluster", unread, read(), None)

    async def _unwatched_pods(
        self,
        key: JobKey,
        job: JobView,
        cluster: RayClusterView | None,
        pods: tuple[PodView, ...],
        memory: JobMemory,
        unread: list[Unread],
    ) -> tuple[PodView, ...]:
        """With the pods that lost our label: KubeRay counts them as ready, and no watch shows them.

        The operator may not put the label back, so they are listed again while there are any.
        """
        if cluster is None or not cluster.owned:
            memory.hidden = None
            return pods
        fewer = ready(cluster, job.worker_pods) and sum(not pod.gone for pod in pods) <= job.worker_pods
        if not fewer and (memory.hidden is None or not memory.hidden.value):
            return pods
        if not self._fresh(memory.hidden, UNSETTLED_SECONDS) or any(_looks_unlabelled(pod) for pod in pods):
            memory.hidden = await self._reading("pods", unread, self._list_unlabelled(key, cluster.uid), memory.hidden)
        hidden = memory.hidden.value if memory.hidden is not None else ()
        watched = {pod.uid for pod in pods if not pod.gone}
        listed = {pod.uid: pod for pod in hidden if pod.uid not in watched}
        found = [*(pod for pod in pods if pod.uid not in listed), *listed.values()]
        return tuple(sorted(found, key=lambda pod: (pod.name, pod.created_at)))

    async def _list_unlabelled(self, key: JobKey, cluster_uid: str) -> tuple[PodView, ...]:
        selector = f"{names.CLUSTER_LABEL}={names.ray_cluster(key.name)},!{names.JOB_LABEL}"
        bodies = [body async for body in self._kube.list(PODS, key.namespace, labels=selector)]
        return tuple(pod_view(body, gone=False) for body in bodies if cluster_uid in owners(body))

    async def _config(self, key: JobKey, job: RLHFJob, memory: JobMemory, unread: list[Unread], period: float) -> None:
        there = memory.config is not None and memory.config.value is not None
        if self._fresh(memory.config, period if there else UNSETTLED_SECONDS):
            return

        async def read() -> str | None:
            body = await self._kube.find(CONFIG_MAPS, key.namespace, names.config_map(key.name))
            if body is None or job.metadata.uid not in owners(body):
                return None
            return text(mapping(body.get("data")).get(names.CONFIG_KEY))

        memory.config = await self._reading("config", unread, read(), memory.config)

    async def _policy(self, key: JobKey, job: RLHFJob, memory: JobMemory, unread: list[Unread], period: float) -> None:
        if not job.spec.cluster.network.isolate:
            return
        if self._fresh(memory.policy, period if memory.policy is not None and memory.policy.value else UNSETTLED_SECONDS):
            return

        async def read() -> bool:
            body = await self._kube.find(NETWORK_POLICIES, key.namespace, names.network_policy(key.name))
            return body is not None and job.metadata.uid in owners(body)

        memory.policy = await self._reading("network_policy", unread, read(), memory.policy)

    async def _budget(self, key: JobKey, job: JobView, memory: JobMemory, unread: list[Unread], period: float) -> None:
        """Of a finished job as well, until it is gone: it would hold up the drain of a head that stays for its logs."""
        if not self._settings.head_disruption_budget:
            return
        there = memory.budget is not None and memory.budget.value != ""
        if self._fresh(memory.budget, period if there or job.status.phase in FINISHED else UNSETTLED_SECONDS):
            return

        async def read() -> str:
            body = await self._kube.find(DISRUPTION_BUDGETS, key.namespace, names.disruption_budget(key.name))
            return uid_of(body) if body is not None and job.uid in owners(body) else ""

        memory.budget = await self._reading("disruption_budget", unread, read(), memory.budget)

    def _budget_seen(self, memory: JobMemory) -> str | None:
        if not self._settings.head_disruption_budget:
            return None
        return memory.budget.value if memory.budget is not None else ""

    async def _claim(self, key: JobKey, job: RLHFJob, memory: JobMemory, unread: list[Unread], period: float) -> None:
        known = memory.claim.value if memory.claim is not None else None
        seconds = period
        if period != SETTLED_SECONDS and (known is None or known.phase != "Bound"):
            seconds = ABSENT_SECONDS if known is None else UNSETTLED_SECONDS
        if self._fresh(memory.claim, seconds) or job.spec.checkpoint.volume is None:
            return

        async def read() -> VolumeClaimView | None:
            body = await self._kube.find(CLAIMS, key.namespace, build.claim_name(job))
            if body is None:
                return None
            view = claim_view(body, key.name, "")
            if view.phase == "Bound":
                return view
            return claim_view(body, key.name, await self._warning(key, uid_of(body), memory, unread, "claim"))

        memory.claim = await self._reading("claim", unread, read(), memory.claim)

    async def _references(self, key: JobKey, job: RLHFJob, memory: JobMemory, unread: list[Unread], period: float) -> None:
        """Objects that the pods mount and somebody else makes. Secrets are not looked at: the operator has no right to."""
        cluster = job.spec.cluster
        wanted = {f"PersistentVolumeClaim {each.existing_claim}": (CLAIMS, each.existing_claim) for each in cluster.volumes}
        if cluster.files is not None:
            wanted[f"ConfigMap {cluster.files.config_map}"] = (CONFIG_MAPS, cluster.files.config_map)

        async def exists(kind: Kind, name: str) -> bool:
            return await self._kube.find(kind, key.namespace, name) is not None

        for label, (kind, name) in wanted.items():
            before = memory.references.get(label)
            believed = period == SETTLED_SECONDS or (before is not None and before.value)
            if self._fresh(before, period if believed else ABSENT_SECONDS):
                continue
            now = await self._reading("missing", unread, exists(kind, name), before)
            if now is not None:
                memory.references[label] = now

    async def _pod_warnings(self, key: JobKey, pods: tuple[PodView, ...], memory: JobMemory, unread: list[Unread]) -> tuple[PodView, ...]:
        stuck = [pod.uid for pod in pods if not (pod.gone or pod.ready or pod.unschedulable)][:STUCK_PODS]
        found = {uid: await self._warning(key, uid, memory, unread, "pods") for uid in stuck}
        return tuple(replace(pod, warning=found.get(pod.uid, "")) for pod in pods)

    async def _warning(self, key: JobKey, uid: str, memory: JobMemory, unread: list[Unread], part: Unread) -> str:
        """``reason: message`` of the newest Warning event about an object. KubeRay 1.5 and 1.7 are both found through core events."""
        before = memory.warnings.get(uid)
        if before is not None and self._clock() - before.at < WARNING_SECONDS:
            return before.value

        async def read() -> str:
            newest = ("", "")
            async for event in self._kube.list(CORE_EVENTS, key.namespace, fields=f"involvedObject.uid={uid},type=Warning"):
                series = mapping(event.get("series"))
                meta = mapping(event.get("metadata"))
                at = text(series.get("lastObservedTime")) or text(event.get("lastTimestamp")) or text(event.get("eventTime"))
                said = f"{text(event.get('reason'))}: {text(event.get('message'))}"
                newest = max(newest, (at or text(meta.get("creationTimestamp")), said))
            return newest[1][:1024]

        now = await self._reading(part, unread, read(), before)
        if now is not None:
            memory.warnings[uid] = now
            while len(memory.warnings) > WARNINGS:
                del memory.warnings[next(iter(memory.warnings))]
        return now.value if now is not None else ""

    async def _queue(self, key: JobKey, cluster: RayClusterView | None, memory: JobMemory, unread: list[Unread]) -> None:
        """Kueue's words on why the RayCluster waits. Those of a wait that is over say nothing of the next."""
        if cluster is None or not cluster.queue or not cluster.suspend:
            memory.queue_message = None
        elif self._settings.kueue and not self._fresh(memory.queue_message, UNSETTLED_SECONDS):
            words = self._workloads.words(key.namespace, cluster.uid)
            memory.queue_message = await self._reading("queue", unread, words, memory.queue_message)


def ready(cluster: RayClusterView, workers: int) -> bool:
    """Every pod is up, so nobody has to ask why one is not."""
    return cluster.conditions.get("HeadPodReady", ("",))[0] == "True" and cluster.ready_workers >= workers


def _looks_unlabelled(pod: PodView) -> bool:
    """Whether a pod left the watch as none does that is deleted: without a time of its deletion. One that is forced has none either."""
    return pod.gone and pod.deleting_since is None and pod.phase == "Running"


def _with_edits(job: JobView, memory: JobMemory, stored: str) -> JobView:
    if job.spec is None or job.generation <= 1:
        return job
    if memory.edits is None or memory.edits[0] != job.generation:
        memory.edits = (job.generation, jobview.ignored_edits(job.spec, stored))
    return replace(job, ignored_edits=memory.edits[1])
