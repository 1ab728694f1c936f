"""Time budgets as data: what a quiet machine of two cores is held to."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path

import yaml

FILE = Path(__file__).parents[1] / "budgets.yaml"
SLOW = "E2E_SLOW"


@dataclass(frozen=True, slots=True)
class Budgets:
    """Seconds; the file says from what to what."""

    helm_install: float
    pods_ready: float
    first_step: float
    run: float
    detect: float
    pods_back: float
    new_attempt: float
    operator_back: float
    reported: float
    suspend: float
    released: float
    gone: float


def load(path: Path = FILE, factor: float | None = None) -> Budgets:
    """The budgets times ``factor`` (default: E2E_SLOW, else 1). ValueError names a key that is missing, unknown or no number."""
    factor = float(os.environ.get(SLOW) or 1) if factor is None else factor
    given = yaml.safe_load(path.read_text())
    known = {field.name for field in fields(Budgets)}
    wrong = sorted(known.symmetric_difference(given))
    if wrong:
        raise ValueError(f"{path}: {', '.join(wrong)}: each of {', '.join(sorted(known))} stands there once and nothing else")
    for name, seconds in given.items():
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
            raise ValueError(f"{path}: {name}: {seconds!r} is no number of seconds above zero")
    return Budgets(**{name: seconds * factor for name, seconds in given.items()})
