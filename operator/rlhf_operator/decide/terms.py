"""What the decisions need of a spec, read in one place."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_api.spec import RLHFJob
from rlhf_api.spec.lifecycle import LifecycleSpec


@dataclass(frozen=True, slots=True)
class Terms:
    suspend: bool
    algorithm: str
    queue: str
    """Kueue's LocalQueue, empty without one."""
    isolate: bool
    creates_claim: bool
    claim_size: str
    """Size of the claim that the operator makes, as the job says it; empty where it makes none."""
    existing_claim: str | None
    """Claim of the checkpoint volume that somebody else made."""
    grace_seconds: float
    """For a checkpoint, when the trainer is asked to stop or its pod is deleted."""
    lifecycle: LifecycleSpec


def terms_of(job: RLHFJob) -> Terms:
    spec = job.spec
    volume = spec.checkpoint.volume
    return Terms(
        suspend=spec.suspend,
        algorithm=spec.rl.algorithm,
        queue=spec.cluster.queue_name or "",
        isolate=spec.cluster.network.isolate,
        creates_claim=volume is not None and volume.create is not None,
        claim_size=str(volume.create.size) if volume is not None and volume.create is not None else "",
        existing_claim=volume.existing_claim if volume is not None else None,
        grace_seconds=float(spec.cluster.termination_grace_period_seconds),
        lifecycle=spec.lifecycle,
    )
