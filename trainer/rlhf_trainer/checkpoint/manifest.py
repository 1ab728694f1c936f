"""``manifest.json``: what a complete checkpoint folder contains. A folder without one does not exist."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from rlhf_api.base import Strict
from rlhf_trainer.errors import ConfigError

FILE_NAME = "manifest.json"
FORMAT = 1
PACKAGES = ("torch", "deepspeed", "transformers", "vllm", "ray", "numpy")

BLOCK_BYTES = 1 << 20
SAMPLED_BLOCKS = 64
HASH_THREADS = 8


class DamagedError(Exception):
    """The folder does not hold what its manifest says."""


class FileEntry(Strict):
    size: int = Field(ge=0)
    """Bytes."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Hex digest of the whole file, or with `sampled` of 64 blocks of 1 MiB spread evenly from the first to the last."""

    sampled: bool = False
    """The cheap digest, for files above the store's limit."""


class Manifest(Strict):
    format: int = FORMAT
    """Version of this file."""

    step: int = Field(ge=0)
    """Rollout steps done."""

    job_uid: str
    """UID of the job that wrote it."""

    attempt: int = Field(ge=1)
    """Attempt that wrote it."""

    committed_at: str
    """RFC 3339, UTC."""

    world_size: int = Field(ge=1)
    """Ranks of the actor."""

    zero_stage: int = Field(ge=0, le=3)
    """ZeRO stage of the sharded states."""

    versions: dict[str, str]
    """Installed packages."""

    data_fingerprint: str
    """Of the prepared data: sources, rows, order."""

    fingerprint: dict[str, Any]
    """Job fields that must not change, see `checkpoint.fingerprint`."""

    files: dict[str, FileEntry]
    """Every other file, by path relative to the folder."""

    @property
    def size_bytes(self) -> int:
        return sum(entry.size for entry in self.files.values())


@cache
def installed_versions() -> dict[str, str]:
    """Version of each of PACKAGES that is installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def digest(path: Path, sampled: bool) -> str:
    """SHA-256 of the file's bytes, or of 64 evenly spread blocks; a file of at most 64 blocks is read whole."""
    if not sampled:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    last = max(path.stat().st_size - BLOCK_BYTES, 0)
    state = hashlib.sha256()
    with path.open("rb") as file:
        for index in range(SAMPLED_BLOCKS):
            file.seek(last * index // (SAMPLED_BLOCKS - 1))
            state.update(file.read(BLOCK_BYTES))
    return state.hexdigest()


def describe_files(folder: Path, sample_above_bytes: int | None) -> dict[str, FileEntry]:
    """Size and digest of every file below ``folder`` except the manifest. Digests release the GIL, so threads help."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / FILE_NAME)

    def describe(path: Path) -> FileEntry:
        size = path.stat().st_size
        sampled = sample_above_bytes is not None and size > sample_above_bytes
        return FileEntry(size=size, sha256=digest(path, sampled), sampled=sampled)

    with ThreadPoolExecutor(HASH_THREADS) as pool:
        return dict(zip((path.relative_to(folder).as_posix() for path in paths), pool.map(describe, paths), strict=True))


def read(folder: Path) -> Manifest:
    """Parse the folder's manifest; raises DamagedError, or ConfigError when a newer release wrote it."""
    try:
        raw = json.loads((folder / FILE_NAME).read_bytes())
        if raw["format"] > FORMAT:
            raise ConfigError(
                f"{folder}: checkpoint format {raw['format']} is newer than this release reads ({FORMAT})\n"
                "  Nearest: resume with the release that wrote it, or start again with --fresh."
            )
        return Manifest.model_validate_json(json.dumps(raw))
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        raise DamagedError(f"{FILE_NAME} is unreadable: {error}") from error


def verify(folder: Path, manifest: Manifest) -> None:
    """Raise DamagedError naming the first file whose size or digest is not what the manifest says."""
    for name, entry in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise DamagedError(f"{name} is missing")
        if (size := path.stat().st_size) != entry.size:
            raise DamagedError(f"{name} has {size} bytes instead of {entry.size}")

    def holds(item: tuple[str, FileEntry]) -> bool:
        name, entry = item
        return digest(folder / name, entry.sampled) == entry.sha256

    with ThreadPoolExecutor(HASH_THREADS) as pool:
        for name, good in zip(manifest.files, pool.map(holds, manifest.files.items()), strict=True):
            if not good:
                raise DamagedError(f"{name} has other content than when it was saved")
