"""Waiting for a part: with a limit, and not a moment longer than the part lives."""

from __future__ import annotations

import time
from collections.abc import Callable

from e2e.cluster.sandbox import Sandbox, SandboxError, log_tail


class NotUpError(SandboxError):
    """A part ended, or did not do in time what was awaited. The message ends with its last log lines."""


def wait_for(sandbox: Sandbox, part: str, what: str, probe: Callable[[], bool], limit_seconds: float) -> None:
    """Returns once `probe` is true; raises NotUpError when the part has ended or the limit has passed."""
    started = time.monotonic()
    while not probe():
        state = sandbox.part(part)
        waited = time.monotonic() - started
        if state is None:
            raise NotUpError(f"{part}: was never started, and {what} is awaited of it")
        if not state.running:
            raise NotUpError(f"{part} {state.describe()} before: {what}; {_log(sandbox, part)}")
        if waited > limit_seconds:
            raise NotUpError(f"{part}: not within {limit_seconds:.0f} s: {what}; it still runs; {_log(sandbox, part)}")
        time.sleep(0.02 if waited < 5 else 0.2)


def _log(sandbox: Sandbox, part: str) -> str:
    return f"the end of {sandbox.log(part)}:\n{log_tail(sandbox.log(part))}"
