"""The trainer's end. Functions run inside a model worker through its ``call``; state lives with the worker's process.

Every rank walks the buckets, since gathering a ZeRO-3 parameter is a collective; only rank 0 sends (with IPC every rank
offers its own GPU's copy).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from rlhf_trainer.sync.backends import gloo, ipc, nccl, shm
from rlhf_trainer.sync.check import Witness, witness

NamedTensors = Sequence[tuple[str, Tensor]]


class Worker(Protocol):
    """What a model worker offers."""

    def iter_buckets(self, role: str, bucket_bytes: int) -> Iterator[list[tuple[str, Tensor]]]: ...

    def weight_metadata(self, role: str) -> list[tuple[str, str, tuple[int, ...]]]: ...


class Transport(Protocol):
    concurrent: bool
    """Engines must receive while ``transmit`` runs."""

    def stage(self, tensors: NamedTensors) -> dict[str, Any]:
        """Copy a bucket and return what the engines' update request says about it. Staged buckets queue up."""

    def transmit(self) -> None:
        """Send the oldest staged bucket."""

    def release(self) -> None:
        """The engines have the oldest staged bucket."""

    def reset(self) -> None:
        """Drop what an interrupted sync left."""


@dataclass
class Sender:
    role: str
    bucket_bytes: int
    transport: Transport | None
    """None on ranks that only take part in gathering."""
    buckets: Iterator[list[tuple[str, Tensor]]] | None = None
    version: int = -1
    sources: dict[str, list[str]] = field(default_factory=dict)
    """Tensor name -> names under which the engine is asked about it (a tied head has two)."""
    witnesses: list[Witness] = field(default_factory=list)


_senders: dict[str, Sender] = {}


def describe(worker: Worker, role: str) -> tuple[list[tuple[str, str, tuple[int, ...]]], str]:
    """Parameters of ``role`` and the memory domain of this process."""
    return worker.weight_metadata(role), shm.memory_domain()


def rendezvous(_worker: Worker) -> int:
    """A free port on this node."""
    return gloo.free_port()


def connect(worker: Worker, role: str, backend: str, bucket_bytes: int, rank: int, info: dict[str, Any]) -> None:
    """Open the transport. ``info``: host, port, world_size and timeout_seconds where the backend has a group."""
    transport: Transport | None = None
    if backend == "ipc":
        transport = ipc.Transport()
    elif rank == 0 and backend == "shm":
        transport = shm.Transport()
    elif rank == 0 and backend == "gloo":
        transport = gloo.Transport(gloo.join(info["host"], info["port"], 0, info["world_size"], info["timeout_seconds"]))
    elif rank == 0 and backend == "nccl":
        transport = nccl.Transport(info["host"], info["port"], info["world_size"], bucket_bytes)
    _senders[role] = Sender(role, bucket_bytes, transport)


def begin(worker: Worker, role: str, version: int, sources: dict[str, list[str]]) -> None:
    """Start a pass over the weights; tensors in ``sources`` get witnesses."""
    sender = _senders[role]
    if sender.transport is not None:
        sender.transport.reset()
    sender.buckets = worker.iter_buckets(role, sender.bucket_bytes)
    sender.version, sender.sources, sender.witnesses = version, sources, []


def stage(_worker: Worker, role: str, describes: bool) -> dict[str, Any] | None:
    """Gather the next bucket and stage it; None after the last. ``describes``: this rank makes the witnesses."""
    sender = _senders[role]
    assert sender.buckets is not None
    bucket = next(sender.buckets, None)
    if bucket is None:
        sender.buckets = None
        return None
    if describes:
        for name, tensor in bucket:
            sender.witnesses += [witness(asked, tensor, sender.version) for asked in sender.sources.get(name, ())]
    return sender.transport.stage(bucket) if sender.transport is not None else {}


def transmit(_worker: Worker, role: str) -> None:
    sender = _senders[role]
    if sender.transport is not None:
        sender.transport.transmit()


def release(_worker: Worker, role: str) -> None:
    sender = _senders[role]
    if sender.transport is not None:
        sender.transport.release()


def end(_worker: Worker, role: str) -> list[Witness]:
    """The witnesses of this pass."""
    return _senders[role].witnesses
