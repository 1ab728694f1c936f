"""Checkpoints of one job: ``<root>/<namespace>/<job>/step-000140/``.

A save goes to a temporary name, is flushed, gets its manifest, and is renamed only while this attempt still holds the
claim. Old checkpoints are removed after that, so at every moment the folder holds a complete one.
"""

from __future__ import annotations

import logging
import pickle
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlhf_trainer.checkpoint import claim as claims
from rlhf_trainer.checkpoint import durable
from rlhf_trainer.checkpoint import fingerprint as fingerprints
from rlhf_trainer.checkpoint import manifest as manifests
from rlhf_trainer.checkpoint.manifest import DamagedError, Manifest
from rlhf_trainer.errors import ConfigError, JobError

DRIVER_STATE = "driver.pkl"
TEMPORARY = ".tmp-"
SWAPPED = ".swap-"
STEP_FOLDER = re.compile(r"^step-(\d{6,})$")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete, verified checkpoint folder."""

    step: int
    path: Path
    manifest: Manifest


class CheckpointStore:
    """Reads and writes the checkpoints of one job folder. Call ``claim`` before anything that writes.

    ``attempt`` is the operator's attempt number; None (a local start) continues at the stored one + 1.
    ``fingerprint`` comes from ``checkpoint.fingerprint.fingerprint``. Files above ``sample_hash_above_bytes`` get a
    digest of 64 sampled blocks instead of the whole file: faster on very large states, blind to a changed byte between
    the blocks (a wrong size is always noticed).
    """

    def __init__(
        self,
        job_dir: Path,
        *,
        job_uid: str,
        attempt: int | None,
        fingerprint: Mapping[str, Any],
        keep_last: int,
        world_size: int = 1,
        zero_stage: int = 0,
        sample_hash_above_bytes: int | None = None,
    ) -> None:
        self.job_dir = job_dir
        self.job_uid = job_uid
        self.fingerprint = dict(fingerprint)
        self.keep_last = keep_last
        self.world_size = world_size
        self.zero_stage = zero_stage
        self.sample_hash_above_bytes = sample_hash_above_bytes
        self._attempt = attempt
        self._claim: claims.Claim | None = None
        self._damaged: dict[int, str] = {}

    @property
    def attempt(self) -> int:
        """Number of this attempt in the folder's life; known after ``claim``."""
        return self._held().attempt

    @property
    def damaged(self) -> dict[int, str]:
        """Steps that ``latest`` passed over, and why."""
        return dict(self._damaged)

    def ensure_claim(self) -> None:
        """Raise FencedError when another attempt has taken the folder over."""
        claims.ensure(self.job_dir, self._held())

    def claim(self) -> int:
        """Take the folder over from any earlier attempt and remove what it left half done; returns the attempt number."""
        self.job_dir.mkdir(parents=True, exist_ok=True)
        self._claim = claims.take(self.job_dir, self.job_uid, self._attempt)
        for swapped in self.job_dir.glob(f"{SWAPPED}*"):
            target = self.job_dir / swapped.name.removeprefix(SWAPPED)
            if target.exists():
                _remove(swapped)
            else:
                swapped.rename(target)
        for leftover in self.job_dir.glob(f"{TEMPORARY}*"):
            log.info("removing unfinished %s", leftover.name)
            _remove(leftover)
        return self._claim.attempt

    def steps(self) -> list[int]:
        """Steps of all folders that have a manifest, ascending."""
        found = [(STEP_FOLDER.match(path.name), path) for path in self.job_dir.glob("step-*")]
        return sorted(int(match[1]) for match, path in found if match and (path / manifests.FILE_NAME).is_file())

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that holds what its manifest says; a damaged one is passed over with a log line.

        None = there is none at all. JobError when there are some and all are damaged: starting from zero in silence
        would throw the work away.
        """
        self._damaged.clear()
        for step in reversed(self.steps()):
            try:
                return self._open(step)
            except DamagedError as error:
                log.warning("%s is damaged and not used: %s", folder_name(step), error)
                self._damaged[step] = str(error)
        if self._damaged:
            listing = "".join(f"\n  {folder_name(step)}: {reason}" for step, reason in self._damaged.items())
            raise JobError(f"{self.job_dir}: every checkpoint is damaged{listing}\n  Nearest: restore one, or start again with --fresh.")
        return None

    def at(self, step: int) -> Checkpoint:
        """Exactly the checkpoint of ``step``, whatever else is there."""
        if step not in self.steps():
            there = ", ".join(map(str, self.steps())) or "none"
            raise ConfigError(f"{self.job_dir}: there is no complete checkpoint of step {step}\n  Steps that are there: {there}.")
        try:
            return self._open(step)
        except DamagedError as error:
            raise JobError(f"{self.job_dir / folder_name(step)}: damaged: {error}") from error

    def check_fingerprint(self, checkpoint: Checkpoint) -> None:
        """Raise ConfigError naming each field in which this job differs from the one that saved ``checkpoint``."""
        found = fingerprints.differences(checkpoint.manifest.fingerprint, self.fingerprint)
        if not found:
            return
        raise ConfigError(
            "\n".join(map(str, found)) + f"\n  Rule: {checkpoint.path} resumes only with the models, data, rl and training fields and "
            "the ranks it was saved with.\n  Nearest: set them back, give the job another name, or start this one again with --fresh."
        )

    def check_data(self, checkpoint: Checkpoint, data_fingerprint: str) -> None:
        """Raise ConfigError when the prepared data is not what ``checkpoint`` was trained on."""
        saved = checkpoint.manifest.data_fingerprint
        if saved != data_fingerprint:
            raise ConfigError(
                f"spec.data: the rows changed: {checkpoint.path} was made from data {saved}, the data is now {data_fingerprint}\n"
                "  Rule: a resumed run continues the same order of the same rows.\n"
                "  Nearest: put the data back, or start again with --fresh."
            )

    def load_state(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """The driver state that ``save`` was given. Its step must be the folder's."""
        with (checkpoint.path / DRIVER_STATE).open("rb") as file:
            step, state = pickle.load(file)
        if step != checkpoint.step:
            raise JobError(f"{checkpoint.path}: holds the state of step {step}")
        return dict(state)

    def save(self, step: int, write: Callable[[Path], Mapping[str, Any]], data_fingerprint: str = "") -> Checkpoint:
        """Commit a checkpoint.

        ``write`` fills the folder it is given (workers may write there too) and returns the driver's state, which is
        pickled beside it. JobError when the disk is full: the previous checkpoint is untouched and nothing half done stays.
        """
        held = self._held()
        temporary = self._temporary(folder_name(step))
        try:
            temporary.mkdir()
            state = write(temporary)
            with (temporary / DRIVER_STATE).open("wb") as file:
                pickle.dump((step, dict(state)), file, protocol=pickle.HIGHEST_PROTOCOL)
            manifest = Manifest(
                step=step,
                job_uid=self.job_uid,
                attempt=held.attempt,
                committed_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
                world_size=self.world_size,
                zero_stage=self.zero_stage,
                versions=manifests.installed_versions(),
                data_fingerprint=data_fingerprint,
                fingerprint=self.fingerprint,
                files=manifests.describe_files(temporary, self.sample_hash_above_bytes),
            )
            (temporary / manifests.FILE_NAME).write_text(manifest.model_dump_json(by_alias=True, indent=2))
            path = self._commit(temporary, folder_name(step))
        except BaseException as error:
            self._abandon(temporary, error, f"checkpoint of step {step}")
            raise
        self._damaged.pop(step, None)
        self._rotate(step)
        return Checkpoint(step, path, manifest)

    def export(self, name: str, write: Callable[[Path], None]) -> Path:
        """Replace ``<job>/<name>/`` (the final model) as safely as a checkpoint is saved."""
        temporary = self._temporary(name)
        try:
            temporary.mkdir()
            write(temporary)
            return self._commit(temporary, name)
        except BaseException as error:
            self._abandon(temporary, error, name)
            raise

    def _held(self) -> claims.Claim:
        if self._claim is None:
            raise RuntimeError("CheckpointStore.claim() was not called")
        return self._claim

    def _open(self, step: int) -> Checkpoint:
        path = self.job_dir / folder_name(step)
        manifest = manifests.read(path)
        if manifest.step != step:
            raise DamagedError(f"its manifest is of step {manifest.step}")
        manifests.verify(path, manifest)
        return Checkpoint(step, path, manifest)

    def _temporary(self, name: str) -> Path:
        held = self._held()
        return self.job_dir / f"{TEMPORARY}{name}-a{held.attempt}-{held.holder[:8]}"

    def _commit(self, temporary: Path, name: str) -> Path:
        durable.fsync_tree(temporary)
        claims.ensure(self.job_dir, self._held())
        target, swapped = self.job_dir / name, self.job_dir / f"{SWAPPED}{name}"
        if target.exists():
            # A kill before the second rename leaves only the swapped folder; `claim` puts it back.
            target.rename(swapped)
        temporary.rename(target)
        durable.fsync(self.job_dir)
        if swapped.exists():
            _remove(swapped)
        return target

    def _abandon(self, temporary: Path, error: BaseException, what: str) -> None:
        """Clean up after a failed write; raises the better explanation where there is one."""
        written = durable.tree_size(temporary) if temporary.exists() else 0
        free = shutil.disk_usage(self.job_dir).free
        full = durable.is_disk_full(error, self.job_dir)
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, claims.FencedError):
            return
        # A successor removes our temporary folder, which surfaces here as a missing file.
        claims.ensure(self.job_dir, self._held())
        if full:
            raise JobError(self._disk_full_message(what, written, free)) from error

    def _disk_full_message(self, what: str, written: int, free: int) -> str:
        kept = self.steps()
        if kept:
            needed = manifests.read(self.job_dir / folder_name(kept[-1])).size_bytes
            need = f"needs about {durable.format_bytes(needed)} ({needed} bytes, as the one of step {kept[-1]})"
            after = f"{folder_name(kept[-1])} is complete and kept; the next start continues from it."
        else:
            need = f"needs more than {durable.format_bytes(written + free)} ({written + free} bytes)"
            after = "There is no earlier checkpoint."
        there = f"{durable.format_bytes(written + free)} ({written + free} bytes) were free"
        return (
            f"{what}: the disk is full: it {need}, {there} in {self.job_dir}\n"
            f"  {after}\n  Nearest: free space there, lower checkpoint.keepLast, or set checkpoint.path to a larger volume."
        )

    def _rotate(self, committed: int) -> None:
        """Keep the ``keep_last`` newest good ones up to ``committed``.

        Later steps belong to a line of training that was left by going back to an earlier checkpoint; were they kept,
        the next start would jump back onto it.
        """
        good = [step for step in self.steps() if step <= committed and step not in self._damaged]
        keep = set(good[-self.keep_last :])
        for step in self.steps():
            if step not in keep:
                log.info("removing %s", folder_name(step))
                self._retire(folder_name(step))

    def _retire(self, name: str) -> None:
        # Renamed first: a kill while removing must not leave a folder that looks complete.
        doomed = self._temporary(f"old-{name}")
        (self.job_dir / name).rename(doomed)
        durable.fsync(self.job_dir)
        _remove(doomed)


def folder_name(step: int) -> str:
    """``140`` -> ``step-000140``."""
    return f"step-{step:06d}"


def _remove(path: Path) -> None:
    # What a network file system still holds open stays until the next claim.
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
