"""The operator as one process: who talks to whom, what starts when, and what ends it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any

import aiohttp
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from rlhf_operator import build
from rlhf_operator.clients.connection import Connection
from rlhf_operator.clients.heads import Heads
from rlhf_operator.clients.kube import PODS, RAYCLUSTERS, RLHFJOBS, TOTAL_SECONDS, KubeClient, KubeError
from rlhf_operator.decide.actions import EventNote
from rlhf_operator.decide.policies import decide
from rlhf_operator.decide.settings import DecideSettings
from rlhf_operator.runtime.act import Actor
from rlhf_operator.runtime.election import Election, LeaseLostError, Times
from rlhf_operator.runtime.events import EventWriter
from rlhf_operator.runtime.health import Vitals, Watches, application
from rlhf_operator.runtime.keys import JobKey
from rlhf_operator.runtime.memory import Memories
from rlhf_operator.runtime.metrics import Metrics
from rlhf_operator.runtime.observe import Observer
from rlhf_operator.runtime.pollers import Pollers
from rlhf_operator.runtime.queue import WorkQueue
from rlhf_operator.runtime.reconcile import Reconciler
from rlhf_operator.runtime.relist import Relister, has_auth_options, served
from rlhf_operator.runtime.store import Store, cluster_key_of, uid_of
from rlhf_operator.runtime.views import resource_version
from rlhf_operator.runtime.watching import WatchEndedError, Watching, registry
from rlhf_operator.runtime.workers import Workers
from rlhf_operator.settings import OperatorSettings

log = logging.getLogger(__name__)

CHECK_SECONDS = 5.0
DRAIN_SECONDS = 10.0
"""How long a reconcile that runs when the process is stopped may take to end."""
RELIST_AFTER_SECONDS = 2.0
"""After a watch began anew: several do at the same time."""


class UnhealthyError(Exception):
    """The process can't recover by itself; a new one can."""


def utc_now() -> datetime:
    return datetime.now(UTC)


