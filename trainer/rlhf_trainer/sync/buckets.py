"""How a bucket of tensors lies in one flat buffer. Pure; used by both ends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes; each tensor starts on a cache line, so that any dtype can be viewed in place."""


@dataclass(frozen=True)
class Layout:
    """Names, dtypes (``float32``), shapes and byte offsets of a bucket's tensors."""

    names: tuple[str, ...]
    dtype_names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    size_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Plain lists, as vLLM's update requests carry them."""
        return {
            "names": list(self.names),
            "dtype_names": list(self.dtype_names),
            "shapes": [list(shape) for shape in self.shapes],
            "offsets": list(self.offsets),
            "size_bytes": self.size_bytes,
        }


def layout(tensors: Sequence[tuple[str, Tensor]]) -> Layout:
    offsets: list[int] = []
    end = 0
    for _, tensor in tensors:
        offsets.append(end)
        end += math.ceil(tensor.nbytes / ALIGNMENT) * ALIGNMENT
    return Layout(
        names=tuple(name for name, _ in tensors),
        dtype_names=tuple(str(tensor.dtype).removeprefix("torch.") for _, tensor in tensors),
        shapes=tuple(tuple(tensor.shape) for _, tensor in tensors),
        offsets=tuple(offsets),
        size_bytes=end,
    )


def fill(buffer: Tensor, tensors: Sequence[tuple[str, Tensor]], plan: Layout) -> None:
    """Copy ``tensors`` into ``buffer`` (uint8, at least ``plan.size_bytes``)."""
    for (_, target), (_, source) in zip(views(buffer, plan), tensors, strict=True):
        target.copy_(source.detach())


def views(buffer: Tensor, plan: Layout) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) views into ``buffer``; no copy."""
    for name, dtype_name, shape, offset in zip(plan.names, plan.dtype_names, plan.shapes, plan.offsets, strict=True):
        dtype: torch.dtype = getattr(torch, dtype_name)
        end = offset + math.prod(shape) * dtype.itemsize
        yield name, buffer[offset:end].view(dtype).view(shape)
