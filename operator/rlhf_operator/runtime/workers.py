"""A fixed number of workers take jobs from the queue. A fault in one job costs that job a back-off and nobody else anything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rlhf_api.reasons import Reason
from rlhf_operator.decide.actions import EventNote
from rlhf_operator.runtime.election import LeaseLostError
from rlhf_operator.runtime.health import Vitals
from rlhf_operator.runtime.keys import JobKey
from rlhf_operator.runtime.metrics import Metrics
from rlhf_operator.runtime.queue import QueueClosedError, WorkQueue
from rlhf_operator.runtime.reconcile import Next

log = logging.getLogger(__name__)


class Workers:
    def __init__(
        self,
        queue: WorkQueue,
        reconcile: Callable[[JobKey], Awaitable[Next]],
        report: Callable[[JobKey, EventNote], None],
        vitals: Vitals,
        metrics: Metrics,
        count: int,
    ) -> None:
        self._queue, self._reconcile, self._report = queue, reconcile, report
        self._vitals, self._metrics, self._count = vitals, metrics, count
        self._known_faults: dict[JobKey, str] = {}

    async def run(self) -> None:
        """Until the queue is closed. Raises LeaseLostError."""
        tasks = [asyncio.create_task(self._work(), name=f"worker {number}") for number in range(self._count)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _work(self) -> None:
        while True:
            try:
                key = await self._queue.take()
            except QueueClosedError:
                return
            self._vitals.began(str(key))
            try:
                with self._metrics.reconcile_seconds.time():
                    following = await self._reconcile(key)
            except LeaseLostError:
                raise
            except Exception as fault:
                self._failed(key, fault)
            else:
                self._worked(key, following)
            finally:
                self._vitals.ended(str(key))
                self._queue.done(key)

    def _worked(self, key: JobKey, following: Next) -> None:
        self._known_faults.pop(key, None)
        self._queue.succeeded(key)
        if following.seconds is None:
            self._queue.cancel_timer(key)
        else:
            self._queue.add_after(key, following.seconds)

    def _failed(self, key: JobKey, fault: Exception) -> None:
        """A traceback once a fault, not once a retry; the job's owner learns of it by an Event."""
        self._metrics.reconcile_errors.inc()
        delay = self._queue.retry(key)
        text = f"{type(fault).__name__}: {fault}"
        if self._known_faults.get(key) == text:
            log.warning("reconcile failed again: %s", text, extra={"job": str(key), "failures": self._queue.failures(key)})
            return
        self._known_faults[key] = text
        log.error("reconcile failed: %s", text, exc_info=fault, extra={"job": str(key)})
        message = f"The operator failed on this job and tries again in {delay:.0f} s; its log holds the traceback. {text}"
        self._report(key, EventNote("Warning", Reason.API_ERROR, message))
