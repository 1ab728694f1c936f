"""kopf, and all that is asked of it: log in, list, watch, survive 410 and time-outs, and hand each event on.

Only ``on.event`` handlers are registered: they store nothing on the objects, need no finalizer, and their order does not matter,
because each event only says which job to look at.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import kopf

from rlhf_operator import names
from rlhf_operator.clients.connection import Connection
from rlhf_operator.runtime.health import Watches

log = logging.getLogger(__name__)

Seen = Callable[[str | None, Mapping[str, Any]], None]
"""(type, object): type is ADDED, MODIFIED, DELETED, or None for an object of the first list."""

PREFIX = "rlhf.dev"
STOP_SECONDS = 10.0

FieldSpec = str | tuple[str, ...] | list[str] | None


class NothingKept(kopf.DiffBaseStorage):
    """What kopf would compare an object with later. Nobody asks for differences here, and to have them kopf copies each object it sees."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[FieldSpec] | None = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Nothing, and so no annotation either."""


def settings() -> kopf.OperatorSettings:
    """kopf 1.45.2; each value that differs from its default, and why."""
    found = kopf.OperatorSettings()
    # With kopf's own names a second kopf operator in the cluster would fight over the same keys.
    found.persistence.finalizer = f"{PREFIX}/operator"
    found.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=PREFIX)
    found.persistence.diffbase_storage = NothingKept()
    # A peering object named "default" anywhere would pause us; the Lease decides who acts.
    found.peering.standalone = True
    found.posting.enabled = False
    found.networking.request_timeout = 30.0
    found.networking.connect_timeout = 10.0
    # A whole number: kopf writes it into the query as it stands, and the API server refuses "300.0".
    found.watching.server_timeout = 300
    found.watching.client_timeout = 330.0
    found.watching.connect_timeout = 10.0
    # Every pod of the cluster would be streamed to us otherwise.
    found.watching.label_selectors["v1", "pods"] = names.JOB_LABEL
    found.watching.label_selectors["ray.io", "v1", "rayclusters"] = names.JOB_LABEL
    # A worker of kopf holds one object for as long as it is idle: with a limit, a list of thousands would trickle in.
    found.queueing.worker_limit = None
    found.queueing.idle_timeout = 0.5
    found.execution.executor = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="kopf")
    # Looking for new kinds needs a ClusterRole, and kopf then reads the API server's discovery once, at the moment a kind changes: while
    # that is a moment behind, it drops the kind and never looks again. Without it, the watch of a kind that is gone ends the process.
    found.scanning.disabled = True
    found.process.ultimate_exiting_timeout = None
    return found


def registry(connection: Connection, watches: Watches, job: Seen, cluster: Seen, pod: Seen) -> kopf.OperatorRegistry:
    found = kopf.OperatorRegistry()

    @kopf.on.login(registry=found)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(
            server=connection.server,
            default_namespace=connection.namespace,
            aiohttp_session=connection.session(watches.middleware),
        )

    def handler(seen: Seen) -> Callable[..., Any]:
        async def on_event(event: Mapping[str, Any], **_: Any) -> None:
            seen(event["type"], event["object"])

        return on_event

    kopf.on.event("rlhf.dev", "v1alpha1", "rlhfjobs", registry=found, id="job")(handler(job))
    kopf.on.event("ray.io", "v1", "rayclusters", registry=found, id="cluster")(handler(cluster))
    kopf.on.event("v1", "pods", registry=found, id="pod")(handler(pod))
    return found


class WatchEndedError(Exception):
    """kopf no longer watches everything; only a new process does again."""


class Watching:
    """kopf as one running thing. Its tasks are told apart from ours, because kopf ends all that it does not know when it stops."""

    def __init__(self, found: kopf.OperatorRegistry, namespaces: tuple[str, ...]) -> None:
        self._registry, self._namespaces = found, namespaces
        self._stop = asyncio.Event()

    async def run(self, ready: Callable[[], None]) -> None:
        """Until ``stop``. ``ready`` is called once kopf has taken the process's signals, so that they can be taken back.

        Raises WatchEndedError as soon as any part of kopf ends: kopf itself then waits for its other parts, sometimes for ever.
        """
        ours = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=self._registry,
            settings=settings(),
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=self._stop,
        )
        ready()
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not self._stop.is_set():
            raise WatchEndedError("; ".join(f"{task.get_name()}: {task.exception()}" for task in done))
        await kopf.run_tasks(tasks, ignored=ours)

    async def stop(self, running: asyncio.Task[None]) -> None:
        """Ends ``running``, the task of ``run``, in bounded time."""
        # kopf closes its session under requests of its own, then reports and repeats them: nobody has to know.
        logging.getLogger("kopf").setLevel(logging.CRITICAL)
        # A search for kinds that is cut short leaves tasks whose errors nobody takes; Python would report each.
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: log.debug("at the stop: %s", context.get("message")))
        self._stop.set()
        await asyncio.wait({running}, timeout=STOP_SECONDS)
        running.cancel()
        await asyncio.wait({running}, timeout=1.0)
