"""Performs what a decision asks for. Each action is idempotent, so a repeated one after a crash does no harm."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rlhf_api.spec import RLHFJob
from rlhf_operator import build, names
from rlhf_operator.clients.heads import Head, Heads
from rlhf_operator.clients.jobs import Fault, IdInUse, Refused
from rlhf_operator.clients.kube import (
    CLAIMS,
    CONFIG_MAPS,
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    RAYCLUSTERS,
    RLHFJOBS,
    SECRETS,
    Json,
    Kind,
    KubeClient,
    KubeError,
)
from rlhf_operator.decide.actions import (
    Action,
    DeleteCluster,
    DeleteDisruptionBudget,
    DeleteJob,
    EnsureClaim,
    EnsureCluster,
    EnsureConfig,
    EnsureDisruptionBudget,
    EnsureNetworkPolicy,
    EnsureToken,
    MarkCluster,
    ReleaseWorkers,
    StopSubmission,
    Submit,
    SuspendCluster,
)
from rlhf_operator.decide.observation import Observation
from rlhf_operator.runtime.keys import JobKey
from rlhf_operator.runtime.memory import JobMemory, Read
from rlhf_operator.runtime.pollers import Pollers
from rlhf_operator.runtime.store import Store, uid_of
from rlhf_operator.runtime.views import mapping, owners, text
from rlhf_operator.settings import OperatorSettings

POST_WAIT_SECONDS = 1.0
IDEMPOTENT = (EnsureConfig, EnsureToken, EnsureClaim, EnsureNetworkPolicy, EnsureDisruptionBudget, EnsureCluster, MarkCluster)
"""Actions whose success the next look sees, so that they are not asked for again."""


class ActionError(Exception):
    """``permanent``: the same call cannot succeed by itself soon."""

    def __init__(self, message: str, *, code: int = 0, permanent: bool = False) -> None:
        super().__init__(message)
        self.code, self.permanent = code, permanent


class ActionWaitError(Exception):
    """Not tried now, but after ``seconds``: it failed a moment ago, or its turn has not come."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"next try in {seconds:.1f} s")
        self.seconds = seconds


def backoff(failures: int) -> float:
    """Seconds after the given number of failures in a row: 1, 2, 4 … 60."""
    return float(min(2 ** min(failures - 1, 8), 60))


@dataclass(frozen=True, slots=True)
class Done:
    """``look_again``: the observation changed by what was done, and no watch will say so."""

    look_again: bool = False


