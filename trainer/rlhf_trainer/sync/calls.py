"""Waiting for several processes at once: the first that fails or the ones that are late are named."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from rlhf_trainer.errors import JobError, RetryError


def await_all(calls: Mapping[str, Any], deadline: float, what: str) -> dict[str, Any]:
    """``{who: ref}`` -> ``{who: result}``. ``deadline`` is a ``time.monotonic`` value.

    Raises as soon as one call fails, also while others still wait for it inside a collective.
    """
    names = {ref: who for who, ref in calls.items()}
    waiting, results = list(names), {}
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
        if not done:
            raise RetryError(f"{what}: no answer in time from {', '.join(names[ref] for ref in waiting)}")
        for ref in done:
            try:
                results[names[ref]] = ray.get(ref)
            except RayTaskError as error:
                if isinstance(error.cause, JobError):
                    raise error.cause from None
                raise RetryError(f"{what}: {names[ref]} failed: {type(error.cause).__name__}: {error.cause}") from error
            except RayActorError as error:
                raise RetryError(f"{what}: lost {names[ref]}: {first_line(error)}") from error
    return {who: results[who] for who in calls}


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
