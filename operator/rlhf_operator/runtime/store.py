"""What the watches said: jobs, RayClusters and pods as last seen, in memory.

The watching library tells nobody what vanished while a watch was down, so a fresh list removes what it lacks. An older body
never replaces a newer one: our own writes come back before the watch repeats them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rlhf_operator import names
from rlhf_operator.decide.observation import PodView
from rlhf_operator.runtime.keys import JobKey
from rlhf_operator.runtime.views import ClusterRecord, cluster_record, mapping, pod_view, resource_version, text

Body = Mapping[str, Any]

NEVER = 2**63
"""A version that no body reaches."""

GONE_SECONDS = 900.0
"""How long the last body of a deleted pod is kept when no stored decision has used it."""
GONE_MAX = 64
"""Of one job: pods that crash for hours must not fill the memory."""


def key_of(body: Body) -> JobKey:
    """The job that an object is, or belongs to by label."""
    meta = mapping(body.get("metadata"))
    label = text(mapping(meta.get("labels")).get(names.JOB_LABEL))
    return JobKey(text(meta.get("namespace")), label or text(meta.get("name")))


def cluster_key_of(body: Body) -> JobKey:
    """The job that a RayCluster belongs to: it has its job's name, whatever its labels say."""
    meta = mapping(body.get("metadata"))
    return JobKey(text(meta.get("namespace")), text(meta.get("name")))


def uid_of(body: Body) -> str:
    return text(mapping(body.get("metadata")).get("uid"))


@dataclass(slots=True)
class _Job:
    body: Body
    version: int
    at: float


@dataclass(slots=True)
class _Cluster:
    record: ClusterRecord
    at: float


@dataclass(slots=True)
class _Pod:
    view: PodView
    job_uid: str
    version: int
    at: float
    gone_at: float | None = None


