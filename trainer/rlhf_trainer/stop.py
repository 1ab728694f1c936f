"""Stop requests: the first signal ends the job after a checkpoint, a second one at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGHUP too: a closed terminal or a dropped connection should cost no step."""


class StopFlag:
    """Set from signal handlers, read between steps. ``notice`` says so to the user; it is replaced once there is a display."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self.requested = False
        self.notice = notice
        self.ended = False
        """The outcome is known: what is left is to take everything down, which a signal must not interrupt."""

    def __call__(self) -> bool:
        return self.requested

    def handle(self, signum: int, _frame: FrameType | None) -> None:
        if self.ended:
            return
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self.notice(f"{signal.Signals(signum).name}: stopping after this step and a checkpoint; again to stop at once")


@contextmanager
def stop_on_signals(notice: Callable[[str], None]) -> Iterator[StopFlag]:
    """SIGINT, SIGTERM and SIGHUP set the flag while the context is open. Main thread only."""
    flag = StopFlag(notice)
    previous = {signum: signal.signal(signum, flag.handle) for signum in SIGNALS}
    try:
        yield flag
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
