"""Pydantic's schema errors, said as violations with camelCase paths and the nearest valid choice."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from rlhf_api.fields import Path, by_alias, dotted, field_at, model_at, places
from rlhf_api.patterns import said
from rlhf_api.spec.job import NAME_MAX, NAME_RULE
from rlhf_api.violations import Violation, quoted

_TYPES = {
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}
_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?")
_KUBERNETES = {
    "claimName": "existingClaim",
    "persistentVolumeClaim": "existingClaim: NAME",
    "valueFrom": "spec.cluster.secretEnv, with a secretKeyRef",
}
"""Fields of a pod that people write here -> what this API has instead."""
_TRUTH = {"true": "true", "yes": "true", "on": "true", "1": "true", "false": "false", "no": "false", "off": "false", "0": "false"}
_WHOLE = 2.0**53
"""Up to here a number with a point says which whole number is meant; not-a-number is below nothing."""
_FEW = 14
"""Field names are listed in full where a level has at most this many."""


@dataclass(frozen=True, slots=True)
class SchemaFault:
    path: Path
    missing: bool
    violation: Violation
    meant: tuple[str, ...] = ()
    """Dotted paths of the fields that an unknown one may stand for."""


def schema_faults(error: ValidationError, raw: Mapping[str, Any]) -> list[SchemaFault]:
    """One fault a place, in the order of the manifest's schema."""
    groups: dict[Path, list[ErrorDetails]] = {}
    in_union: set[Path] = set()
    for detail in error.errors(include_url=False):
        path, tagged = _normal(detail["loc"], raw, detail["type"])
        groups.setdefault(path, []).append(detail)
        if tagged:
            in_union.add(path)
    shadowed = {path for path in in_union if any(len(other) > len(path) and other[: len(path)] == path for other in groups)}
    return [
        SchemaFault(path, details[0]["type"] == "missing", _violation(path, details), _meant(path, details[0]["type"]))
        for path, details in groups.items()
        if path not in shadowed
    ]


def _normal(loc: Sequence[str | int], raw: Any, kind: str) -> tuple[Path, bool]:
    """``loc`` without the names of union branches, and whether there were any."""
    path: list[str | int] = []
    node, tagged = raw, False
    for index, part in enumerate(loc):
        inside = part < len(node) if isinstance(node, list) and isinstance(part, int) else isinstance(node, Mapping) and part in node
        if inside:
            node = node[part]
            path.append(part)
        elif kind == "missing" and index == len(loc) - 1:
            path.append(part)
        else:
            tagged = True
    return tuple(path), tagged


def _violation(path: Path, details: list[ErrorDetails]) -> Violation:
    detail = next((each for each in details if each["type"] == "literal_error" or each["type"] in _BOUNDS), details[0])
    kind, value = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        return Violation(dotted(path), _brief(value), "unknown field", _known_field(path))
    if kind == "missing":
        return Violation(dotted(path), None, f"this field is required: {_about(path)}", _example(path))
    if kind == "literal_error":
        return _literal(path, detail)
    if kind in _TYPES:
        return _wrong_type(path, details)
    if kind in _BOUNDS:
        word, key = _BOUNDS[kind]
        bound = _number(detail["ctx"][key])
        nearest = (
            f"{path[-1]}: {bound}" if word.startswith("at") and isinstance(path[-1], str) else _default(path, f"a value {word} {bound}")
        )
        return Violation(dotted(path), value, f"the value must be {word} {bound}: {_about(path)}", nearest)
    return _text_or_list(path, detail)


def _literal(path: Path, detail: ErrorDetails) -> Violation:
    expected = re.sub(r"'([^']*)'", r"\1", detail["ctx"]["expected"]).replace(" or ", ", ").split(", ")
    value = detail["input"]
    folded = {_folded(each): each for each in expected}
    close = get_close_matches(_folded(str(value)), list(folded), n=1, cutoff=0.4)
    nearest = folded[close[0]] if close else expected[0]
    return Violation(dotted(path), _brief(value), f"the value must be one of {', '.join(expected)}", nearest)


def _folded(name: str) -> str:
    """``name`` as it is compared: people write GRPO and dr_grpo."""
    return name.lower().replace("_", "-")


def _wrong_type(path: Path, details: list[ErrorDetails]) -> Violation:
    value = details[0]["input"]
    kinds = list(dict.fromkeys(each["type"] for each in details))
    wanted = " or ".join(dict.fromkeys(_TYPES[kind] for kind in kinds if kind in _TYPES))
    nearest: str | None = None
    if value is None:
        return Violation(dotted(path), "null", f"the value must be {wanted}; nothing stands here", "give it a value, or remove the line")
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()) and {"int_type", "float_type"} & set(kinds):
        nearest = f"{value.strip()} without quotes"
    elif isinstance(value, str) and value.lower() in _TRUTH and "bool_type" in kinds:
        nearest = f"{_TRUTH[value.lower()]} without quotes"
    elif kinds == ["model_type"] or kinds == ["model_attributes_type"]:
        model = model_at(path)
        here = list(by_alias(model)) if model is not None else []
        nearest = f"a mapping with {', '.join(here)}" if 0 < len(here) <= _FEW else None
    elif "string_type" in kinds and isinstance(value, int | float) and not (isinstance(value, bool) and len(kinds) > 1):
        nearest = quoted(value)
    elif kinds == ["int_type"] and isinstance(value, str):
        nearest = f"a whole number, for example {_whole_example(path)}"
    elif kinds == ["int_type"] and isinstance(value, float):
        nearest = str(round(value)) if abs(value) < _WHOLE else _default(path, "a whole number, without a point")
    elif kinds in (["list_type"], ["tuple_type"]):
        nearest = "a list: each of its entries begins with -" if isinstance(value, Mapping) else f"[{_brief(value)}]"
    return Violation(dotted(path), _brief(value), f"the value must be {wanted}", nearest)


