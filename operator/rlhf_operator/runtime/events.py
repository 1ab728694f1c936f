"""Kubernetes Events, one a transition, written beside the reconcile: a full event store must not hold up a training."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from rlhf_api import API_VERSION, KIND
from rlhf_operator.clients.kube import EVENTS, Json, KubeClient, KubeError
from rlhf_operator.decide.actions import EventNote
from rlhf_operator.runtime.keys import JobKey

log = logging.getLogger(__name__)

NOTE_BYTES = 1024
"""Limit of events.k8s.io/v1."""
WAITING = 1000
CONTROLLER = "rlhf.dev/operator"


def cut(text: str, size: int) -> str:
    """At most ``size`` bytes of UTF-8, cut on a character border."""
    raw = text.encode("utf-8", "replace")
    return text if len(raw) <= size else raw[: size - 3].decode("utf-8", "ignore") + "…"


def event(key: JobKey, uid: str, note: EventNote, instance: str, now: datetime) -> Json:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": key.namespace, "name": f"{key.name}.{uuid.uuid4().hex[:16]}"},
        "eventTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:128],
        "action": "Reconcile",
        "type": note.type,
        "reason": note.reason,
        "note": cut(note.message, NOTE_BYTES),
        "regarding": {"apiVersion": API_VERSION, "kind": KIND, "namespace": key.namespace, "name": key.name, "uid": uid},
    }


class EventWriter:
    def __init__(self, kube: KubeClient, instance: str, now: Callable[[], datetime], dropped: Callable[[], None]) -> None:
        self._kube, self._instance, self._now, self._dropped = kube, instance, now, dropped
        self._queue: asyncio.Queue[Json] = asyncio.Queue(WAITING)

    def post(self, key: JobKey, uid: str, note: EventNote) -> None:
        try:
            self._queue.put_nowait(event(key, uid, note, self._instance, self._now()))
        except asyncio.QueueFull:
            self._dropped()

    async def run(self) -> None:
        """Writes what was posted, one after the other; runs for ever."""
        while True:
            body = await self._queue.get()
            try:
                await self._kube.create(EVENTS, body)
            except KubeError as error:
                self._dropped()
                if not (error.namespace_terminating or error.not_found):
                    log.warning("event %s of %s not written: %s", body["reason"], body["regarding"]["name"], error)
            finally:
                self._queue.task_done()

    async def flush(self) -> None:
        await self._queue.join()
