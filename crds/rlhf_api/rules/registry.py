"""How a cross-field rule is written down: once, with its text, its check, and its CEL form where CEL can say it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rlhf_api.presets import PRESETS, PresetValue
from rlhf_api.spec import JobSpec


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule: ``field`` and ``nearest`` as in Violation, ``detail`` the numbers of this case."""

    field: str
    """Dotted camelCase path below ``spec``."""
    value: object
    nearest: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Cel:
    """The rule for the API server. ``self`` is the spec after the schema's defaults, before any preset."""

    expression: str
    """True where the rule holds. It may never refuse what the rule accepts."""
    field: str
    """Where the API server reports it, a path below ``spec``."""


Check = Callable[[JobSpec], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Rule:
    id: str
    text: str
    check: Check
    cel: Cel | None
    warning: bool
    cluster: bool
    """Holds on a cluster only."""


RULES: list[Rule] = []


def rule(id: str, text: str, *, cel: Cel | None = None, warning: bool = False, cluster: bool = False) -> Callable[[Check], Check]:
    """Registers a check. ``text`` says what must hold, in the present tense and without a full stop.

    ``cluster``: checked by the API server, the operator and ``rlhf validate --cluster``, not by ``rlhf run``.
    """

    def register(check: Check) -> Check:
        RULES.append(Rule(id, text, check, cel, warning, cluster))
        return check

    return register


def effective(path: str) -> str:
    """CEL for a field below ``spec.rl`` that a preset sets: the manifest's value, else the preset's."""
    table = ", ".join(f"'{name}': {_literal(preset.fields[path])}" for name, preset in PRESETS.items())
    return f"(has(self.rl.{path}) ? self.rl.{path} : {{{table}}}[self.rl.algorithm])"


def _literal(value: PresetValue) -> str:
    return f"'{value}'" if isinstance(value, str) else repr(value)
