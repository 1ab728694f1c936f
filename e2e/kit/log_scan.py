"""Looks for errors nobody asked for in the logs of cluster parts and operators, after each test."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ERROR_LINE = re.compile(
    r"^E\d{4} "  # klog
    r"|\"level\": ?\"(error|critical|fatal)\""
    r"|\bERROR\b|\bpanic:|\bfatal error:|\bTraceback \(most recent call last\)|is forbidden:"
)

# Lines that a healthy cluster writes; each with its reason.
HARMLESS: tuple[tuple[str, str], ...] = (
    (r"Operation cannot be fulfilled on .*the object has been modified", "an update conflict, retried by its writer"),
    (r"(not found|NotFound).*(pods|rayclusters|services|namespaces|serviceaccounts|endpoints)", "deleted while it was being handled"),
    (r"(pods|rayclusters\.ray\.io|services|namespaces|endpointslices) \\?\".*\\?\" not found", "deleted while it was being handled"),
    (r"because it is being terminated", "created in a namespace that goes away"),
    (r"StorageError: invalid object", "deleted while it was being handled"),
)


@dataclass
class LogScan:
    """Remembers how far each log file was read; ``new_errors`` gives what appeared since."""

    files: Mapping[str, Path]
    """Name of the part -> its log file."""
    allowed: list[str] = field(default_factory=list)
    """Further patterns, for instance of a test that stops the API server."""
    _read: dict[str, int] = field(default_factory=dict)

    def skip(self) -> None:
        """Everything until now is somebody else's."""
        for name, path in self.files.items():
            self._read[name] = path.stat().st_size if path.exists() else 0

    def new_errors(self) -> list[str]:
        found: list[str] = []
        for name, path in self.files.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                start = self._read.get(name, 0)
                # A restarted part may begin its log anew.
                file.seek(start if start <= path.stat().st_size else 0)
                text = file.read().decode(errors="replace")
                self._read[name] = file.tell()
            found += [f"{name}: {line}" for line in unexpected(text.splitlines(), self.allowed)]
        return found


def unexpected(lines: Iterable[str], allowed: Iterable[str] = ()) -> list[str]:
    """The lines that report an error and match neither ``HARMLESS`` nor ``allowed``."""
    harmless = [re.compile(pattern) for pattern in (*(pattern for pattern, _ in HARMLESS), *allowed)]
    return [line for line in lines if ERROR_LINE.search(line) and not any(pattern.search(line) for pattern in harmless)]
