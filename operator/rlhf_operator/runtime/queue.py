"""A keyed work queue: a key waits once however often it is added, and two workers never hold the same key.

A key that is added while it is worked on comes back when that work ends, so no change is lost. Each key has at most one
timer; the last one set counts, because every reconcile computes its next look anew.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from rlhf_operator.runtime.keys import JobKey

BACKOFF_BASE_SECONDS = 1.0
BACKOFF_MAX_SECONDS = 300.0


class QueueClosedError(Exception):
    """No more work will be handed out."""


class WorkQueue:
    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        self._waiting: asyncio.Queue[JobKey | None] = asyncio.Queue()
        """None = closed; whoever takes it puts it back for the next."""
        self._dirty: dict[JobKey, float] = {}
        """Key -> when it was first added; a member waits, or will wait again when its work ends."""
        self._working: set[JobKey] = set()
        self._timers: dict[JobKey, asyncio.TimerHandle] = {}
        self._failures: dict[JobKey, int] = {}
        self._closed = False
        self._jitter = jitter

    def __len__(self) -> int:
        return sum(key not in self._working for key in self._dirty)

    @property
    def working(self) -> int:
        return len(self._working)

    def oldest_age(self) -> float:
        """Seconds that the longest waiting key has waited."""
        since = [at for key, at in self._dirty.items() if key not in self._working]
        return asyncio.get_running_loop().time() - min(since) if since else 0.0

    def add(self, key: JobKey) -> None:
        if self._closed or key in self._dirty:
            return
        self._dirty[key] = asyncio.get_running_loop().time()
        if key not in self._working:
            self._waiting.put_nowait(key)

    def add_after(self, key: JobKey, seconds: float) -> None:
        """Replaces the key's timer."""
        self.cancel_timer(key)
        if self._closed:
            return
        if seconds <= 0:
            self.add(key)
            return

        def due() -> None:
            self._timers.pop(key, None)
            self.add(key)

        self._timers[key] = asyncio.get_running_loop().call_later(seconds, due)

    def retry(self, key: JobKey) -> float:
        """Back-off 1 s, 2 s, … 5 min with up to 10 % of jitter; returns the delay."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(BACKOFF_BASE_SECONDS * 2.0 ** min(failures, 16), BACKOFF_MAX_SECONDS)
        delay *= 1 + 0.1 * self._jitter()
        self.add_after(key, delay)
        return delay

    def failures(self, key: JobKey) -> int:
        return self._failures.get(key, 0)

    def succeeded(self, key: JobKey) -> None:
        self._failures.pop(key, None)

    def forget(self, key: JobKey) -> None:
        """The job is gone: no timer, no history."""
        self.cancel_timer(key)
        self._failures.pop(key, None)

    def cancel_timer(self, key: JobKey) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    async def take(self) -> JobKey:
        """The next key; the caller must call ``done``. Raises QueueClosedError."""
        key = await self._waiting.get()
        if key is None or self._closed:
            self._waiting.put_nowait(None)
            raise QueueClosedError
        self._dirty.pop(key)
        self._working.add(key)
        return key

    def done(self, key: JobKey) -> None:
        self._working.discard(key)
        if key in self._dirty and not self._closed:
            self._waiting.put_nowait(key)

    def close(self) -> None:
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._waiting.put_nowait(None)
