"""Stop requests: the first signal ends the job after a checkpoint, a second one at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class StopFlag:
    """Set from signal handlers, read between steps."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self.requested = False
        self._notice = notice

    def __call__(self) -> bool:
        return self.requested

    def handle(self, signum: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self._notice(f"{signal.Signals(signum).name}: stopping after this step and a checkpoint; again to stop at once")


@contextmanager
def stop_on_signals(notice: Callable[[str], None]) -> Iterator[StopFlag]:
    """SIGINT and SIGTERM set the flag while the context is open. Main thread only."""
    flag = StopFlag(notice)
    previous = {signum: signal.signal(signum, flag.handle) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
