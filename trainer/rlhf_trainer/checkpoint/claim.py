"""``claim.json``: who may write into a job's folder.

A new attempt takes the claim; whoever held it before finds out at its next commit and stops. So a driver that was
presumed dead (a lost node, a stopped process) can never overwrite what its successor wrote.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from pydantic import Field, ValidationError

from rlhf_api.base import Strict
from rlhf_trainer.checkpoint import durable
from rlhf_trainer.errors import ConfigError, JobError

FILE_NAME = "claim.json"
MAX_SUPERSEDED = 16


class FencedError(JobError):
    """Another attempt took over this job's folder."""


class Claim(Strict):
    job_uid: str = Field(min_length=1)
    """UID of the job."""

    attempt: int = Field(ge=1)
    """Number of this attempt in the folder's life; it never falls."""

    offset: int = Field(0, ge=0)
    """Attempts in this folder before `jobUid` came; the operator's attempt N is number offset + N here."""

    holder: str
    """Random id of the process, so that two starts of one attempt differ."""

    superseded: list[str] = Field(default_factory=list)
    """UIDs that held the folder before; none of them may come back."""


def read(job_dir: Path) -> Claim | None:
    """The stored claim; ConfigError when the file is not one."""
    path = job_dir / FILE_NAME
    try:
        return Claim.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise ConfigError(
            f"{path}: not a claim file ({error.errors()[0]['msg']})\n  Nearest: remove the file when no run of this job is active."
        ) from error


def decide(stored: Claim | None, job_uid: str, attempt: int | None, holder: str) -> Claim:
    """The next claim. ``attempt`` is the operator's number for this UID; None (a local start) = the stored one + 1."""
    if stored is None:
        return Claim(job_uid=job_uid, attempt=attempt or 1, holder=holder)
    same_job = stored.job_uid == job_uid
    superseded = stored.superseded if same_job else [*stored.superseded, stored.job_uid][-MAX_SUPERSEDED:]
    if attempt is None:
        offset = stored.offset if same_job else stored.attempt
        return Claim(job_uid=job_uid, attempt=stored.attempt + 1, offset=offset, holder=holder, superseded=superseded)
    if not same_job:
        if job_uid in stored.superseded:
            raise FencedError(f"job {job_uid}: its folder now belongs to job {stored.job_uid} (attempt {stored.attempt})")
        return Claim(job_uid=job_uid, attempt=stored.attempt + attempt, offset=stored.attempt, holder=holder, superseded=superseded)
    number = stored.offset + attempt
    if number < stored.attempt:
        raise FencedError(f"attempt {number} of job {job_uid}: attempt {stored.attempt} has taken over")
    return stored.model_copy(update={"attempt": number, "holder": holder})


def take(job_dir: Path, job_uid: str, attempt: int | None) -> Claim:
    """Write the next claim and return it."""
    claim = decide(read(job_dir), job_uid, attempt, uuid.uuid4().hex)
    with durable.full_disk_named(job_dir / FILE_NAME):
        durable.write_json(job_dir / FILE_NAME, claim.model_dump(mode="json", by_alias=True))
    return claim


def ensure(job_dir: Path, mine: Claim) -> None:
    """Raise FencedError unless ``mine`` is still the stored claim."""
    stored = read(job_dir)
    if stored is None:
        raise FencedError(f"attempt {mine.attempt}: {job_dir / FILE_NAME} is gone, so this run may not write any more")
    if stored.holder != mine.holder:
        raise FencedError(
            f"attempt {mine.attempt} of job {mine.job_uid} may not write to {job_dir} any more: "
            f"attempt {stored.attempt} of job {stored.job_uid} has taken over"
        )
