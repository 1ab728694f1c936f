"""``status`` of an RLHFJob: what ``kubectl get`` and ``kubectl describe`` tell. Written by the operator only."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from rlhf_api.base import Strict

Phase = Literal["Pending", "Queued", "Provisioning", "Starting", "Running", "Suspending", "Suspended", "Restarting", "Succeeded", "Failed"]
ConditionType = Literal["Validated", "ClusterReady", "Running", "Suspended", "Complete", "Failed"]
FailureClass = Literal["User", "Infra", "Preempted", "Config"]
StopReason = Literal["Suspend", "ActiveDeadline", "Stalled", "WorkerLost", "Fence"]
Outcome = Literal["Succeeded", "Stopped", "Failed", "Preempted"]

MAX_FAILURES = 10
MAX_EVIDENCE = 10
MAX_CHARGES = 100
MAX_AVOID_NODES = 8
MESSAGE_MAX = 4096

Short = Annotated[str, Field(max_length=253)]
Message = Annotated[str, Field(max_length=MESSAGE_MAX)]
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

    stage: Short | None = None
    """What the trainer is doing: load, rollout, update, …"""

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
    """Steps that were done."""

    metric: Short
    """Name of the metric, as in metrics.jsonl."""

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
    """The best evaluation so far."""


class ModelStatus(Observed):
    step: int
    """Steps that the weights hold."""

    path: Annotated[str, Field(max_length=1024)]
    """Hugging Face folder on the volume."""


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

    step: int | None = None
    """Steps that were done."""

    exit_code: int | None = None
    """Exit code of the trainer, where there was one."""


class Evidence(Observed):
    """What happened to a pod during an attempt, written down when it is seen: failed pods are removed within seconds."""

    attempt: int
    """Attempt that ran."""

    pod: Short
    """Name of the pod."""

    container: Short | None = None
    """Container, where it was one."""

    head: bool = False
    """Whether it was the head."""

    node: Short | None = None
    """Node that the pod ran on."""

    reason: Short
    """OOMKilled, Evicted, PodDeleted, a reason of DisruptionTarget, …"""

    exit_code: int | None = None
    """Exit code of the container."""

    message: Annotated[str, Field(max_length=512)] = ""
    """The cluster's own words."""

    at: Time
    """When it was seen."""


class HeadIdentity(Observed):
    """A head is one container in one pod: with either, Ray's memory of every job is gone."""

    pod_uid: Short
    """UID of the pod."""

    container_id: Short
    """ID of Ray's container."""


class RunStatus(Observed):
    """The submission of the current attempt. It stays after its end, until the next attempt begins."""

    submission_id: Short
    """Name in the Ray Jobs API: NAME-aN."""

    submitted_at: Time
    """When the attempt was written down, before it was submitted."""

    head: HeadIdentity | None = None
    """Head it was submitted to."""

    workers: Short | None = None
    """Fingerprint of the worker pods it was submitted to."""

    confirmed_at: Time | None = None
    """When the Jobs API first knew it."""

    running_since: Time | None = None
    """When it first ran."""

    start_step: int | None = None
    """Steps done when it began."""

    last_step: int | None = None
    """Steps done when last seen."""

    last_step_at: Time | None = None
    """When that number last grew."""

    worker_lost_at: Time | None = None
    """When a worker pod was first seen missing or restarted."""

    stop_requested_at: Time | None = None
    """When it was first asked to stop."""

    stop_reason: StopReason | None = None
    """Why."""

    terminal_at: Time | None = None
    """When the Jobs API first called it ended."""

    ended_at: Time | None = None
    """When the attempt was judged."""

    outcome: Outcome | None = None
    """How it was judged."""

    fenced: bool = False
    """It certainly does not run any more, so the next attempt may begin."""


class Charge(Observed):
    """Infrastructure failures on the budget; forgotten a day later, once newer steps were made. The oldest are merged."""

    count: int = 1
    """How many."""

    at: Time
    """When the last of them happened."""

    step: int = 0
    """Steps that were done."""


class Counters(Observed):
    user: int = 0
    """Failures that were the job's own."""

    infra: int = 0
    """Failures of the infrastructure, all of them; the budget counts `charges`."""

    preempted: int = 0
    """Times the job had to make room; on no budget."""

    without_step: int = 0
    """Attempts in a row that ended without a new step: the back-off."""

    in_place: int = 0
    """Those of them since the cluster was last made."""


class RayClusterStatus(Observed):
    name: Short
    """Name of the RayCluster."""

    uid: Short | None = None
    """Its UID."""

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

    model: ModelStatus | None = None
    """The trained model, once it is complete. Absent also with checkpoint.exportHuggingFace: false."""

    run: RunStatus | None = None
    """The submission of the current attempt."""

    retry_at: Time | None = None
    """When the next attempt may begin."""

    counters: Counters | None = None
    """Failures so far."""

    charges: list[Charge] = Field(default_factory=list, max_length=MAX_CHARGES)
    """Infrastructure failures that count against lifecycle.maxInfraRestarts."""

    failures: list[Failure] = Field(default_factory=list, max_length=MAX_FAILURES)
    """The last ten failures."""

    evidence: list[Evidence] = Field(default_factory=list, max_length=MAX_EVIDENCE)
    """What happened to pods lately."""

    avoid_nodes: list[Short] = Field(default_factory=list, max_length=MAX_AVOID_NODES)
    """Nodes where pods of this job kept dying; the next cluster is kept off them."""

    replacing: Short | None = None
    """UID of a RayCluster that is deleted before the next attempt."""

    provisioning_since: Time | None = None
    """Since when the job waits for pods; the provisioning deadline counts from here."""

    active_since: Time | None = None
    """Since when the job trains without having been suspended; the active deadline counts from here."""

    started_at: Time | None = None
    """When the first attempt ran."""

    first_step_at: Time | None = None
    """When the first step was seen done."""

    finished_at: Time | None = None
    """When the job ended."""

    ray_cluster: RayClusterStatus | None = None
    """The cluster of the current attempt."""
