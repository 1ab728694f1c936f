"""Shared memory of one host.

A bucket is an anonymous memory file of the sender; the engine maps it through ``/proc/PID/fd/N`` and keeps the mapping as
long as it holds a view. There is no name to unlink: whichever process dies, the kernel frees the memory. It does not count
against the size of ``/dev/shm`` (64 MB in a default container) either.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rlhf_trainer.sync.buckets import Layout, layout


class Segment:
    """A new memory file of this process that holds a bucket."""

    def __init__(self, tensors: Sequence[tuple[str, Tensor]], plan: Layout) -> None:
        self._fd = os.memfd_create("rlhf-weights", os.MFD_CLOEXEC)
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"
        os.truncate(self._fd, plan.size_bytes)
        # Writing by system call: through a mapping each new page would be faulted in and zeroed first, at 2.6 times the cost.
        for (_, tensor), offset in zip(tensors, plan.offsets, strict=True):
            data = memoryview(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
            while data:
                written = os.pwrite(self._fd, data, offset)
                data, offset = data[written:], offset + written

    def close(self) -> None:
        """Give up this side; the memory lives on while another process maps it."""
        os.close(self._fd)


def attach(path: str, size_bytes: int) -> Tensor:
    """The sender's bytes, uint8 ``[size_bytes]``. Raises OSError when the sender is gone or on another host."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Private and writable although nobody writes: torch wants writable memory.
        mapping = mmap.mmap(fd, size_bytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)
    return torch.frombuffer(mapping, dtype=torch.uint8)


class Transport:
    """The trainer's half: one segment a bucket, given up when the engines have mapped it."""

    concurrent = False

    def __init__(self) -> None:
        self._staged: deque[Segment] = deque()

    def stage(self, tensors: Sequence[tuple[str, Tensor]]) -> dict[str, Any]:
        plan = layout(tensors)
        segment = Segment(tensors, plan)
        self._staged.append(segment)
        return plan.as_dict() | {"path": segment.path}

    def transmit(self) -> None:
        """Nothing to send: the engines read where the sender wrote."""

    def release(self) -> None:
        self._staged.popleft().close()

    def reset(self) -> None:
        while self._staged:
            self.release()


def memory_domain() -> str:
    """Equal in two processes exactly when one can map the other's segments: same kernel, same process namespace."""
    with open("/proc/sys/kernel/random/boot_id") as boot:
        return f"{boot.read().strip()}:{os.stat('/proc/self/ns/pid').st_ino}"
