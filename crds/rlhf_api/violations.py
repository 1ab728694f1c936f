"""One fault of a manifest, said the same way everywhere."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_api.masking import mask

_SHOWN = 120


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule.

    ``field`` is a dotted path with camelCase names and list indices (``spec.rl.reward.sources[0].function``),
    ``value`` what the manifest says, ``rule`` why that is refused, ``nearest`` what would work, ``where`` the place
    in a file (``job.yaml:12``) or the override (``--set rl.kl.coef=x``) it comes from.
    """

    field: str
    value: object
    rule: str
    nearest: str | None = None
    where: str | None = None

    def __str__(self) -> str:
        head = f"{self.where}: {self.field}" if self.where else self.field
        if self.value is not None:
            head += f": {_shown(self.value)}"
        tail = f" Nearest: {self.nearest}." if self.nearest else ""
        return mask(f"{head}\n  Rule: {self.rule}.{tail}")


def quoted(value: object) -> str:
    """What to write instead of ``value`` where a text belongs."""
    if value is None:
        return '"" for an empty text'
    if isinstance(value, bool):
        return "quotes around it, since YAML reads yes, on and y as true, and no, off and n as false"
    return f'"{value}" in quotes'


def _shown(value: object) -> str:
    """YAML spelling of short values; long ones are cut."""
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
