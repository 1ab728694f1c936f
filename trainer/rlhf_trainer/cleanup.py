"""Nothing of a run stays behind, even when its driver is killed with SIGKILL.

Every process of a run inherits one marker variable: Ray's servers and workers, vLLM's engine processes, the reward
process. A guardian, a process of its own that needs only the standard library, waits for the driver's end and then
ends whatever still carries the marker, and removes the run's Ray folder and shared memory. It is started as a script
by path, so that it lives without the packages of the virtual environment.

A process is recognised by its environment at ``exec`` (``/proc/PID/environ``) or as a descendant of one that is. A
child that the driver itself forks without ``exec`` has the driver's environment, so it is not found.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

MARK_VARIABLE = "RLHF_RUN_MARK"
GRACE_SECONDS = 5.0
GIVE_UP_SECONDS = 15.0
"""After SIGKILL: only a process that hangs in the kernel is left then."""
POLL_SECONDS = 0.05
SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_PREFIXES = ("psm_", "torch_", "nccl-")
"""Names that Python, torch and NCCL give to segments. Anything else there may be a user's data or weights."""

SOCKET_BYTES = 107
"""Linux's limit for the path of a socket."""
LONGEST_SOCKET = "session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
"""Of Ray 2.60 below its folder: date, time, microseconds and the largest pid."""
SHORT_FOLDER = Path("/tmp")


def new_mark() -> str:
    """A random id of a run; short, because socket paths below ``ray_folder`` are limited to 107 bytes."""
    return secrets.token_hex(4)


def ray_folder(mark: str) -> Path:
    """The run's own Ray folder: in the folder for temporary files, or in /tmp where that leaves no room for Ray's sockets."""
    usual = Path(tempfile.gettempdir())
    for parent in (usual, SHORT_FOLDER):
        folder = parent / f"rlhf-{mark}"
        if len(os.fsencode(folder / LONGEST_SOCKET)) <= SOCKET_BYTES and os.access(parent, os.W_OK | os.X_OK):
            return folder
    room = SOCKET_BYTES - len(f"/rlhf-{mark}/{LONGEST_SOCKET}")
    raise OSError(
        errno.ENAMETOOLONG,
        f"TMPDIR {usual} is too long for the sockets of Ray, and {SHORT_FOLDER} can't be written; set a TMPDIR of at most {room} bytes",
    )


def marked_environment(mark: str) -> dict[str, str]:
    """What to put into ``os.environ`` before the first child starts.

    SPT_NOENV keeps setproctitle, which Ray and vLLM call, from writing process titles over ``/proc/PID/environ``.
    """
    return {MARK_VARIABLE: mark, "SPT_NOENV": "1"}


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    start: int
    """Clock ticks after boot; with the pid it names one process for ever."""
    parent: int = field(compare=False)
    """Changes when the parent dies."""


class Guardian:
    """``with Guardian.start(mark, remove=[ray_folder(mark)]): ...`` around a run, in the driver's process.

    The normal end sweeps at once; when the driver dies instead, the guardian does.
    """

    def __init__(self, process: subprocess.Popen[bytes], pipe: int, mark: str, remove: Sequence[Path], grace_seconds: float) -> None:
        self._process = process
        self._pipe = pipe
        self._mark = mark
        self._remove = remove
        self._grace_seconds = grace_seconds

    @classmethod
    def start(cls, mark: str, remove: Iterable[Path] = (), grace_seconds: float = GRACE_SECONDS) -> Guardian:
        """``remove``: folders of the run, each with the mark in its name. Processes get SIGTERM, after the grace SIGKILL."""
        remove = tuple(remove)
        for path in remove:
            if mark not in path.name:
                raise ValueError(f"{path} does not carry the mark {mark}")
        read_end, write_end = os.pipe()
        environment = {name: value for name, value in os.environ.items() if name != MARK_VARIABLE}
        command = [sys.executable, "-I", "-S", __file__, mark, str(os.getpid()), str(grace_seconds), *map(str, remove)]
        # Its own session and no inherited stream: Ctrl-C must not reach it, and `rlhf run | tee log` must end with the driver.
        process = subprocess.Popen(
            command,
            stdin=read_end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
        os.close(read_end)
        return cls(process, write_end, mark, remove, grace_seconds)

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> int:
        """Sweep now and let the guardian go; returns how many processes had been left."""
        found = sweep(self._mark, remove=self._remove, grace_seconds=self._grace_seconds, spare=[self.pid])
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, b".")
        os.close(self._pipe)
        self._process.wait()
        return found

    def __enter__(self) -> Guardian:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def sweep(mark: str, *, remove: Iterable[Path] = (), grace_seconds: float = GRACE_SECONDS, spare: Collection[int] = ()) -> int:
    """End every process that carries ``mark``, then remove its shared memory and the folders ``remove``.

    The caller, its ancestors and ``spare`` are left alone. Returns how many processes were found.
    """
    found: set[Process] = set()
    told: set[Process] = set()
    segments: set[Path] = set()
    begin = time.monotonic()
    while True:
        living = processes()
        carriers = _carriers(living, mark, found, {*spare, *_ancestors(living, os.getpid())})
        passed = time.monotonic() - begin
        if not carriers or passed > grace_seconds + GIVE_UP_SECONDS:
            break
        found |= carriers
        segments |= {path for process in carriers for path in shared_memory(process.pid)}
        late = passed >= grace_seconds
        for process in carriers if late else carriers - told:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL if late else signal.SIGTERM)
        told |= carriers
        time.sleep(POLL_SECONDS)
    _remove_shared_memory(segments, mark)
    for path in remove:
        shutil.rmtree(path, ignore_errors=True)
    return len(found)


