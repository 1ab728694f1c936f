"""``spec.lifecycle``: deadlines, retries, and what is left when a job ends. May be edited while the job exists."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_api.base import Strict

Cleanup = Literal["cluster", "workers", "none"]
_YEAR = 365 * 86_400


class CleanupPolicy(Strict):
    on_success: Cleanup = "cluster"
    """What is removed after success: the whole Ray cluster, its workers only, or nothing. Checkpoints always stay."""

    on_failure: Cleanup = "workers"
    """What is removed after failure; with `workers` the head stays and its logs can be read."""


class LifecycleSpec(Strict):
    backoff_limit: int = Field(0, ge=0, le=100)
    """Restarts after failures that are the user's (no unit)."""

    max_infra_restarts: int = Field(10, ge=0, le=1000)
    """Restarts after failures of the cluster (no unit); those older than a day that were followed by new steps do not count."""

    provisioning_deadline_seconds: int = Field(1800, ge=30, le=_YEAR)
    """Seconds the pods may take until all are ready. Waiting in a queue does not count."""

    progress_deadline_seconds: int = Field(3600, ge=30, le=_YEAR)
    """Seconds without a new step after which an attempt counts as stalled."""

    active_deadline_seconds: int | None = Field(None, ge=30, le=_YEAR)
    """Seconds of training after which the job writes a checkpoint and fails; a suspension starts them anew. Absent = none."""

    ttl_seconds_after_finished: int | None = Field(None, ge=0, le=_YEAR)
    """Seconds after the end when the RLHFJob itself is deleted. Absent = never."""

    cleanup_policy: CleanupPolicy = Field(default_factory=lambda: CleanupPolicy())
    """What is removed when the job ends."""
