"""Drives one weight sync: workers stage buckets, engines receive them, then engines are asked what they hold.

The same calls for every backend: begin, start, (stage, update, transmit, release) a bucket, finish, check. While the
engines load a bucket the workers stage the next one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rlhf_trainer.errors import ConfigError, RetryError
from rlhf_trainer.sync import sender
from rlhf_trainer.sync.backends import nccl, shm
from rlhf_trainer.sync.calls import await_all
from rlhf_trainer.sync.check import SAMPLE_TENSORS, TIED_HEAD, rotation

BUCKET_BYTES = {"shm": 64 << 20, "gloo": 64 << 20, "nccl": 512 << 20, "ipc": 512 << 20}
"""On CPU small buckets let staging and loading overlap (SmolLM2 fp32, two busy cores: 1.5 s at 64 MiB, 2.9 s at 256 MiB)."""


class WeightMismatchError(RetryError):
    """An engine does not hold what the trainer sent."""


@dataclass(frozen=True)
class SyncStats:
    seconds: float
    bytes: int
    tensors: int
    buckets: int
    checked: tuple[str, ...]
    """Tensors compared in every engine."""

    def metrics(self) -> dict[str, float]:
        return {
            "perf/sync_gb_per_second": self.bytes / self.seconds / 1e9,
            "sync/buckets": float(self.buckets),
            "sync/checked_tensors": float(len(self.checked)),
        }


class WeightSync:
    """One trained role and the engines that sample from it.

    ``workers``: Ray handles of the role's ranks, in rank order; ``engines``: Ray handles of ``RolloutEngine``.
    ``engine_ranks``: processes that hold weights in each engine (tensor parallel).
    """

    def __init__(
        self,
        workers: Sequence[Any],
        engines: Sequence[Any],
        *,
        backend: str,
        timeout_seconds: float,
        bucket_bytes: int | None = None,
        engine_ranks: int = 1,
        role: str = "actor",
        host: str = "127.0.0.1",
    ) -> None:
        self.workers = list(workers)
        self.engines = list(engines)
        self.backend = backend
        self.bucket_bytes = bucket_bytes or BUCKET_BYTES[backend]
        self.timeout_seconds = timeout_seconds
        self.engine_ranks = engine_ranks
        self.role = role
        self.host = host
        self._sizes: dict[str, int] = {}
        self._checkable: list[str] = []
        self._tied_to: str | None = None

    def connect(self) -> None:
        """Open the transport at both ends. Raises ConfigError where the backend cannot reach the engines."""
        deadline, what = time.monotonic() + self.timeout_seconds, f"weight sync, connect (limit {self.timeout_seconds:g} s)"
        found = await_all(self._all_workers(sender.describe, self.role), deadline, what)
        metadata, domain = found[self._worker(0)]
        self._sizes = {name: _size(dtype, shape) for name, dtype, shape in metadata}
        if self.backend == "shm":
            domains = await_all(self._each_engine("call", _memory_domain), deadline, what)
            apart = [who for who, other in domains.items() if other != domain]
            if apart:
                raise ConfigError(
                    f"spec.placement.rollout.weightSync: shm cannot reach {', '.join(apart)}, which share no memory with the actor.\n"
                    "  Nearest: gloo."
                )
        names = list(self._sizes)
        known = await_all(self._each_engine("workers", "rlhf_locatable", [*names, TIED_HEAD]), deadline, what)
        common = set.intersection(*(set(part) for parts in known.values() for part in parts))
        self._checkable = [name for name in names if name in common and name != TIED_HEAD]
        embedding = next((name for name in names if name.endswith("embed_tokens.weight")), None)
        self._tied_to = TIED_HEAD if TIED_HEAD in names else embedding
        if TIED_HEAD not in common:
            self._tied_to = None
        self._open(deadline, what)

    def _open(self, deadline: float, what: str) -> None:
        world = 1 + len(self.engines) * self.engine_ranks
        info: dict[str, Any] = {}
        if self.backend in ("gloo", "nccl"):
            port = await_all({self._worker(0): self.workers[0].call.remote(sender.rendezvous)}, deadline, what)[self._worker(0)]
            info = {"host": self.host, "port": port, "world_size": world, "timeout_seconds": self.timeout_seconds}
        calls = {
            self._worker(rank): worker.call.remote(sender.connect, self.role, self.backend, self.bucket_bytes, rank, info)
            for rank, worker in enumerate(self.workers)
        }
        calls |= {self._engine(i): engine.init_sync.remote(self._engine_init(i, info)) for i, engine in enumerate(self.engines)}
        await_all(calls, deadline, what)

    def _engine_init(self, index: int, info: dict[str, Any]) -> dict[str, Any]:
        first_rank = 1 + index * self.engine_ranks
        if self.backend == "gloo":
            return info | {"first_rank": first_rank}
        if self.backend == "nccl":
            return nccl.engine_init(info["host"], info["port"], first_rank, info["world_size"], self.bucket_bytes)
        return {"packed": True} if self.backend == "ipc" else {}

    def push(self, version: int, *, check_all: bool = False) -> SyncStats:
        """Bring every engine to the workers' weights and name them ``version``.

        A rotating sample of tensors and the output head are compared as the engines hold them; ``check_all`` compares
        every tensor this code can locate. Raises WeightMismatchError, or RetryError naming who failed at which stage.
        """
        started = time.monotonic()
        deadline, what = started + self.timeout_seconds, f"weight sync of version {version} (limit {self.timeout_seconds:g} s)"
        sample = self._checkable if check_all else rotation(self._checkable, version, SAMPLE_TENSORS)
        sources = {name: [name] for name in sample}
        if self._tied_to is not None:
            sources.setdefault(self._tied_to, []).append(TIED_HEAD)
        calls = self._all_workers(sender.begin, self.role, version, sources) | self._each_engine("start_update")
        await_all(calls, deadline, f"{what}, start")
        buckets = self._send(deadline, what)
        await_all(self._each_engine("finish_update", version), deadline, f"{what}, finish")
        checked = self._check(version, deadline, what)
        return SyncStats(time.monotonic() - started, sum(self._sizes.values()), len(self._sizes), buckets, checked)

    def _send(self, deadline: float, what: str) -> int:
        count = 0
        staging = self._stage()
        while True:
            parts = await_all(staging, deadline, f"{what}, gather bucket {count}")
            update = _joined([parts[self._worker(rank)] for rank in range(len(self.workers))])
            if update is None:
                return count
            calls = self._each_engine("update_weights", update)
            calls |= {f"{self._worker(0)} (sending)": self.workers[0].call.remote(sender.transmit, self.role)}
            staging = self._stage()
            await_all(calls, deadline, f"{what}, bucket {count}")
            await_all(self._all_workers(sender.release, self.role), deadline, f"{what}, release bucket {count}")
            count += 1

    def _stage(self) -> dict[str, Any]:
        return {self._worker(rank): worker.call.remote(sender.stage, self.role, rank == 0) for rank, worker in enumerate(self.workers)}

    def _check(self, version: int, deadline: float, what: str) -> tuple[str, ...]:
        witnesses = await_all({self._worker(0): self.workers[0].call.remote(sender.end, self.role)}, deadline, what)[self._worker(0)]
        answers = await_all(self._each_engine("workers", "rlhf_faults", witnesses), deadline, f"{what}, check")
        faults = [f"{who}: {fault}" for who, parts in answers.items() for part in parts for fault in part]
        if faults:
            raise WeightMismatchError(
                f"{what}: {len(faults)} of {len(witnesses) * len(answers)} checks failed" + "".join(f"\n  {fault}" for fault in faults[:6])
            )
        return tuple(expected.name for expected in witnesses)

    def _all_workers(self, function: Any, *args: Any) -> dict[str, Any]:
        return {self._worker(rank): worker.call.remote(function, *args) for rank, worker in enumerate(self.workers)}

    def _each_engine(self, method: str, *args: Any) -> dict[str, Any]:
        return {self._engine(i): getattr(engine, method).remote(*args) for i, engine in enumerate(self.engines)}

    def _worker(self, rank: int) -> str:
        return f"{self.role} rank {rank}"

    def _engine(self, index: int) -> str:
        return f"engine {index}"


def _joined(parts: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Rank 0's update request, with the IPC handles of every rank's GPU."""
    first = parts[0]
    if first is None or "ipc_handles" not in first:
        return first
    handles: dict[str, Any] = {}
    for part in parts:
        handles |= (part or {}).get("ipc_handles", {})
    return first | {"ipc_handles": handles}


def _memory_domain(_engine: Any) -> str:
    return shm.memory_domain()


def _size(dtype_name: str, shape: Sequence[int]) -> int:
    dtype: torch.dtype = getattr(torch, dtype_name.removeprefix("torch."))
    return math.prod(shape) * dtype.itemsize
