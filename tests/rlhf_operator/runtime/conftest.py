"""An event loop whose clock jumps to the next timer, so that minutes of waiting take no time. For code without real sockets."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import pytest


class _Jumping(selectors.DefaultSelector):
    """Never sleeps: adds the time it was to sleep to the clock instead."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout is None:
            raise RuntimeError("everything waits and no timer is set: the test would hang")
        if not found and timeout:
            self.skipped += timeout
        return found


class FakeTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.skipped


@pytest.fixture
def fake_time() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine; ``asyncio.get_running_loop().time()`` begins at 0 and only sleeping moves it."""

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
            return runner.run(work)

    return run
