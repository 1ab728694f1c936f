"""``status`` of an RLHFJob: what ``kubectl get`` and ``kubectl describe`` tell. Written by the operator only."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from rlhf_api.base import Strict

Phase = Literal["Pending", "Queued", "Provisioning", "Starting", "Running", "Suspending", "Suspended", "Restarting", "Succeeded", "Failed"]
ConditionType = Literal["Validated", "ClusterReady", "Running", "Suspended", "Complete", "Failed"]
FailureClass = Literal["User", "Infra", "Preempted", "Config"]

Short = Annotated[str, Field(max_length=253)]
Message = Annotated[str, Field(max_length=4096)]
Time = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
Decimal = Annotated[str, Field(max_length=32)]
"""A number as text: floats in a status are rewritten by every client that re-encodes them."""


class Observed(Strict):
    """A part of the status: fields that a newer version wrote are ignored."""

    model_config = ConfigDict(
        extra="ignore", strict=True, frozen=True, alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )


class Condition(Observed):
    type: ConditionType
    """What the condition speaks about."""

    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""

    observed_generation: int | None = None
    """Generation of the spec it was decided for."""

    last_transition_time: Time
    """When `status` last changed."""

    reason: Short
    """One word for machines."""

    message: Message = ""
    """One line for people."""


class ProgressStatus(Observed):
    step: int | None = None
    """Steps done."""

    total_steps: int | None = None
    """Steps planned."""

    epoch: int | None = None
    """Passes over the data that are done."""

    reward: Decimal | None = None
    """Mean reward of the last step."""

    kl: Decimal | None = None
    """Mean KL to the reference, nats a token."""

    tokens_per_second: Decimal | None = None
    """Tokens of the last step over its time."""

    eta: Short | None = None
    """Time left, such as 2h11m."""

    updated_at: Time | None = None
    """When the trainer last reported."""


class BestCheckpoint(Observed):
    step: int
    """Step of the best evaluation."""

    metric: Short
    """Name of the metric."""

    value: Decimal
    """Its value."""


class CheckpointStatus(Observed):
    step: int
    """Step of the last complete checkpoint."""

    path: Annotated[str, Field(max_length=1024)]
    """Folder on the volume."""

    committed_at: Time
    """When it became complete."""

    best: BestCheckpoint | None = None
    """The best checkpoint by evaluation."""


class Failure(Observed):
    attempt: int
    """Attempt that failed."""

    class_: Annotated[FailureClass, Field(alias="class")]
    """Whose failure it is."""

    reason: Short
    """One word for machines."""

    message: Message
    """One line for people, evidence below it."""

    at: Time
    """When it was seen."""


class RayClusterStatus(Observed):
    name: Short
    """Name of the RayCluster."""

    dashboard: Short | None = None
    """Address of Ray's dashboard inside the cluster."""


class RLHFJobStatus(Observed):
    phase: Phase | None = None
    """Derived from the conditions."""

    reason: Short | None = None
    """Reason of the last condition that matters."""

    message: Message | None = None
    """Message of the last condition that matters."""

    algorithm: Short | None = None
    """Name of the preset."""

    gpus: int | None = None
    """GPUs that the job uses."""

    conditions: list[Condition] = Field(default_factory=list, max_length=16)
    """The truth about the job, one entry a type."""

    observed_generation: int | None = None
    """Generation of the spec that this status is about."""

    attempt: int | None = None
    """Number of the current attempt, from 1."""

    progress: ProgressStatus | None = None
    """What the trainer last reported."""

    checkpoint: CheckpointStatus | None = None
    """The last complete checkpoint."""

    failures: list[Failure] = Field(default_factory=list, max_length=10)
    """The last ten failures."""

    ray_cluster: RayClusterStatus | None = None
    """The cluster of the current attempt."""
