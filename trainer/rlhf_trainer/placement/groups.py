"""Handles to the processes of a job: worker groups and engines, as Ray actors.

Every call names its role and has a deadline; a lost process is one RetryError, never a hang.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from rlhf_trainer.errors import JobError, RetryError

CALL_TIMEOUT_SECONDS = 3600.0
LOST_WAIT_SECONDS = 5.0
# torch 2.13, gloo and NCCL process groups.
BROKEN_CONNECTION = ("Connection closed by peer", "Connection reset by peer", "Timed out waiting", "NCCL", "ProcessGroup", "Broken pipe")


def gather(refs: Sequence[Any], who: Sequence[str], what: str, timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> list[Any]:
    """``ray.get`` with names: which process failed, doing what. User faults keep their exit code."""
    try:
        return list(ray.get(list(refs), timeout=timeout_seconds))
    except GetTimeoutError:
        done, _ = ray.wait(list(refs), num_returns=len(refs), timeout=0)
        late = [name for name, ref in zip(who, refs, strict=True) if ref not in done]
        raise RetryError(f"{what}: no answer from {', '.join(late)} within {timeout_seconds:g} s") from None
    except RayTaskError as error:
        if isinstance(error.cause, JobError):
            raise error.cause from None
        # A rank that waits for a lost one fails first, with an error of its own.
        lost = lost_processes(refs, who)
        if lost or is_broken_connection(error.cause):
            raise RetryError(f"{what}: {f'lost {lost}' if lost else 'a connection between processes broke'}: {error.cause}") from error
        raise
    except RayActorError as error:
        raise RetryError(f"{what}: lost {lost_processes(refs, who) or ', '.join(who)}: {error}") from error


def lost_processes(refs: Sequence[Any], who: Sequence[str]) -> str:
    """Names of the processes that are gone, once the others had a moment to notice."""
    done, _ = ray.wait(list(refs), num_returns=len(refs), timeout=LOST_WAIT_SECONDS)
    gone = []
    for name, ref in zip(who, refs, strict=True):
        if ref in done:
            try:
                ray.get(ref)
            except RayActorError:
                gone.append(name)
            except RayTaskError:
                continue
    return ", ".join(gone)


def is_broken_connection(cause: BaseException | None) -> bool:
    """Whether a collective failed because its peer went away or was too late: torch raises bare RuntimeErrors for gloo."""
    text = str(cause)
    return isinstance(cause, RuntimeError) and any(sign in text for sign in BROKEN_CONNECTION)


class WorkerGroup:
    """The ranks of one worker group. Methods fan out to all ranks, since each may hold collectives."""

    def __init__(self, name: str, roles: tuple[str, ...], actors: Sequence[ActorHandle]) -> None:
        self.name = name
        self.roles = roles
        self.actors = list(actors)

    @property
    def ranks(self) -> int:
        return len(self.actors)

    def call(self, method: str, *args: Any, timeout_seconds: float = CALL_TIMEOUT_SECONDS, **kwargs: Any) -> list[Any]:
        """The same arguments on every rank; results by rank."""
        return self.scatter(method, [args] * self.ranks, timeout_seconds=timeout_seconds, **kwargs)

    def scatter(
        self, method: str, per_rank: Sequence[tuple[Any, ...]], timeout_seconds: float = CALL_TIMEOUT_SECONDS, **kwargs: Any
    ) -> list[Any]:
        """Rank r gets ``per_rank[r]``; results by rank."""
        return gather(self.start(method, per_rank, **kwargs), self.names, method, timeout_seconds)

    def start(self, method: str, per_rank: Sequence[tuple[Any, ...]], **kwargs: Any) -> list[Any]:
        pairs = zip(self.actors, per_rank, strict=True)
        return [getattr(actor, method).remote(*args, **kwargs) for actor, args in pairs]

    @property
    def names(self) -> list[str]:
        return [f"{self.name} rank {rank}" for rank in range(self.ranks)]


def by_row(results: Sequence[Sequence[tuple[Any, ...]]], num_rows: int) -> list[tuple[Any, ...]]:
    """Per-rank lists of ``(row_id, ...)`` -> one list in row order. A missing or doubled row is an error."""
    rows: dict[int, tuple[Any, ...]] = {}
    for part in results:
        for row_id, *rest in part:
            rows[row_id] = tuple(rest)
    if sorted(rows) != list(range(num_rows)):
        raise RuntimeError(f"expected results for rows 0..{num_rows - 1}, got {sorted(rows)}")
    return [rows[row_id] for row_id in range(num_rows)]