def _text_or_list(path: Path, detail: ErrorDetails) -> Violation:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if path == ("metadata", "name"):
        rule = f"a name has at most {NAME_MAX} characters: {NAME_RULE}"
        if kind == "string_too_long":
            rule += f" ({len(value)} here)"
        return Violation("metadata.name", value, rule, _as_name(str(value)))
    if kind == "string_too_long":
        return Violation(dotted(path), value, f"the text must have at most {context['max_length']} characters ({len(value)} here)", None)
    if kind in ("string_too_short", "too_short"):
        least = context["min_length"]
        entries = f"there must be at least {least} entries" if kind == "too_short" else f"the text must have at least {least} characters"
        rule = "this must not be empty" if least == 1 else entries
        return Violation(dotted(path), _brief(value), f"{rule}: {_about(path)}", None)
    if kind == "too_long":
        return Violation(dotted(path), _brief(value), f"there must be at most {context['max_length']} entries: {_about(path)}", None)
    if kind == "string_pattern_mismatch":
        words, nearest = said(context["pattern"], str(value))
        return Violation(dotted(path), value, f"the text must be {words}: {_about(path)}", nearest)
    if kind == "finite_number":
        return Violation(dotted(path), value, "the value must be a finite number", None)
    return Violation(dotted(path), _brief(value), detail["msg"].lower(), None)


def _about(path: Path) -> str:
    """The field's description, or that of the map it stands in, as the end of a sentence."""
    described = (info.description for info in (field_at(path), field_at(path[:-1])) if info is not None and info.description)
    text = next(described, "see docs/reference.md")
    return " ".join(text.split()).rstrip(".")


def _example(path: Path) -> str | None:
    info = field_at(path)
    choices = get_args(info.annotation) if info is not None and get_origin(info.annotation) is Literal else ()
    return f"{path[-1]}: {' or '.join(map(str, choices))}" if choices else None


def _default(path: Path, otherwise: str) -> str:
    info = field_at(path)
    default = info.get_default() if info is not None else None
    return f"{path[-1]}: {_number(default)}" if isinstance(default, int | float) else otherwise


def _whole_example(path: Path) -> int:
    """A value that the field accepts: its default, else 100 as far as its bounds allow."""
    info = field_at(path)
    default = info.get_default() if info is not None else None
    if isinstance(default, int):
        return default
    bounds = {key: getattr(each, key) for each in (info.metadata if info is not None else ()) for key in ("ge", "le") if hasattr(each, key)}
    return int(max(bounds.get("ge", 100), min(bounds.get("le", 100), 100)))


def _meant(path: Path, kind: str) -> tuple[str, ...]:
    if kind != "extra_forbidden":
        return ()
    found, here = _candidates(path)
    return tuple(dotted((*path[:-1], name)) if here else name for name in found)


def _known_field(path: Path) -> str:
    """The field that was meant, for people."""
    if path[-1] in _KUBERNETES:
        return _KUBERNETES[str(path[-1])]
    found, _ = _candidates(path)
    if found:
        return " or ".join(found[:3])
    parent = model_at(path[:-1])
    here = list(by_alias(parent)) if parent is not None else []
    return f"one of {', '.join(here)}" if 0 < len(here) <= _FEW else "see docs/reference.md"


def _candidates(path: Path) -> tuple[list[str], bool]:
    """Fields that an unknown one may stand for: another spelling here (True), or the same name elsewhere (False)."""
    name = str(path[-1])
    parent = model_at(path[:-1])
    here = list(by_alias(parent)) if parent is not None else []
    camel = to_camel(name.replace("-", "_")) if "_" in name or "-" in name else name
    lowered = {each.lower(): each for each in here}
    close = lowered.get(next(iter(get_close_matches(camel.lower(), list(lowered), n=1, cutoff=0.75)), ""))
    if close is not None:
        return [close], True
    if camel in places():
        return list(places()[camel]), False
    elsewhere = {each.lower(): each for each in places()}
    far = elsewhere.get(next(iter(get_close_matches(camel.lower(), list(elsewhere), n=1, cutoff=0.8)), ""))
    return (list(places()[far]), False) if far is not None else ([], False)


def _as_name(text: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return (f"job-{plain}" if plain[:1].isdigit() else plain)[:NAME_MAX].rstrip("-") or "my-job"


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _brief(value: Any) -> Any:
    """Mappings and lists are only named by kind: a whole block inside a message helps nobody."""
    if isinstance(value, Mapping):
        return f"mapping of {len(value)}"
    if isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        return f"list of {len(value)}"
    return value
