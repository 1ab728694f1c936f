"""A fault in one job is that job's alone, logged once and told once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rlhf_operator.runtime.election import LeaseLostError
from rlhf_operator.runtime.health import Vitals, Watches
from rlhf_operator.runtime.keys import JobKey
from rlhf_operator.runtime.metrics import Metrics
from rlhf_operator.runtime.queue import WorkQueue
from rlhf_operator.runtime.reconcile import Next
from rlhf_operator.runtime.workers import Workers

GOOD, BAD = JobKey("ns", "good"), JobKey("ns", "bad")


def test_a_fault_is_logged_with_a_traceback_once_told_once_and_backed_off(fake_time, caplog):
    async def main():
        looked: list[tuple[JobKey, float]] = []
        told = []
        queue, metrics = WorkQueue(jitter=lambda: 0.0), Metrics()
        loop = asyncio.get_running_loop()

        async def reconcile(key: JobKey) -> Next:
            looked.append((key, loop.time()))
            if key == BAD:
                raise KeyError("phase")
            return Next(10.0)

        workers = Workers(queue, reconcile, lambda key, note: told.append((key, note.reason)), vitals(queue), metrics, 2)
        running = asyncio.create_task(workers.run())
        queue.add(GOOD)
        queue.add(BAD)
        await asyncio.sleep(35)
        assert [at for key, at in looked if key == BAD] == [0, 1, 3, 7, 15, 31]
        assert [at for key, at in looked if key == GOOD] == [0, 10, 20, 30]
        assert told == [(BAD, "ApiError")]
        assert metrics.registry.get_sample_value("rlhf_operator_reconcile_errors_total") == 6
        tracebacks = [record for record in caplog.records if record.exc_info]
        assert len(tracebacks) == 1
        assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 5
        queue.close()
        await running

    fake_time(main())


def vitals(queue: WorkQueue) -> Vitals:
    return Vitals(Watches(), queue.oldest_age, lambda: True)


def test_a_lost_lease_ends_every_worker(fake_time):
    async def main():
        queue = WorkQueue()
        ended = []

        async def reconcile(key: JobKey) -> Next:
            if key == BAD:
                raise LeaseLostError("renewed 20 s ago")
            try:
                await asyncio.sleep(1000)
            finally:
                ended.append(key)
            return Next()

        workers = Workers(queue, reconcile, lambda key, note: None, vitals(queue), Metrics(), 2)
        queue.add(GOOD)
        queue.add(BAD)
        with pytest.raises(LeaseLostError):
            await workers.run()
        await asyncio.sleep(0)
        assert ended == [GOOD]

    fake_time(main())


def test_fifty_stuck_jobs_are_bounded_by_their_own_time_limits(fake_time):
    """Jobs whose calls take their whole limit share the workers with those that are quick."""

    async def main():
        queue, done = WorkQueue(), []

        async def reconcile(key: JobKey) -> Next:
            await asyncio.sleep(5.0 if key.name.startswith("slow") else 0.01)
            done.append(key)
            return Next(60.0)

        workers = Workers(queue, reconcile, lambda key, note: None, vitals(queue), Metrics(), 8)
        running = asyncio.create_task(workers.run())
        for number in range(50):
            queue.add(JobKey("ns", f"slow-{number}"))
            queue.add(JobKey("ns", f"quick-{number}"))
        await asyncio.sleep(40)
        assert len(set(done)) == 100
        queue.close()
        await running

    fake_time(main())
