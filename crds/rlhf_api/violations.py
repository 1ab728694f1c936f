"""One fault of a manifest, said the same way everywhere."""

from __future__ import annotations

import re
from dataclasses import dataclass

_URL_LOGIN = re.compile(r"(?<=://)[^/@\s:]*:[^/@\s]+(?=@)")
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}"
    r"|glpat-[\w-]{20,}|xox[abp]-[\w-]{20,}|AKIA[A-Z0-9]{16})\b"
)
_SHOWN = 120


def find_secret(text: str) -> str | None:
    """What kind of secret stands in ``text``, by the prefixes that hubs and clouds give their tokens."""
    if _URL_LOGIN.search(text):
        return "a password in a URL"
    return "an access token" if _TOKEN.search(text) else None


def mask(text: str) -> str:
    """``text`` without URL logins and access tokens, so that no message can leak one."""
    return _TOKEN.sub("***", _URL_LOGIN.sub("***", text))


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
