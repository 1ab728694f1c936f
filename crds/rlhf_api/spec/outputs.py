"""``spec.checkpoint``, ``spec.evaluation`` and ``spec.logging``: what a job leaves behind."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlhf_api.base import Strict
from rlhf_api.spec.cluster import Name, Quantity
from rlhf_api.spec.data import DatasetSpec

AccessMode = Literal["ReadWriteMany", "ReadWriteOnce"]


def _shared() -> list[AccessMode]:
    return ["ReadWriteMany"]


class NewClaimSpec(Strict):
    size: Quantity
    """Size of the volume, such as `500Gi`."""

    storage_class_name: Name | None = None
    """Storage class. Absent = the cluster's default."""

    access_modes: list[AccessMode] = Field(default_factory=_shared, min_length=1, max_length=2)
    """How the volume can be mounted; pods on several nodes need ReadWriteMany."""

    retain: bool = True
    """Keep the volume when the job is deleted."""


class CheckpointVolumeSpec(Strict):
    existing_claim: Name | None = None
    """Name of a PersistentVolumeClaim in the job's namespace."""

    create: NewClaimSpec | None = None
    """Make a PersistentVolumeClaim `NAME-ckpt` for this job."""


class CheckpointSpec(Strict):
    path: str | None = Field(None, min_length=1, max_length=1024)
    """Root folder of `rlhf run`, default `runs` in the current folder; the job writes to PATH/NAMESPACE/NAME. On a cluster: the volume."""

    volume: CheckpointVolumeSpec | None = None
    """Volume of checkpoints on a cluster, where it is needed; the job writes to NAMESPACE/NAME on it. No effect in `rlhf run`."""

    every_steps: int = Field(20, ge=1, le=1_000_000)
    """Save after this many steps; the last step is always saved."""

    keep_last: int = Field(3, ge=1, le=1000)
    """Complete checkpoints to keep; older ones are removed after a new one is complete."""

    export_hugging_face: bool = True
    """Write the final model as a Hugging Face folder `final/`."""


class EvaluationSpec(Strict):
    datasets: list[DatasetSpec] = Field(min_length=1, max_length=16)
    """Held-out prompts, read with the keys and template of `data`."""

    every_steps: int | None = Field(None, ge=1, le=1_000_000)
    """Evaluate after this many steps. Always before the first and after the last; absent = only then."""

    samples_per_prompt: int = Field(1, ge=1, le=1024)
    """Responses a prompt."""

    temperature: float = Field(0.0, ge=0.0, le=2.0)
    """Sampling temperature (no unit); 0 = greedy."""

    pass_at: list[Annotated[int, Field(ge=1, le=1024)]] = Field(default_factory=lambda: [1], max_length=8)
    """k of pass@k, each at most samplesPerPrompt. A score of at least passScore is a pass."""

    pass_score: float = Field(1.0, ge=-1000.0, le=1000.0)
    """Score from which a response counts as right."""


class LoggingSpec(Strict):
    tensorboard: bool = True
    """Write TensorBoard events to the job's folder."""
