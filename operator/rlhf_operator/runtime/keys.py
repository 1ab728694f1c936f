"""Name of a job inside this process."""

from __future__ import annotations

from typing import NamedTuple


class JobKey(NamedTuple):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
