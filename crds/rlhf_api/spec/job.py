"""The RLHFJob object."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from rlhf_api.base import Strict
from rlhf_api.spec.cluster import DNS_LABEL, ClusterSpec
from rlhf_api.spec.data import DataSpec
from rlhf_api.spec.lifecycle import LifecycleSpec
from rlhf_api.spec.models import ModelsSpec
from rlhf_api.spec.outputs import CheckpointSpec, EvaluationSpec, LoggingSpec
from rlhf_api.spec.placement import PlacementSpec
from rlhf_api.spec.rl import RlSpec
from rlhf_api.spec.training import TrainingSpec

NAME_MAX = 40
NAME_RULE = "lower-case letters, digits and -, first a letter, last a letter or digit"
JOB_NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""DNS-1035: services are named after the job, so its name begins with a letter."""


class Metadata(Strict):
    """The part of ObjectMeta that the contract reads; whatever else Kubernetes writes there is ignored."""

    model_config = ConfigDict(
        extra="ignore", strict=True, frozen=True, alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )

    name: str = Field(min_length=1, max_length=NAME_MAX, pattern=JOB_NAME)
    """At most 40 characters: children are named after it plus a fixed suffix."""

    namespace: str = Field("default", min_length=1, max_length=63, pattern=DNS_LABEL)
    """Namespace; locally a folder level."""

    uid: str | None = None
    """Set by the API server; a local run draws one."""

    generation: int | None = None
    """Set by the API server."""

    labels: Annotated[dict[str, str], Field(default_factory=dict)]
    """Labels."""

    annotations: Annotated[dict[str, str], Field(default_factory=dict)]
    """Annotations."""


class JobSpec(Strict):
    suspend: bool = False
    """Stop after a checkpoint and release all pods; false again continues. No effect in `rlhf run`."""

    rl: RlSpec
    """Reinforcement learning from rewards."""

    models: ModelsSpec
    """Weights each role starts from."""

    data: DataSpec
    """Prompts and labels."""

    training: TrainingSpec = Field(default_factory=lambda: TrainingSpec())
    """Batches, optimizer, precision."""

    placement: PlacementSpec = Field(default_factory=lambda: PlacementSpec())
    """Devices of each role."""

    cluster: ClusterSpec = Field(default_factory=lambda: ClusterSpec())
    """Pods on a cluster. No effect in `rlhf run`."""

    checkpoint: CheckpointSpec = Field(default_factory=lambda: CheckpointSpec())
    """Saving and resuming."""

    evaluation: EvaluationSpec | None = None
    """Held-out prompts. Absent = no evaluation."""

    logging: LoggingSpec = Field(default_factory=lambda: LoggingSpec())
    """Where metrics go."""

    lifecycle: LifecycleSpec = Field(default_factory=lambda: LifecycleSpec())
    """Deadlines, restarts and clean-up on a cluster. No effect in `rlhf run`."""


class RLHFJob(Strict):
    api_version: Literal["rlhf.dev/v1alpha1"]
    """Version of this contract."""

    kind: Literal["RLHFJob"]
    """Kind of object."""

    metadata: Metadata
    """Name and namespace."""

    spec: JobSpec
    """What to train, on what, where."""
