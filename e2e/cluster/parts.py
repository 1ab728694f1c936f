"""What the host side and the supervisor inside say to each other about processes: one JSON object a line over a unix socket."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SOCKET_NAME = "init.sock"
REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Part:
    """A long-running process of the cluster; its output is appended to `logs/NAME.log` of the run folder.

    `env` is added to the supervisor's own environment. `stop_grace_seconds` is how long a stop waits after SIGTERM before it sends SIGKILL.
    `inherit` lists descriptors of the supervisor which the process keeps under the same number.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/"
    stop_grace_seconds: float = 5.0
    inherit: tuple[int, ...] = ()

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Part:
        """The part a JSON object describes."""
        return cls(**{**data, "argv": tuple(data["argv"]), "inherit": tuple(data["inherit"])})

    def to_wire(self) -> dict[str, Any]:
        """This part as a JSON object."""
        return asdict(self) | {"env": dict(self.env)}


@dataclass(frozen=True)
class PartState:
    """One part as the supervisor sees it. `pid` counts inside the sandbox; `exit_status` is negative for a signal, as in `subprocess`."""

    name: str
    pid: int
    running: bool
    paused: bool = False
    exit_status: int | None = None
    num_starts: int = 1
    started_at: float = 0.0
    resident_bytes: int = 0
    cpu_seconds: float = 0.0

    def describe(self) -> str:
        """One word or two for people: running, paused, exited 1, killed by signal 9."""
        if self.running:
            return "paused" if self.paused else "running"
        if self.exit_status is not None and self.exit_status < 0:
            return f"killed by signal {-self.exit_status}"
        return f"exited {self.exit_status}"


@contextmanager
def socket_address(folder: Path) -> Iterator[str]:
    """An address for the supervisor's socket that fits into a unix socket's 108 bytes, however deep `folder` lies."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


class SupervisorError(RuntimeError):
    """The supervisor refused a request, or is not there."""


def request(folder: Path, timeout_seconds: float, message: Mapping[str, Any]) -> Any:
    """Sends one request to the supervisor of the run folder and returns its answer's `result`; raises SupervisorError and OSError."""
    with socket_address(folder) as address, socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_seconds)
        connection.connect(address)
        connection.sendall(json.dumps(message).encode() + b"\n")
        with connection.makefile("rb") as stream:
            line = stream.readline()
    if not line:
        raise SupervisorError(f"{folder / SOCKET_NAME}: closed before it answered {message['op']!r}")
    answer = json.loads(line)
    if "error" in answer:
        raise SupervisorError(str(answer["error"]))
    return answer["result"]


def python_part(name: str, module: str, *arguments: str) -> Part:
    """A part that is a module of this repository, run by the interpreter of this process."""
    return Part(name, (sys.executable, "-m", module, *arguments), env={"PYTHONUNBUFFERED": "1"}, cwd=str(REPOSITORY))
