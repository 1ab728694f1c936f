"""Records which fields a rule reads, so that a verdict about a placeholder can be told from a real one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

from pydantic import BaseModel

M = TypeVar("M", bound=BaseModel)


class _Watched:
    """Stands for a model: attributes are the model's, and every value read is noted with its path."""

    def __init__(self, model: BaseModel, path: str, reads: set[str]) -> None:
        self._model, self._path, self._reads = model, path, reads

    def __getattr__(self, name: str) -> Any:
        kind = type(self._model)
        attribute = vars(kind).get(name)
        if isinstance(attribute, property) and attribute.fget is not None:
            return attribute.fget(self)
        info = kind.model_fields[name]
        return self._wrap(getattr(self._model, name), f"{self._path}.{info.alias or name}")

    def _wrap(self, value: Any, path: str) -> Any:
        if isinstance(value, BaseModel):
            return _Watched(value, path, self._reads)
        self._reads.add(path)
        if isinstance(value, list):
            return [self._wrap(item, f"{path}[{index}]") for index, item in enumerate(value)]
        return value


def watch(model: M, path: str) -> tuple[M, set[str]]:
    """A stand-in for ``model`` and the set of paths that reading it fills."""
    reads: set[str] = set()
    return _Watched(model, path, reads), reads  # type: ignore[return-value]


def broken_by(unknown: Collection[str], reads: Collection[str]) -> bool:
    """Whether any read path is, contains, or lies inside an unknown one."""
    return any(_inside(read, path) or _inside(path, read) for read in reads for path in unknown)


def _inside(path: str, parent: str) -> bool:
    return path == parent or path.startswith((f"{parent}.", f"{parent}["))