class Store:
    """Every ``put`` and ``drop`` returns the job to look at, or None where nothing changed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._jobs: dict[JobKey, _Job] = {}
        self._clusters: dict[JobKey, _Cluster] = {}
        self._pods: dict[JobKey, dict[str, _Pod]] = {}
        self._dropped: dict[str, tuple[float, int]] = {}
        """UID -> when it was reported deleted, and the version: a list that began earlier may still name it. An object that lost our label
        is reported deleted as well, and lives on with that version."""
        self._vanished: set[JobKey] = set()
        """Jobs whose RayCluster was reported deleted, and nobody has asked the API server since."""

    def job(self, key: JobKey) -> Body | None:
        found = self._jobs.get(key)
        return found.body if found is not None else None

    def jobs(self) -> tuple[JobKey, ...]:
        return tuple(self._jobs)

    def cluster(self, key: JobKey) -> ClusterRecord | None:
        found = self._clusters.get(key)
        return found.record if found is not None else None

    def pods(self, key: JobKey, job_uid: str) -> tuple[PodView, ...]:
        """By name; pods of an earlier job of the same name are not among them."""
        found = [pod.view for pod in self._pods.get(key, {}).values() if pod.job_uid == job_uid]
        return tuple(sorted(found, key=lambda pod: (pod.name, pod.created_at)))

    def vanished(self, key: JobKey) -> bool:
        """Whether the job's RayCluster left the watch and may live on without our label. True once for each time."""
        if key not in self._vanished:
            return False
        self._vanished.discard(key)
        return True

    def put_job(self, body: Body) -> JobKey | None:
        meta = mapping(body.get("metadata"))
        key, version = JobKey(text(meta.get("namespace")), text(meta.get("name"))), resource_version(body)
        if self._is_late(uid_of(body), version):
            return None
        known = self._jobs.get(key)
        if known is not None and known.version >= version:
            known.at = self._clock()
            return None
        slim = {**body, "metadata": {name: value for name, value in meta.items() if name != "managedFields"}}
        self._jobs[key] = _Job(slim, version, self._clock())
        return key

    def drop_job(self, key: JobKey, uid: str) -> JobKey | None:
        self._remember(uid, NEVER)
        known = self._jobs.get(key)
        if known is None or uid_of(known.body) != uid:
            return None
        del self._jobs[key]
        return key

    def put_cluster(self, body: Body) -> JobKey | None:
        key, record = cluster_key_of(body), cluster_record(body)
        if self._is_late(record.view.uid, record.version):
            return None
        self._vanished.discard(key)
        known = self._clusters.get(key)
        if known is not None and known.record.version >= record.version:
            known.at = self._clock()
            return None
        self._clusters[key] = _Cluster(record, self._clock())
        same = known is not None and replace(known.record, version=record.version) == record
        return None if same else key

    def drop_cluster(self, key: JobKey, uid: str, version: int = NEVER) -> JobKey | None:
        """``version``: of the body that was reported with the deletion; without one it is gone for certain."""
        self._remember(uid, version)
        known = self._clusters.get(key)
        if known is None or known.record.view.uid != uid:
            return None
        del self._clusters[key]
        if version != NEVER:
            self._vanished.add(key)
        return key

    def put_pod(self, body: Body, *, gone: bool = False) -> JobKey | None:
        key, uid, version = key_of(body), uid_of(body), resource_version(body)
        if gone:
            self._remember(uid, version)
        elif self._is_late(uid, version):
            return None
        pods = self._pods.setdefault(key, {})
        known = pods.get(uid)
        if known is not None and known.version >= version and not gone:
            known.at = self._clock()
            return None
        now = self._clock()
        job_uid = text(mapping(mapping(body.get("metadata")).get("labels")).get(names.JOB_UID_LABEL))
        view = pod_view(body, gone=gone)
        pods[uid] = _Pod(view, job_uid, version, now, now if gone else None)
        if gone:
            self._bound(pods)
        return None if known is not None and known.view == view else key

    def settle(self, key: JobKey, used: Iterable[str]) -> None:
        """A stored decision used these gone pods (UIDs): their last bodies may go."""
        pods = self._pods.get(key, {})
        for uid in used:
            pod = pods.get(uid)
            if pod is not None and pod.gone_at is not None:
                del pods[uid]
        if not pods:
            self._pods.pop(key, None)

    def forget(self, key: JobKey) -> None:
        """The job is gone. Its RayCluster and living pods stay until they are reported gone: a new job of that name waits for them."""
        pods = self._pods.get(key, {})
        for uid in [uid for uid, pod in pods.items() if pod.gone_at is not None]:
            del pods[uid]
        if not pods:
            self._pods.pop(key, None)

    def relist_jobs(self, bodies: Iterable[Body], began: float) -> set[JobKey]:
        """Bodies of a list that began at ``began`` by this store's clock. Returns the jobs to look at: changed ones and vanished ones."""
        listed = list(bodies)
        changed = {self.put_job(body) for body in listed}
        uids = {uid_of(body) for body in listed}
        for key, job in list(self._jobs.items()):
            if job.at < began and uid_of(job.body) not in uids:
                changed.add(self.drop_job(key, uid_of(job.body)))
        return {key for key in changed if key is not None}

    def relist_clusters(self, bodies: Iterable[Body], began: float) -> set[JobKey]:
        listed = list(bodies)
        changed = {self.put_cluster(body) for body in listed}
        uids = {uid_of(body) for body in listed}
        for key, cluster in list(self._clusters.items()):
            if cluster.at < began and cluster.record.view.uid not in uids:
                changed.add(self.drop_cluster(key, cluster.record.view.uid, cluster.record.version + 1))
        return {key for key in changed if key is not None}

    def relist_pods(self, bodies: Iterable[Body], began: float) -> set[JobKey]:
        """A pod that vanished unseen keeps its last known body, marked gone."""
        listed = list(bodies)
        changed = {self.put_pod(body) for body in listed}
        uids = {uid_of(body) for body in listed}
        now = self._clock()
        for key, pods in list(self._pods.items()):
            for uid, pod in pods.items():
                if pod.gone_at is None and pod.at < began and uid not in uids:
                    self._remember(uid, pod.version + 1)
                    pods[uid] = replace(pod, view=replace(pod.view, gone=True), gone_at=now)
                    changed.add(key)
        self._prune()
        return {key for key in changed if key is not None}

    def _remember(self, uid: str, version: int) -> None:
        self._dropped[uid] = (self._clock(), version)

    def _is_late(self, uid: str, version: int) -> bool:
        """Whether a body is from before its object was reported deleted. A newer one has come back under our label, or was asked for, and
        the report is forgotten."""
        dropped = self._dropped.get(uid)
        if dropped is None or version >= dropped[1]:
            self._dropped.pop(uid, None)
            return False
        return True

    def _bound(self, pods: dict[str, _Pod]) -> None:
        gone = sorted((pod.gone_at, uid) for uid, pod in pods.items() if pod.gone_at is not None)
        for _, uid in gone[:-GONE_MAX]:
            del pods[uid]

    def _prune(self) -> None:
        now = self._clock()
        self._dropped = {uid: at for uid, at in self._dropped.items() if now - at[0] < GONE_SECONDS}
        for key, pods in list(self._pods.items()):
            for uid in [uid for uid, pod in pods.items() if pod.gone_at is not None and now - pod.gone_at >= GONE_SECONDS]:
                del pods[uid]
            if not pods:
                del self._pods[key]
