"""What ``decide`` asks for. Each action is idempotent; ``runtime.act`` performs them in order and stops at the first failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlhf_api.status import RLHFJobStatus


@dataclass(frozen=True, slots=True)
class EnsureConfig:
    """ConfigMap with the resolved job; immutable, owned by the RLHFJob."""


@dataclass(frozen=True, slots=True)
class EnsureToken:
    """Secret with the Ray token; create only, AlreadyExists is success."""


@dataclass(frozen=True, slots=True)
class EnsureClaim:
    """The checkpoint volume, where the spec says `create`."""


@dataclass(frozen=True, slots=True)
class EnsureNetworkPolicy:
    """Isolation of the job's pods, where ``cluster.network.isolate`` asks for it."""


@dataclass(frozen=True, slots=True)
class EnsureDisruptionBudget:
    """PodDisruptionBudget of the head, where the operator's settings ask for it."""


@dataclass(frozen=True, slots=True)
class DeleteDisruptionBudget:
    """The head of a job that has ended may be evicted. Guarded by UID; NotFound is success."""

    uid: str


@dataclass(frozen=True, slots=True)
class EnsureCluster:
    """RayCluster: dry-run create first, then create. `avoid_nodes` join the anti-affinity of every pod."""

    avoid_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MarkCluster:
    """Labels and ownerReference of the job's own RayCluster, which somebody took off; guarded by its UID."""

    uid: str


@dataclass(frozen=True, slots=True)
class SuspendCluster:
    """Patch ``spec.suspend`` of the RayCluster, guarded by its UID."""

    uid: str
    suspend: bool


@dataclass(frozen=True, slots=True)
class ReleaseWorkers:
    """Scale every worker group to zero (cleanup policy `workers`): the head stays for its logs, the GPUs are free."""

    uid: str


@dataclass(frozen=True, slots=True)
class DeleteCluster:
    """Background deletion, guarded by UID; NotFound is success."""

    uid: str


@dataclass(frozen=True, slots=True)
class Submit:
    """POST of one attempt. Only after the status with `submission_id` has been stored."""

    attempt: int
    submission_id: str


@dataclass(frozen=True, slots=True)
class StopSubmission:
    """POST …/stop: SIGTERM, then SIGKILL after the head's RAY_JOB_STOP_WAIT_TIME_S."""

    submission_id: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the RLHFJob itself (time to live after finish), guarded by UID."""


Action = (
    EnsureConfig
    | EnsureToken
    | EnsureClaim
    | EnsureNetworkPolicy
    | EnsureDisruptionBudget
    | DeleteDisruptionBudget
    | EnsureCluster
    | MarkCluster
    | SuspendCluster
    | ReleaseWorkers
    | DeleteCluster
    | Submit
    | StopSubmission
    | DeleteJob
)


@dataclass(frozen=True, slots=True)
class EventNote:
    """One Kubernetes Event, sent once a transition. `reason` is one of ``rlhf_api.reasons.Reason``."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Watch:
    """What the pollers follow for this job; None = nothing to poll."""

    submission_id: str | None
    """Asked for in the Jobs API, also after the attempt ended: the next one starts only once the head has answered for it. None before the
    first attempt: only the head's health is asked for."""
    attempt: int
    head_service: str


@dataclass(frozen=True, slots=True)
class Decision:
    status: RLHFJobStatus
    """The whole status as it must be stored. Written before ``after_status``; ``act`` writes only what changed."""
    before_status: tuple[Action, ...] = ()
    """Actions that may run before the status is stored (deletes, ensures once conditions exist)."""
    after_status: tuple[Action, ...] = ()
    """Actions that need the status stored first: every POST of an attempt, the first child of a job."""
    events: tuple[EventNote, ...] = ()
    watch: Watch | None = None
    requeue_after_seconds: float | None = None
    """When to look again though nothing changes: the nearest deadline or the end of a back-off."""
    urgent: bool = False
    """Store the status now: a phase, a condition, an attempt, a failure changed. Progress alone waits for the 30 s limit."""
