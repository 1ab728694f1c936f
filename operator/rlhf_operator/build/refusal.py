"""Why an object can't be built, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_api.violations import Violation


@dataclass(frozen=True, slots=True)
class Refused:
    """The job asks for something that fights what the operator or KubeRay owns. Nothing is created until the job is made anew."""

    violations: tuple[Violation, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.violations))