class Actor:
    def __init__(
        self,
        kube: KubeClient,
        heads: Heads,
        store: Store,
        pollers: Pollers,
        settings: OperatorSettings,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube, self._heads, self._store, self._pollers = kube, heads, store, pollers
        self._settings, self._now, self._clock = settings, now, clock
        # A head without an agent takes 10 s to say so; half of the workers stay free for everybody else.
        self._posts = asyncio.Semaphore(max(settings.workers // 2, 1))

    async def perform(self, key: JobKey, seen: Observation, memory: JobMemory, action: Action) -> Done:
        """Raises ActionError after it was noted in ``memory``, and ActionWaitError before its next try is due."""
        name = type(action).__name__
        wait = memory.next_try.get(action, 0.0) - self._clock()
        if wait > 0:
            raise ActionWaitError(wait)
        try:
            done = await self._perform(key, seen, memory, action)
        except KubeError as error:
            memory.namespace_terminating = memory.namespace_terminating or error.namespace_terminating
            result = memory.note(name, self._now(), code=error.status, message=error.message, permanent=error.permanent)
            memory.next_try[action] = self._clock() + max(backoff(result.failures), error.retry_after or 0.0)
            raise ActionError(str(error), code=error.status, permanent=error.permanent) from error
        except ActionError as failed:
            result = memory.note(name, self._now(), code=failed.code, message=str(failed), permanent=failed.permanent)
            memory.next_try[action] = self._clock() + backoff(result.failures)
            raise
        memory.succeeded(name, self._now())
        memory.next_try.pop(action, None)
        if isinstance(action, IDEMPOTENT):
            # Asked for again at once means that what was done is not seen. It then waits as a failure does, whatever the cause.
            times = memory.repeated[action] = memory.repeated.get(action, 0) + 1
            if times > 1:
                memory.next_try[action] = self._clock() + backoff(times - 1)
        return done

    async def _perform(self, key: JobKey, seen: Observation, memory: JobMemory, action: Action) -> Done:
        match action:
            case EnsureCluster(avoid_nodes):
                return await self._cluster(key, self._spec(seen), avoid_nodes)
            case EnsureConfig() | EnsureToken() | EnsureClaim() | EnsureNetworkPolicy() | EnsureDisruptionBudget():
                return await self._ensure(self._spec(seen), memory, action)
            case MarkCluster(uid):
                return await self._mark(key, self._spec(seen), uid)
            case SuspendCluster(uid, suspend):
                patch = {"metadata": {"uid": uid}, "spec": {"suspend": suspend}}
                self._store.put_cluster(await self._kube.merge_patch(RAYCLUSTERS, key.namespace, names.ray_cluster(key.name), patch))
                return Done()
            case ReleaseWorkers(uid):
                return await self._release(key, uid)
            case DeleteCluster(uid):
                if not await self._kube.delete(RAYCLUSTERS, key.namespace, names.ray_cluster(key.name), uid=uid):
                    return Done(look_again=self._store.drop_cluster(key, uid) is not None)
                return Done()
            case DeleteDisruptionBudget(uid):
                await self._kube.delete(DISRUPTION_BUDGETS, key.namespace, names.disruption_budget(key.name), uid=uid)
                memory.budget = Read("", self._clock())
                return Done()
            case Submit(attempt, submission_id):
                return await self._submit(key, seen, attempt, submission_id)
            case StopSubmission(submission_id):
                self._kube.may_write()
                fault = await self._head(key, seen).stop(submission_id)
                if fault is not None:
                    raise ActionError(f"stop of {submission_id}: {fault.message}", code=fault.status)
                self._pollers.nudge(key)
                return Done()
            case DeleteJob():
                await self._kube.delete(RLHFJOBS, key.namespace, key.name, uid=seen.job.uid)
                return Done()

    async def _ensure(self, job: RLHFJob, memory: JobMemory, action: Action) -> Done:
        """Children that no watch reports: what was made is noted, so that the next look sees it."""
        at = self._clock()
        match action:
            case EnsureConfig():
                body = build.config_map(job)
                await self._create(CONFIG_MAPS, body, job)
                memory.config = Read(body["data"][names.CONFIG_KEY], at)
            case EnsureToken():
                # The operator may not read Secrets; whose an existing one is, the ConfigMap's check has told.
                await self._create(SECRETS, build.token_secret(job, self._settings.token_key), None)
                memory.token = Read(True, at)
            case EnsureClaim():
                claim = build.claim(job)
                if claim is not None:
                    await self._create(CLAIMS, claim, None)
                memory.claim = None
            case EnsureNetworkPolicy():
                policy = build.network_policy(job, self._settings)
                if policy is not None:
                    await self._create(NETWORK_POLICIES, policy, job)
                memory.policy = Read(True, at)
            case EnsureDisruptionBudget():
                budget = build.disruption_budget(job, self._settings)
                made = await self._create(DISRUPTION_BUDGETS, budget, job) if budget is not None else None
                memory.budget = Read(uid_of(made), at) if made is not None else None
        return Done(look_again=True)

    async def _create(self, kind: Kind, body: Json, job: RLHFJob | None) -> Json | None:
        """One that exists is success where it is ``job``'s own, or where ``job`` is None."""
        try:
            return await self._kube.create(kind, body)
        except KubeError as error:
            if not error.already_exists:
                raise
        if job is None:
            return None
        meta = body["metadata"]
        found = await self._kube.find(kind, meta["namespace"], meta["name"])
        if found is None:
            raise ActionError(f"{kind} {meta['name']} was just deleted; it is made again")
        if job.metadata.uid not in owners(found):
            raise _foreign(kind, found)
        return found

    async def _cluster(self, key: JobKey, job: RLHFJob, avoid_nodes: tuple[str, ...]) -> Done:
        body = build.ray_cluster(job, self._settings, avoid_nodes)
        if isinstance(body, build.Refused):
            raise ActionError(str(body), code=422, permanent=True)
        try:
            await self._kube.create(RAYCLUSTERS, body, dry_run=True)
        except KubeError as error:
            if not error.already_exists:
                raise
        made = await self._create(RAYCLUSTERS, body, job)
        if made is not None:
            self._store.put_cluster(made)
        return Done(look_again=True)

    async def _mark(self, key: JobKey, job: RLHFJob, uid: str) -> Done:
        """Labels and ownerReference as they were built; what others added stays."""
        found = await self._kube.find(RAYCLUSTERS, key.namespace, names.ray_cluster(key.name))
        if found is None or uid_of(found) != uid:
            return Done(look_again=self._store.drop_cluster(key, uid) is not None)
        body = build.ray_cluster(job, self._settings)
        if isinstance(body, build.Refused):
            raise ActionError(str(body), code=422, permanent=True)
        marks: Json = {"uid": uid, "labels": body["metadata"]["labels"]}
        if job.metadata.uid not in owners(found):
            # A merge patch replaces the list as a whole, so the version guards it.
            marks["resourceVersion"] = found["metadata"]["resourceVersion"]
            marks["ownerReferences"] = [*(found["metadata"].get("ownerReferences") or []), *body["metadata"]["ownerReferences"]]
        patched = await self._kube.merge_patch(RAYCLUSTERS, key.namespace, names.ray_cluster(key.name), {"metadata": marks})
        self._store.put_cluster(patched)
        return Done(look_again=True)

    async def _release(self, key: JobKey, uid: str) -> Done:
        found = await self._kube.find(RAYCLUSTERS, key.namespace, names.ray_cluster(key.name))
        if found is None or text(mapping(found.get("metadata")).get("uid")) != uid:
            return Done()
        groups = mapping(found.get("spec")).get("workerGroupSpecs") or []
        if all(group.get("replicas") == 0 and group.get("minReplicas") == 0 for group in groups):
            return Done()
        # A merge patch replaces the list as a whole, so the version guards it.
        patch = {
            "metadata": {"uid": uid, "resourceVersion": found["metadata"]["resourceVersion"]},
            "spec": {"workerGroupSpecs": [{**group, "replicas": 0, "minReplicas": 0} for group in groups]},
        }
        self._store.put_cluster(await self._kube.merge_patch(RAYCLUSTERS, key.namespace, names.ray_cluster(key.name), patch))
        return Done()

    async def _submit(self, key: JobKey, seen: Observation, attempt: int, submission_id: str) -> Done:
        head = self._head(key, seen)
        metadata = {names.JOB_UID_METADATA: seen.job.uid, names.ATTEMPT_METADATA: str(attempt)}
        if self._posts.locked():
            raise ActionWaitError(POST_WAIT_SECONDS)
        async with self._posts:
            self._kube.may_write()
            outcome = await head.submit(submission_id, names.entrypoint(attempt), metadata)
        if isinstance(outcome, Refused):
            raise ActionError(outcome.message, code=outcome.status, permanent=not outcome.retry)
        if isinstance(outcome, IdInUse):
            found = await head.look(submission_id)
            if isinstance(found, Fault):
                raise ActionError(f"{submission_id} exists, and whose it is can't be read: {found.message}", code=found.status)
            if dict(found.metadata) != metadata:
                raise ActionError(
                    f"submission {submission_id} exists and belongs to job UID {found.metadata.get(names.JOB_UID_METADATA, 'none')}, "
                    f"attempt {found.metadata.get(names.ATTEMPT_METADATA, 'none')}",
                    code=409,
                    permanent=True,
                )
        self._pollers.nudge(key)
        return Done()

    def _head(self, key: JobKey, seen: Observation) -> Head:
        service = seen.cluster.head_service if seen.cluster is not None else ""
        return self._heads.at(key.namespace, service or names.head_service(key.name), seen.job.uid)

    def _spec(self, seen: Observation) -> RLHFJob:
        if seen.job.spec is None:
            raise ActionError("the spec breaks rules of the API; nothing can be made from it", code=422, permanent=True)
        return seen.job.spec


def _foreign(kind: Kind, found: Mapping[str, Any]) -> ActionError:
    """A leftover of an earlier job goes with it, unless somebody had it stay; an object of somebody else does not."""
    meta = mapping(found.get("metadata"))
    labelled = mapping(meta.get("labels")).get(names.JOB_UID_LABEL)
    leftover = bool(meta.get("deletionTimestamp")) or bool(labelled)
    whose = f"an earlier job of this name (UID {labelled})" if labelled else "somebody else"
    words = f"{kind} {meta.get('name')} exists and belongs to {whose}"
    if meta.get("deletionTimestamp"):
        words += "; it is being deleted"
    elif not owners(found):
        words += f"; nothing removes it, so if it is not needed: kubectl -n {meta.get('namespace')} delete {kind} {meta.get('name')}"
    return ActionError(words, code=409, permanent=not leftover)
