"""How the user's function is called: its parameters against the columns that there are.

``reward_func(queries, prompts, labels)`` may name its three arguments as it likes; any further parameter is filled
by name. A function whose parameters all have known names is called by name, in any order and any selection.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

POSITIONAL = ("queries", "prompts", "labels")
BY_NAME = ("completions", "metadata", "response_ids", "finish_reasons", "truncated")
EXPECTED = "reward_func(queries, prompts, labels)"

Kind = Literal["positional_only", "positional", "var_positional", "keyword_only", "var_keyword"]


class SignatureError(TypeError):
    """The function can't be called with what there is."""


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    kind: Kind
    has_default: bool = False


@dataclass(frozen=True, slots=True)
class Binding:
    """Names of the columns given by position, then those given by keyword."""

    positional: tuple[str, ...]
    keywords: tuple[str, ...]


def bind(parameters: Sequence[Parameter], columns: Collection[str]) -> Binding:
    """``columns``: further names besides ``POSITIONAL`` and ``BY_NAME``: data columns that the user may ask for."""
    offered = [*POSITIONAL, *BY_NAME, *(name for name in columns if name not in POSITIONAL + BY_NAME)]
    named = [p for p in parameters if p.kind not in ("var_positional", "var_keyword")]
    ordered = [p for p in named if p.kind != "keyword_only"]
    has_rest = any(p.kind == "var_positional" for p in parameters)
    unknown = [p for p in named if p.name not in offered and not p.has_default]
    if named and not unknown and not has_rest:
        known = [p for p in named if p.name in offered]
        by_position = tuple(p.name for p in known if p.kind == "positional_only")
        by_keyword = [p.name for p in known if p.kind != "positional_only"]
        return Binding(by_position, _with_rest(parameters, by_position, by_keyword, offered))
    if len(ordered) < len(POSITIONAL) and not has_rest:
        takes_any = not named and any(p.kind == "var_keyword" for p in parameters)
        if takes_any:
            return Binding((), tuple(offered))
        raise SignatureError(_refusal(unknown, len(named), offered))
    for place, parameter in zip(POSITIONAL, ordered, strict=False):
        if parameter.name in offered and parameter.name != place:
            if unknown:
                raise SignatureError(_refusal(unknown, len(named), offered))
            raise SignatureError(f"its parameter {parameter.name!r} stands where {place} is given; name all three {', '.join(POSITIONAL)}")
    leading = {p.name for p in ordered[: len(POSITIONAL)]}
    further = [p for p in named if p.name not in leading]
    missing = [p for p in further if p.name not in offered and not p.has_default]
    if missing:
        raise SignatureError(_refusal(missing, len(named), offered))
    by_keyword = [p.name for p in further if p.name in offered]
    return Binding(POSITIONAL, _with_rest(parameters, POSITIONAL, by_keyword, offered))


def _with_rest(parameters: Sequence[Parameter], positional: Sequence[str], keywords: list[str], offered: Sequence[str]) -> tuple[str, ...]:
    if any(p.kind == "var_keyword" for p in parameters):
        keywords = keywords + [name for name in offered if name not in keywords and name not in positional]
    return tuple(keywords)


def _refusal(unknown: Sequence[Parameter], num_parameters: int, offered: Sequence[str]) -> str:
    if not unknown:
        return f"it takes {num_parameters} arguments"
    name = unknown[0].name
    guess = get_close_matches(name, offered, n=1)
    hint = f"; did you mean {guess[0]!r}?" if guess else "."
    return f"nothing is known by the name of its parameter {name!r}{hint} Known names: {', '.join(offered)}"
