"""One context manager a phase: it times, names the stage that is running, and beats the heart."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

IDLE = "starting"


class Phases:
    """``with phases("rollout"): ...`` in the driver's thread; ``current`` and ``age_seconds`` are read by others.

    A phase beats when it begins and ends; a long one calls ``beat`` when something inside it got done. A phase inside
    another is timed on its own and is the current one meanwhile. ``heartbeat`` gets the stage's name at every beat.
    """

    def __init__(self, heartbeat: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._heartbeat = heartbeat
        self._clock = clock
        self._lock = threading.Lock()
        self._stack: list[tuple[str, float]] = []
        self._seconds: dict[str, float] = {}
        self._last = (IDLE, clock())
        self.failed_in: str | None = None
        """Innermost phase that the last exception left, for messages."""

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = self._clock()
        with self._lock:
            self._stack.append((name, start))
        self.failed_in = None
        self.beat()
        try:
            yield
        except BaseException:
            self.failed_in = self.failed_in or name
            raise
        finally:
            with self._lock:
                self._stack.pop()
                self._seconds[name] = self._seconds.get(name, 0.0) + self._clock() - start
            self.beat()

    def beat(self) -> None:
        """Say that something got done."""
        with self._lock:
            # Between two phases of a step the last one stays the stage: a gap of microseconds is not a stage.
            name = self._stack[-1][0] if self._stack else self._last[0]
            self._last = (name, self._clock())
        if self._heartbeat is not None:
            self._heartbeat(name)

    @property
    def current(self) -> str:
        """Name of the running phase, or of the last one."""
        return self._last[0]

    @property
    def elapsed_seconds(self) -> float:
        """Since the running phase began; 0 between phases."""
        with self._lock:
            return self._clock() - self._stack[-1][1] if self._stack else 0.0

    @property
    def age_seconds(self) -> float:
        """Since the last beat."""
        return self._clock() - self._last[1]

    def drain(self) -> dict[str, float]:
        """``timing_s/<phase>`` -> seconds since the last drain, of the phases that ended."""
        with self._lock:
            seconds, self._seconds = self._seconds, {}
        return {f"timing_s/{name}": value for name, value in seconds.items()}
