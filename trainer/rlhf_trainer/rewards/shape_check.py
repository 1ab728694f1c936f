"""What a reward source returned -> exactly one number a rollout, or one clear error. Nothing is ever broadcast.

Pure Python without imports beyond the standard library: it also runs in the user's process, where torch and numpy
may be missing. Arrays and tensors of any library are read by ``tolist`` and ``shape``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Scalar = float | None
"""None: the source does not apply to this rollout."""


class ShapeError(ValueError):
    """Not one number a rollout; the text says what was expected and what came."""


@dataclass(frozen=True, slots=True)
class Received:
    """A returned value in plain Python: what it was called, its shape, and nested lists of numbers."""

    type_name: str
    shape: tuple[int, ...] | None
    """None when rows differ in length."""
    values: Any

    def __str__(self) -> str:
        if self.shape is None:
            return f"a {self.type_name} with rows of different lengths"
        if self.shape == ():
            return f"a single {self.type_name} ({self.values!r})"
        if len(self.shape) == 1:
            return f"a {self.type_name} of {self.shape[0]}"
        return f"a {self.type_name} of shape {self.shape}"


def receive(value: object) -> Received:
    """Copy a list, array or tensor into plain Python."""
    plain = _plain(value)
    return Received(type(value).__name__, _shape(plain), plain)


def scalars(received: Received, expected: int) -> list[Scalar]:
    """``expected`` numbers from any shape with one non-trivial axis: ``(k,)``, ``(k, 1)``, ``(1, k)``."""
    wanted = "1 number for 1 rollout" if expected == 1 else f"{expected} numbers, one a rollout,"
    shape = received.shape
    axes = [size for size in shape or () if size != 1]
    is_row = bool(shape) and (axes == [expected] or (not axes and expected == 1))
    if not is_row:
        raise ShapeError(f"expected {wanted} and got {received}")
    flat = list(_leaves(received.values))
    for row, value in enumerate(flat):
        if value is not None and not isinstance(value, int | float):
            raise ShapeError(f"expected {wanted} and row {row} is {value!r} ({type(value).__name__})")
    return [None if value is None else float(value) for value in flat]


def _plain(value: object) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | Mapping | set | frozenset):
        return f"<{type(value).__name__}>"
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    to_list: Callable[[], Any] | None = getattr(value, "tolist", None)
    if to_list is not None:
        return _plain(to_list())
    if hasattr(value, "__iter__"):
        return [_plain(item) for item in value]
    if hasattr(value, "__float__"):
        return float(value)
    return f"<{type(value).__name__}>"


def _shape(plain: Any) -> tuple[int, ...] | None:
    if not isinstance(plain, list):
        return ()
    shapes = {_shape(item) for item in plain}
    if not shapes:
        return (0,)
    inner = shapes.pop()
    if shapes or inner is None:
        return None
    return (len(plain), *inner)


def _leaves(plain: Any) -> Any:
    if isinstance(plain, list):
        for item in plain:
            yield from _leaves(item)
    else:
        yield plain
