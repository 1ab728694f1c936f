"""Writes that survive a crash: nothing is visible under its final name before it is on disk.

A rename is atomic on POSIX file systems, and durable once the parent folder is fsynced.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlhf_trainer.errors import JobError

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def fsync(path: Path) -> None:
    """Flush one file or folder to the device, whichever process wrote it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_tree(folder: Path) -> None:
    """Flush every file and folder below ``folder``, then ``folder`` itself."""
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            fsync(Path(parent, name))
        fsync(Path(parent))


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` atomically."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Replace ``path`` atomically."""
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` atomically with indented JSON."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def tree_size(folder: Path) -> int:
    """Bytes of all files below ``folder``."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def is_disk_full(error: BaseException, folder: Path) -> bool:
    """Whether ``error`` comes from a full disk, also when it crossed a process or a C++ writer that hides errno.

    torch's zip writer reports a full disk as a RuntimeError about a file position, so the free space of the volume
    counts as evidence too.
    """
    for link in _chain(error):
        if isinstance(link, OSError) and link.errno in DISK_FULL:
            return True
        if "No space left on device" in str(link) or "Disk quota exceeded" in str(link):
            return True
    return isinstance(error, OSError | RuntimeError) and shutil.disk_usage(folder).free < 1 << 20


@contextmanager
def full_disk_named(path: Path) -> Iterator[None]:
    """Turn a full disk while writing the small file ``path`` into a JobError that says so."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        free = format_bytes(shutil.disk_usage(path.parent).free)
        raise JobError(f"{path}: the disk is full ({free} free)\n  Nearest: free space there; the next start resumes.") from error


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def format_bytes(size: float) -> str:
    """``1536`` -> ``1.5 KiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
