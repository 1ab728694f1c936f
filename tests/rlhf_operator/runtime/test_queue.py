"""One worker a key, nothing lost, nothing done twice."""

from __future__ import annotations

import asyncio

import pytest

from rlhf_operator.runtime.keys import JobKey
from rlhf_operator.runtime.queue import QueueClosedError, WorkQueue

A, B = JobKey("ns", "a"), JobKey("ns", "b")


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_key_added_many_times_is_handed_out_once(fake_time):
    async def main():
        queue = WorkQueue()
        for _ in range(5):
            queue.add(A)
        queue.add(B)
        assert len(queue) == 2
        assert [await queue.take(), await queue.take()] == [A, B]
        assert len(queue) == 0

    fake_time(main())


def test_a_key_added_while_worked_on_comes_back_only_after_that_work(fake_time):
    async def main():
        queue = WorkQueue()
        queue.add(A)
        key = await queue.take()
        queue.add(A)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.take(), 10)
        queue.done(key)
        assert await queue.take() == A

    fake_time(main())


def test_two_workers_never_hold_the_same_key(fake_time):
    async def main():
        queue, holding, most = WorkQueue(), set(), 0

        async def worker():
            nonlocal most
            while True:
                key = await queue.take()
                assert key not in holding
                holding.add(key)
                most = max(most, len(holding))
                await asyncio.sleep(1)
                holding.discard(key)
                queue.done(key)

        workers = [asyncio.create_task(worker()) for _ in range(3)]
        for _ in range(20):
            queue.add(A)
            queue.add(B)
            await asyncio.sleep(0.3)
        assert most == 2
        for each in workers:
            assert not each.done()
            each.cancel()

    fake_time(main())


def test_the_last_timer_of_a_key_counts(fake_time):
    async def main():
        queue = WorkQueue()
        queue.add_after(A, 1800)
        queue.add_after(A, 10)
        queue.add_after(B, 5)
        queue.add_after(B, 20)
        assert await queue.take() == A
        assert now() == pytest.approx(10)
        assert await queue.take() == B
        assert now() == pytest.approx(20)
        queue.add_after(A, 0)
        queue.done(A)
        assert await queue.take() == A
        assert now() == pytest.approx(20)

    fake_time(main())


def test_back_off_doubles_up_to_five_minutes_and_ends_with_a_success(fake_time):
    async def main():
        queue = WorkQueue(jitter=lambda: 0.0)
        assert [queue.retry(A) for _ in range(10)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
        assert queue.failures(A) == 10
        queue.succeeded(A)
        assert queue.retry(A) == 1

    fake_time(main())


def test_age_is_that_of_the_key_that_has_waited_longest(fake_time):
    async def main():
        queue = WorkQueue()
        assert queue.oldest_age() == 0
        queue.add(A)
        await asyncio.sleep(7)
        queue.add(B)
        await asyncio.sleep(3)
        assert queue.oldest_age() == pytest.approx(10)
        await queue.take()
        assert queue.oldest_age() == pytest.approx(3)

    fake_time(main())


def test_closing_frees_every_waiting_worker_and_drops_timers(fake_time):
    async def main():
        queue = WorkQueue()
        waiting = [asyncio.create_task(queue.take()) for _ in range(3)]
        queue.add_after(A, 5)
        await asyncio.sleep(1)
        queue.close()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in results] == [QueueClosedError] * 3
        queue.add(B)
        await asyncio.sleep(60)
        assert len(queue) == 0

    fake_time(main())


def test_a_forgotten_key_has_no_timer_and_no_history(fake_time):
    async def main():
        queue = WorkQueue(jitter=lambda: 0.0)
        queue.retry(A)
        queue.forget(A)
        await asyncio.sleep(60)
        assert len(queue) == 0
        assert queue.failures(A) == 0

    fake_time(main())