def processes() -> dict[int, Process]:
    """Every living process by pid; zombies are dead."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # proc(5): the command in parentheses may hold anything, so fields count from the last parenthesis.
            state, parent, *rest = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if state not in "ZX":
            found[int(entry.name)] = Process(int(entry.name), int(rest[17]), int(parent))
    return found


def is_marked(pid: int, mark: str) -> bool:
    """Whether the process was started with the marker."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{MARK_VARIABLE}={mark}".encode() in environment.split(b"\0")


def shared_memory(pid: int) -> set[Path]:
    """Segments in /dev/shm that the process maps and whose name says that a library made them."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    mapped = {Path(line.split(maxsplit=5)[5]) for line in lines if f" {SHARED_MEMORY}/" in line and not line.endswith("(deleted)")}
    return {path for path in mapped if path.parent == SHARED_MEMORY and path.name.startswith(SHARED_MEMORY_PREFIXES)}


def _carriers(living: Mapping[int, Process], mark: str, known: Collection[Process], spare: Collection[int]) -> set[Process]:
    carriers = {process for pid, process in living.items() if pid not in spare and (process in known or is_marked(pid, mark))}
    children: dict[int, list[Process]] = {}
    for process in living.values():
        children.setdefault(process.parent, []).append(process)
    pending = list(carriers)
    while pending:
        for child in children.get(pending.pop().pid, ()):
            if child not in carriers and child.pid not in spare:
                carriers.add(child)
                pending.append(child)
    return carriers


def _ancestors(living: Mapping[int, Process], pid: int) -> set[int]:
    line = {pid}
    while pid in living and living[pid].parent not in line:
        pid = living[pid].parent
        line.add(pid)
    return line


def _remove_shared_memory(segments: Collection[Path], mark: str) -> None:
    if not SHARED_MEMORY.is_dir():
        return
    used = {path for pid in processes() for path in shared_memory(pid)} if segments else set()
    named = {path for path in SHARED_MEMORY.iterdir() if mark in path.name}
    for path in (set(segments) - used) | named:
        with contextlib.suppress(OSError):
            path.unlink()


def _wait_for_end(parent: int) -> bool:
    """Block until the driver closes the guardian (True) or dies (False).

    The pipe alone would not do: a child that the driver forked without ``exec`` holds the other end as well.
    """
    watched: list[int] = [sys.stdin.fileno()]
    with contextlib.suppress(OSError):
        watched.append(os.pidfd_open(parent))
    if os.getppid() != parent:
        return False
    ready, _, _ = select.select(watched, [], [])
    if watched[0] in ready:
        return bool(os.read(watched[0], 1))
    return False


def _main(mark: str, parent: str, grace_seconds: str, *remove: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if not _wait_for_end(int(parent)):
        sweep(mark, remove=map(Path, remove), grace_seconds=float(grace_seconds))


if __name__ == "__main__":
    _main(*sys.argv[1:])
