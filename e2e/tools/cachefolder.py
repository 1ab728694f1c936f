"""How processes share the folder in which tools are kept."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Report = Callable[[str], None]
SCRATCH_PREFIX = ".making-"


class ToolsError(RuntimeError):
    """A tool cannot be had; the message says what was tried and what to do."""


def report_to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def exclusive(folder: Path, report: Report) -> Iterator[None]:
    """One process at a time makes something in `folder`. The kernel frees the lock when the process and its compilers have ended."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        # A compiler outlives the process that is killed above it, and would still write: it holds the lock, too.
        os.set_inheritable(lock.fileno(), True)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"Another process is preparing tools in {folder}; waiting for it.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A new folder in `folder` to make something in and rename it from. Call under `exclusive`: what killed processes left is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{SCRATCH_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=folder))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def is_executable(file: Path) -> bool:
    return file.is_file() and os.access(file, os.X_OK)
