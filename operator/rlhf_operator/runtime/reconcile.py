"""One look at one job: observe, decide, act, store.

The status of an attempt is stored before the attempt is submitted. Where it could not be stored, nothing that needs it is done.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from rlhf_api.reasons import Reason
from rlhf_api.status import RLHFJobStatus
from rlhf_operator import names
from rlhf_operator.clients.heads import Heads
from rlhf_operator.clients.kube import RLHFJOBS, Json, KubeClient, KubeError
from rlhf_operator.decide.actions import Action, Decision, EventNote
from rlhf_operator.decide.observation import Observation
from rlhf_operator.decide.settings import DecideSettings
from rlhf_operator.decide.texts import EVENT_MAX, cut
from rlhf_operator.runtime.act import ActionError, ActionWaitError, Actor, backoff
from rlhf_operator.runtime.events import EventWriter
from rlhf_operator.runtime.jobview import stored_status
from rlhf_operator.runtime.keys import JobKey
from rlhf_operator.runtime.memory import Memories
from rlhf_operator.runtime.metrics import Metrics
from rlhf_operator.runtime.observe import FINISHED, Observer, Seen
from rlhf_operator.runtime.pollers import Pollers
from rlhf_operator.runtime.status import changes, refused, small, without
from rlhf_operator.runtime.store import Body, Store, uid_of

log = logging.getLogger(__name__)

STATUS_RETRY_MAX_SECONDS = 15.0
"""After an outage of the API server no status is older than this for long."""


@dataclass(frozen=True, slots=True)
class Next:
    """When to look again; None = when something happens."""

    seconds: float | None = None


@dataclass(slots=True)
class _Stored:
    """``ok``: the stored status is the decided one. ``wait``: progress alone, written when its time has come."""

    ok: bool
    wait: float | None = None
    next: Next | None = None


class Reconciler:
    def __init__(
        self,
        *,
        kube: KubeClient,
        store: Store,
        memories: Memories,
        observer: Observer,
        actor: Actor,
        pollers: Pollers,
        heads: Heads,
        events: EventWriter,
        metrics: Metrics,
        decide: Callable[[Observation, datetime, DecideSettings], Decision],
        settings: DecideSettings,
        status_seconds: float,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube, self._store, self._memories, self._observer, self._actor = kube, store, memories, observer, actor
        self._pollers, self._heads, self._events, self._metrics = pollers, heads, events, metrics
        self._decide, self._settings, self._status_seconds, self._now, self._clock = decide, settings, status_seconds, now, clock
        self._stopping: set[asyncio.Task[None]] = set()

    async def reconcile(self, key: JobKey) -> Next:
        seen = await self._observer.observe(key)
        if seen is None:
            self.forget(key)
            return Next()
        observation, memory = seen.observation, seen.memory
        decision = self._decide(observation, self._now(), self._settings)
        memory.keep_only(decision.before_status + decision.after_status)
        delays = [decision.requeue_after_seconds]
        again, delay = await self._perform(key, seen, decision.before_status)
        acted = delay is None
        delays.append(delay)
        stored = await self._store_status(key, seen, decision)
        if stored.next is not None:
            return stored.next
        delays.append(stored.wait)
        self._pollers.follow(key, observation.job.uid, decision.watch)
        if stored.ok:
            for note in decision.events:
                self._events.post(key, observation.job.uid, note)
            self._store.settle(key, [pod.uid for pod in observation.pods if pod.gone])
            if acted:
                more, delay = await self._perform(key, seen, decision.after_status)
                again = again or more
                delays.append(delay)
        self._metrics.job(key, decision.status, observation.head.progress if observation.head is not None else None)
        if again:
            return Next(0.0)
        return Next(min((each for each in delays if each is not None), default=None))

    async def _perform(self, key: JobKey, seen: Seen, actions: tuple[Action, ...]) -> tuple[bool, float | None]:
        """Whether to look again at once, and the wait for the first action that failed; those after it were not tried."""
        again = False
        for action in actions:
            name = type(action).__name__
            try:
                done = await self._actor.perform(key, seen.observation, seen.memory, action)
            except ActionWaitError as waits:
                return again, waits.seconds
            except ActionError as failed:
                self._metrics.api_errors.labels(name).inc()
                result = seen.memory.results[name]
                if result.failures == 1:
                    log.warning("%s failed: %s", name, failed, extra={"job": str(key), "code": failed.code, "permanent": failed.permanent})
                # The next decision must see what happened, so the first failure is looked at without delay.
                wait = max(seen.memory.next_try[action] - self._clock(), 0.0)
                return again or result.failures == 1, wait
            log.info("%s", name, extra={"job": str(key), "action": str(action)})
            again = again or done.look_again
        return again, None

    async def _store_status(self, key: JobKey, seen: Seen, decision: Decision) -> _Stored:
        observation, memory = seen.observation, seen.memory
        patch = changes(observation.job.status, decision.status)
        if not patch:
            return _Stored(True)
        pause = memory.status_next_try - self._clock()
        if pause > 0:
            return _Stored(False, pause)
        urgent = decision.urgent or bool(decision.after_status) or bool(decision.events)
        if not urgent and memory.status_written_at is not None:
            wait = memory.status_written_at + self._status_seconds - self._clock()
            if wait > 0:
                return _Stored(False, wait)
        try:
            await self._write(key, seen, patch, "urgent" if urgent else "progress")
        except KubeError as error:
            if error.too_large:
                return await self._store_small(key, seen, decision.status, error)
            if error.invalid:
                return await self._store_refused(key, seen, decision.status, error)
            return await self._not_stored(key, seen, error)
        self._metrics.transition(observation.job.status, decision.status, observation.job.created_at, self._now())
        return _Stored(True)

    async def _store_small(self, key: JobKey, seen: Seen, wanted: RLHFJobStatus, cause: KubeError) -> _Stored:
        log.warning("status too large, a smaller one is written: %s", cause.message, extra={"job": str(key)})
        try:
            await self._write(key, seen, small(seen.observation.job.status, wanted), "small")
        except KubeError as error:
            return await self._not_stored(key, seen, error)
        return _Stored(True)

    async def _store_refused(self, key: JobKey, seen: Seen, wanted: RLHFJobStatus, cause: KubeError) -> _Stored:
        """Without the parts that the server refuses where the job can do without them; else what it says stands in the status."""
        memory, stored = seen.memory, seen.observation.job.status
        before = memory.status_failures
        rest = without(stored, wanted, cause.fields)
        try:
            if rest is not None:
                if before == 0:
                    log.warning("status refused, written without %s: %s", ", ".join(cause.fields), cause.message, extra={"job": str(key)})
                patch = changes(stored, rest)
                if patch:
                    await self._write(key, seen, patch, "partial")
                    self._metrics.transition(stored, rest, seen.observation.job.created_at, self._now())
                memory.status_written_at = self._clock()
                return _Stored(True)
            patch = changes(stored, refused(stored, wanted, cause.message, self._now()))
            if patch:
                await self._write(key, seen, patch, "refused")
        except KubeError as error:
            if error.not_found or error.conflict:
                return await self._not_stored(key, seen, error)
        if before == 0:
            words = cut(f"the API server refuses the status of this job: {cause.message}", EVENT_MAX)
            self._events.post(key, seen.observation.job.uid, EventNote("Warning", Reason.API_ERROR, words))
        memory.status_failures = before
        return await self._not_stored(key, seen, cause)

    async def _write(self, key: JobKey, seen: Seen, patch: Json, kind: str) -> None:
        """The version is checked by the API server: a status decided from an old body is never stored."""
        guard = {"uid": seen.observation.job.uid, "resourceVersion": seen.resource_version}
        body = await self._kube.merge_patch(RLHFJOBS, key.namespace, key.name, {"metadata": guard, "status": patch}, subresource="status")
        self._store.put_job(body)
        seen.memory.status_written_at, seen.memory.status_failures = self._clock(), 0
        self._metrics.status_writes.labels(kind).inc()

    async def _not_stored(self, key: JobKey, seen: Seen, error: KubeError) -> _Stored:
        if error.not_found:
            self._store.drop_job(key, seen.observation.job.uid)
            return _Stored(False, next=Next(0.0))
        if error.conflict:
            fresh = await self._kube.find(RLHFJOBS, key.namespace, key.name)
            if fresh is None or uid_of(fresh) != seen.observation.job.uid:
                self._store.drop_job(key, seen.observation.job.uid)
            if fresh is not None:
                self._store.put_job(fresh)
            return _Stored(False, next=Next(0.0))
        memory = seen.memory
        memory.status_failures += 1
        wait = max(min(backoff(memory.status_failures), STATUS_RETRY_MAX_SECONDS), error.retry_after or 0.0)
        # Whatever else happens to the job meanwhile, an API server in trouble is not asked more often.
        memory.status_next_try = self._clock() + wait
        self._metrics.api_errors.labels("Status").inc()
        if memory.status_failures == 1:
            log.warning("status not stored: %s", error, extra={"job": str(key)})
        return _Stored(False, next=Next(wait))

    def forget(self, key: JobKey) -> None:
        """The job is gone; nothing of it stays in this process."""
        self._pollers.forget(key)
        self._memories.forget(key)
        self._metrics.forget(key)
        self._store.forget(key)

    def deleted(self, key: JobKey, body: Body) -> None:
        """Asks a driver to save and end while its pods still have their grace period. Nothing waits for the answer."""
        status = stored_status(body)
        run = status.run
        if run is None or run.submission_id is None or status.phase in FINISHED:
            return
        record = self._store.cluster(key)
        service = (record.view.head_service if record is not None else "") or names.head_service(key.name)
        head, submission_id = self._heads.at(key.namespace, service, uid_of(body)), run.submission_id

        async def stop() -> None:
            fault = await head.stop(submission_id)
            log.info("deleted job's driver asked to stop: %s", fault.message if fault else "taken", extra={"job": str(key)})

        task = asyncio.create_task(stop(), name=f"stop {key}")
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
