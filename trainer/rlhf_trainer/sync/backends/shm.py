"""Shared memory of one host.

A bucket is an anonymous memory file of the sender; the engine maps it through ``/proc/PID/fd/N`` and keeps the mapping as
long as it holds a view. There is no name to unlink: whichever process dies, the kernel frees the memory. It does not count
against the size of ``/dev/shm`` (64 MB in a default container) either.
"""

from __future__ import annotations

import mmap
import os

import torch
from torch import Tensor


class Segment:
    """A new memory file of ``size_bytes`` in this process."""

    def __init__(self, size_bytes: int) -> None:
        self._fd = os.memfd_create("rlhf-weights", os.MFD_CLOEXEC)
        os.truncate(self._fd, size_bytes)
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"
        self.buffer = _map(self._fd, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE)

    def close(self) -> None:
        """Give up this side; the memory lives on while another process maps it."""
        os.close(self._fd)


def attach(path: str, size_bytes: int) -> Tensor:
    """The sender's bytes, uint8 ``[size_bytes]``. Raises OSError when the sender is gone or on another host."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _map(fd, size_bytes, mmap.PROT_READ)
    finally:
        os.close(fd)


def _map(fd: int, size_bytes: int, protection: int) -> Tensor:
    # A private writable mapping of a read-only file keeps torch from warning; nobody writes to it.
    flags = mmap.MAP_SHARED if protection & mmap.PROT_WRITE else mmap.MAP_PRIVATE
    return torch.frombuffer(mmap.mmap(fd, size_bytes, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE), dtype=torch.uint8)
