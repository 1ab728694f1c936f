"""One fault of a manifest, said the same way everywhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule.

    ``field`` is a dotted path with camelCase names and list indices (``spec.rl.reward.sources[0].function``),
    ``value`` what the manifest says, ``rule`` why that is refused, ``nearest`` what would work.
    """

    field: str
    value: object
    rule: str
    nearest: str | None = None

    def __str__(self) -> str:
        tail = f" Nearest: {self.nearest}." if self.nearest else ""
        return f"{self.field}: {self.value!r}\n  Rule: {self.rule}.{tail}"