class Operator:
    def __init__(
        self,
        settings: OperatorSettings,
        connection: Connection,
        lost: Callable[[LeaseLostError], None] = lambda lost: None,
    ) -> None:
        """``lost`` is called at once when another replica may have taken over; it should end the process."""
        self._lost = lost
        self._settings, self._connection = settings, connection
        self._namespaces = settings.watch_namespaces
        self._identity = f"{settings.pod_name}-{uuid.uuid4().hex[:8]}"
        self._stop = asyncio.Event()
        self._relist = asyncio.Event()
        self._store, self._metrics, self._memories = Store(), Metrics(), Memories()
        self._queue = WorkQueue()
        self._watches = Watches(listed=lambda path: self._relist.set())
        self._acting = False
        self._close_watches: Callable[[], Awaitable[None]] | None = None
        self._vitals = Vitals(self._watches, self._queue.oldest_age, lambda: self._acting)

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        """Until ``stop`` or a signal. Raises LeaseLostError, UnhealthyError, or what a part of it raised."""
        self._take_signals()
        settings = self._settings
        async with contextlib.AsyncExitStack() as stack:
            api = await stack.enter_async_context(self._connection.session())
            direct = await stack.enter_async_context(
                aiohttp.ClientSession(headers={"User-Agent": "rlhf-operator"}, cookie_jar=aiohttp.DummyCookieJar())
            )
            await stack.enter_async_context(_serving(application(self._vitals), settings.health_port))
            await stack.enter_async_context(_serving(self._metrics_application(), settings.metrics_port))
            plain = KubeClient(api, self._connection.server, answered=self._watches.answered)
            times = Times(settings.lease_duration_seconds, settings.lease_renew_seconds, settings.lease_retry_seconds)
            election = Election(plain, settings.namespace, settings.release, self._identity, times=times)
            guard = election.seconds_left if settings.leader_election else (lambda: TOTAL_SECONDS)
            kube = KubeClient(api, self._connection.server, guard=guard, answered=self._watches.answered)
            heads = Heads(settings, direct, api, self._connection.server, lambda uid: build.token_of(uid, settings.token_key))
            background = [asyncio.create_task(self._vitals.tick(), name="event loop lag"), asyncio.create_task(self._check(), name="check")]
            try:
                if settings.leader_election:
                    if not await self._until_stopped(election.acquire(), background):
                        return
                    background.append(asyncio.create_task(election.hold(), name="lease"))
                if await self._until_stopped(self._wait_for_api(kube), background):
                    await self._lead(kube, heads, background)
                if settings.leader_election:
                    # Nobody is left who writes, so another replica may begin at once.
                    background.pop().cancel()
                    await election.release()
            finally:
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
                # Last, and in this very task: kopf waits for every task that is younger than its own.
                if self._close_watches is not None:
                    await self._close_watches()
                log.info("operator stopped")

    async def _lead(self, kube: KubeClient, heads: Heads, background: list[asyncio.Task[None]]) -> None:
        """Until ``stop``; raises what ended it otherwise."""
        settings = self._settings
        settings = dataclasses.replace(settings, ray_auth_options=await has_auth_options(kube))
        self._acting = True
        self._metrics.leading.set(1)
        pollers = Pollers(
            lambda key, uid, service: heads.at(key.namespace, service, uid),
            self._queue.add,
            utc_now,
            concurrency=settings.poll_concurrency,
            running_seconds=settings.poll_seconds,
        )
        events = EventWriter(kube, self._identity, utc_now, self._metrics.events_dropped.inc)
        reconciler = Reconciler(
            kube=kube,
            store=self._store,
            memories=self._memories,
            observer=Observer(kube, self._store, self._memories, pollers, settings),
            actor=Actor(kube, heads, self._store, pollers, settings, utc_now),
            pollers=pollers,
            heads=heads,
            events=events,
            metrics=self._metrics,
            decide=decide,
            settings=DecideSettings(cluster_domain=settings.cluster_domain, queue_words=settings.kueue),
            status_seconds=settings.status_seconds,
            now=utc_now,
        )
        relister = Relister(kube, self._store, self._namespaces)
        workers = Workers(
            self._queue,
            reconciler.reconcile,
            lambda key, note: self._report(events, key, note),
            self._vitals,
            self._metrics,
            settings.workers,
        )
        handlers = registry(self._connection, self._watches, self._job_seen(reconciler), self._cluster_seen, self._pod_seen)
        watching = Watching(handlers, self._namespaces)
        self._enqueue(await relister.run())
        await self._expect_watches(kube)
        parts = {
            asyncio.create_task(events.run(), name="events"),
            asyncio.create_task(self._relisting(relister), name="relist"),
        }
        if not self._watches.expects(RAYCLUSTERS.path((self._namespaces or (None,))[0])):
            parts.add(asyncio.create_task(self._await_kuberay(kube), name="KubeRay"))
        working = asyncio.create_task(workers.run(), name="workers")
        kopf = asyncio.create_task(watching.run(self._take_signals), name="kopf")
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        scope = list(self._namespaces) or "all"
        log.info("operator acts", extra={"identity": self._identity, "jobs": len(self._store.jobs()), "namespaces": scope})
        try:
            await self._watch_over({*parts, *background, working, kopf}, stopping)
        finally:
            self._acting = False
            self._metrics.leading.set(0)
            self._queue.close()
            await asyncio.wait({working}, timeout=DRAIN_SECONDS)
            await pollers.stop()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(events.flush(), 2.0)
            for task in (*parts, working, stopping):
                task.cancel()
            await asyncio.gather(*parts, working, stopping, return_exceptions=True)
            self._close_watches = functools.partial(watching.stop, kopf)

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)

    async def _watch_over(self, parts: set[asyncio.Task[None]], stopping: asyncio.Task[bool]) -> None:
        """Until the process is told to stop. Raises what a part raised: none of them ends by itself."""
        done, _ = await asyncio.wait({*parts, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopping}:
            self._result(task)
            raise UnhealthyError(f"{task.get_name()} ended by itself")

    def _result(self, task: asyncio.Task[Any]) -> None:
        """Raises what ``task`` raised; a lost lease is told before anything is cleaned up."""
        fault = task.exception()
        if isinstance(fault, LeaseLostError):
            self._lost(fault)
        if isinstance(fault, WatchEndedError):
            raise UnhealthyError(f"a watch ended: {fault}") from fault
        if fault is not None:
            raise fault

    async def _until_stopped(self, work: Coroutine[Any, Any, None], background: list[asyncio.Task[None]]) -> bool:
        """Whether ``work`` was done before the process was told to stop. Raises what ended a task of ``background``."""
        working, stopping = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            done, _ = await asyncio.wait({working, stopping, *background}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                self._result(task)
            return working in done
        finally:
            for each in (working, stopping):
                each.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    async def _wait_for_api(self, kube: KubeClient) -> None:
        """Until the API server answers and knows RLHFJobs."""
        said = ""
        while True:
            try:
                if await served(kube, RLHFJOBS):
                    return
                fault = "the CRD rlhfjobs.rlhf.dev is not installed"
            except KubeError as error:
                fault = str(error)
            if fault != said:
                log.warning("waiting for the API: %s", fault)
                said = fault
            await asyncio.sleep(CHECK_SECONDS)

    async def _expect_watches(self, kube: KubeClient) -> None:
        for kind in (RLHFJOBS, RAYCLUSTERS, PODS):
            if await served(kube, kind):
                for namespace in self._namespaces or (None,):
                    self._watches.expect(kind.path(namespace))
            else:
                log.warning("%s is not installed: no job can get pods until it is", kind)

    async def _await_kuberay(self, kube: KubeClient) -> None:
        """Leaves when KubeRay is installed after the start: a watch of it must be there from the beginning."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            with contextlib.suppress(KubeError):
                if await served(kube, RAYCLUSTERS):
                    raise UnhealthyError(f"{RAYCLUSTERS} was installed after the start: a new process watches it from the beginning")

    async def _relisting(self, relister: Relister) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._relist.wait(), self._settings.resync_seconds)
                await asyncio.sleep(RELIST_AFTER_SECONDS)
            self._relist.clear()
            try:
                self._enqueue(await relister.run())
            except KubeError as error:
                log.warning("resync failed, tried again later: %s", error)

    async def _check(self) -> None:
        """Gauges, and the end of a process that went blind or got stuck, also where no probe asks."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            faults = self._vitals.not_live()
            if faults:
                raise UnhealthyError("; ".join(faults))

    def _enqueue(self, keys: set[JobKey]) -> None:
        for key in keys:
            self._queue.add(key)

    def _report(self, events: EventWriter, key: JobKey, note: EventNote) -> None:
        body = self._store.job(key)
        if body is not None:
            events.post(key, uid_of(body), note)

    def _job_seen(self, reconciler: Reconciler) -> Any:
        def seen(kind: str | None, body: Mapping[str, Any]) -> None:
            meta = body["metadata"]
            key = JobKey(meta["namespace"], meta["name"])
            if kind == "DELETED":
                if self._store.drop_job(key, meta["uid"]) is not None:
                    reconciler.deleted(key, body)
                    self._queue.add(key)
            elif self._store.put_job(body) is not None:
                self._queue.add(key)

        return seen

    def _cluster_seen(self, kind: str | None, body: Mapping[str, Any]) -> None:
        if kind == "DELETED":
            changed = self._store.drop_cluster(cluster_key_of(body), uid_of(body), resource_version(body))
        else:
            changed = self._store.put_cluster(body)
        if changed is not None:
            self._queue.add(changed)

    def _pod_seen(self, kind: str | None, body: Mapping[str, Any]) -> None:
        changed = self._store.put_pod(body, gone=kind == "DELETED")
        if changed is not None:
            self._queue.add(changed)

    def _metrics_application(self) -> web.Application:
        async def answer(request: web.Request) -> web.StreamResponse:
            metrics, vitals = self._metrics, self._vitals
            metrics.queue_depth.set(len(self._queue))
            metrics.queue_age.set(self._queue.oldest_age())
            metrics.watch_age.set(self._watches.age())
            metrics.loop_lag.set(vitals.lag)
            metrics.collect_phases()
            return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

        app = web.Application()
        app.router.add_get("/metrics", answer)
        return app


@contextlib.asynccontextmanager
async def _serving(app: web.Application, port: int) -> AsyncIterator[None]:
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, None, port).start()
        yield
    finally:
        await runner.cleanup()
