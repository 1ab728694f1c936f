"""Waits with a deadline that say, when they fail, what the cluster looked like."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from e2e.kit.api import Api
from e2e.kit.evidence import describe

T = TypeVar("T")

patience = 1.0
"""Times the seconds of every deadline: for lanes whose deadlines stand in the tests and not in a file of budgets."""


class TimedOutError(AssertionError):
    """A wait passed its deadline; the text holds the namespace's objects, events and last log lines."""


def eventually(
    what: str,
    probe: Callable[[], T | None],
    *,
    seconds: float,
    every: float = 0.2,
    api: Api | None = None,
    last: Callable[[], Any] | None = None,
) -> T:
    """The first true value of ``probe``. Errors of the API server while it restarts are not swallowed: catch them in the probe.

    Raises TimedOutError after ``seconds`` times ``patience`` with ``last()``, if given, and the evidence of ``api``'s namespace.
    """
    seconds *= patience
    deadline = time.monotonic() + seconds
    while True:
        if found := probe():
            return found
        if time.monotonic() > deadline:
            lines = [f"{what}: not within {seconds:g} s."]
            if last is not None:
                lines.append(f"Last seen: {last()}")
            if api is not None:
                lines.append(describe(api))
            raise TimedOutError("\n".join(lines))
        time.sleep(every)


def steady(what: str, probe: Callable[[], bool], *, seconds: float, every: float = 0.2) -> None:
    """``probe`` holds over the whole time; raises AssertionError at the first moment it does not."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert probe(), f"{what}: no longer true."
        time.sleep(every)


def pod_is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return pod.get("status", {}).get("phase") == "Running" and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def ready_pods(api: Api, labels: str, count: int) -> list[dict[str, Any]] | None:
    """The ready, not terminating pods behind ``labels``, when there are exactly ``count``."""
    found = [pod for pod in api.list("Pod", labels=labels) if not pod["metadata"].get("deletionTimestamp") and pod_is_ready(pod)]
    return found if len(found) == count else None


def ray_cluster_is_ready(api: Api, name: str) -> dict[str, Any] | None:
    """The RayCluster when its head and all its workers are ready now (``state`` alone stays `ready` when pods die)."""
    found = api.get("RayCluster", name)
    status = (found or {}).get("status") or {}
    head = any(c["type"] == "HeadPodReady" and c["status"] == "True" for c in status.get("conditions") or [])
    workers = status.get("readyWorkerReplicas", 0) == status.get("desiredWorkerReplicas", -1)
    return found if head and workers and status.get("state") == "ready" else None
