"""Where every field of the API stands: the model tree by camelCase paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rlhf_api.spec import RLHFJob

Path = tuple[str | int, ...]


def dotted(path: Sequence[str | int]) -> str:
    """``("spec", "data", "datasets", 0)`` -> ``spec.data.datasets[0]``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def options(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a type without ``None`` and without ``Annotated``."""
    if get_origin(annotation) is Annotated:
        return options(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(option for each in get_args(annotation) for option in options(each) if option is not NoneType)
    return (annotation,)


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds, itself, optional, or in a list."""
    for option in options(annotation):
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
        if get_origin(option) is list:
            return model_in(get_args(option)[0])
    return None


@cache
def by_alias(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {info.alias or name: info for name, info in model.model_fields.items()}


def model_at(path: Sequence[str | int]) -> type[BaseModel] | None:
    """The model whose fields stand below ``path``; None below a free map or a value."""
    model: type[BaseModel] | None = RLHFJob
    for part in path:
        if isinstance(part, int):
            continue
        info = by_alias(model).get(part) if model is not None else None
        model = model_in(info.annotation) if info is not None else None
    return model


def field_at(path: Sequence[str | int]) -> FieldInfo | None:
    names = [part for part in path if isinstance(part, str)]
    parent = model_at(names[:-1]) if names else None
    return by_alias(parent).get(names[-1]) if parent is not None else None


@cache
def places() -> dict[str, tuple[str, ...]]:
    """Field name -> every dotted path below ``spec`` where a field of that name stands."""
    found: dict[str, list[str]] = {}
    for path in _walk(RLHFJob, ""):
        if path.startswith("spec."):
            found.setdefault(path.rsplit(".", 1)[-1], []).append(path)
    return {name: tuple(paths) for name, paths in found.items()}


def _walk(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for alias, info in by_alias(model).items():
        path = f"{prefix}{alias}"
        yield path
        child = model_in(info.annotation)
        if child is not None:
            is_list = any(get_origin(option) is list for option in options(info.annotation))
            yield from _walk(child, f"{path}[]." if is_list else f"{path}.")
