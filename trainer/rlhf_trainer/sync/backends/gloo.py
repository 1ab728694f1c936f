"""A gloo group of the sending trainer and all engine workers, apart from torch's default group. Works across hosts."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlhf_trainer.sync.buckets import fill, layout


class Group:
    def __init__(self, group: dist.ProcessGroupGloo) -> None:
        self._group = group

    def broadcast(self, buffer: Tensor) -> None:
        """Rank 0 sends ``buffer``, the others receive into it. Raises RuntimeError on timeout."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        self._group.broadcast([buffer], options).wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def join(host: str, port: int, rank: int, world_size: int, timeout_seconds: float) -> Group:
    """Enter the group; rank 0 opens the store at ``host:port``. Blocks until all have come."""
    timeout = timedelta(seconds=timeout_seconds)
    store = dist.TCPStore(host, port, world_size, is_master=rank == 0, timeout=timeout, wait_for_workers=False)
    return Group(dist.ProcessGroupGloo(dist.PrefixStore("rlhf-weights", store), rank, world_size, timeout))


class Transport:
    """The trainer's half: a flat buffer a bucket, broadcast while the engines receive."""

    concurrent = True

    def __init__(self, group: Group) -> None:
        self._group = group
        self._staged: deque[Tensor] = deque()

    def stage(self, tensors: Sequence[tuple[str, Tensor]]) -> dict[str, Any]:
        plan = layout(tensors)
        buffer = torch.empty(plan.size_bytes, dtype=torch.uint8)
        fill(buffer, tensors, plan)
        self._staged.append(buffer)
        return plan.as_dict()

    def transmit(self) -> None:
        self._group.broadcast(self._staged[0])

    def release(self) -> None:
        self._staged.popleft()

    def reset(self) -> None:
        self._staged.clear()
