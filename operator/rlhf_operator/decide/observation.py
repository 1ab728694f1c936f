"""What the operator sees of one job at one moment: the only input of ``decide`` besides the clock.

Gathered by ``runtime.observe``; every value is plain data, so a test writes an observation down. ``None`` means "does not
exist" where the docstring says so; a thing that could not be read this time is absent from the observation and named in ``unread``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from rlhf_api.progress import Progress
from rlhf_api.spec import RLHFJob
from rlhf_api.status import RLHFJobStatus

JobsStatus = Literal["PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"]
"""Status of a submission in the Ray Jobs API, Ray 2.60. A stop that the operator asked for ends as STOPPED without an exit code."""

Unread = Literal["config", "token", "network_policy", "disruption_budget", "claim", "cluster", "pods", "missing", "queue"]
"""Parts of an observation that can fail to be read; the field of that name then holds a placeholder."""


@dataclass(frozen=True, slots=True)
class JobView:
    """The RLHFJob as stored, and what the contract's rules say of it."""

    namespace: str
    name: str
    uid: str
    generation: int
    created_at: datetime
    deleting: bool
    spec: RLHFJob | None
    """Parsed, with defaults filled in; None when ``problems`` says why it can't be."""
    problems: tuple[str, ...]
    """One line a violation, as the rules print them."""
    ignored_edits: tuple[str, ...]
    """Fields that were edited after the resolved job was stored and cannot change any more (what CEL does not see)."""
    status: RLHFJobStatus
    """The stored status, the memory of earlier decisions."""
    worker_pods: int = 1
    """Pods of all worker groups of the placement plan (``rlhf_api.clusterplan``), without the head."""
    gpus: int = 0
    """GPUs of the placement plan; 0 with ``accelerator: cpu``."""


@dataclass(frozen=True, slots=True)
class ContainerView:
    name: str
    container_id: str
    restart_count: int
    ready: bool
    waiting_reason: str = ""
    waiting_message: str = ""
    terminated_reason: str = ""
    """Reason of the present state when terminated, else of the last termination (lastState)."""
    terminated_exit_code: int | None = None
    terminated_message: str = ""
    terminated_at: datetime | None = None
    init: bool = False
    state: Literal["waiting", "running", "terminated"] = "running"
    started_at: datetime | None = None
    """``state.running.startedAt``, by the clock of the node."""


@dataclass(frozen=True, slots=True)
class PodView:
    name: str
    uid: str
    group: str
    """Value of the label ``ray.io/group``; the head's is ``headgroup``."""
    head: bool
    phase: str
    ready: bool
    created_at: datetime
    node: str = ""
    reason: str = ""
    message: str = ""
    deleting_since: datetime | None = None
    """``deletionTimestamp`` less ``deletionGracePeriodSeconds``: when the deletion was asked for."""
    disruption: str = ""
    """Reason of a true condition DisruptionTarget."""
    unschedulable: str = ""
    """Message of PodScheduled=False with reason Unschedulable."""
    containers: tuple[ContainerView, ...] = ()
    """Init containers first, marked ``init``; the first that is not is Ray's."""
    warning: str = ""
    """Last Warning event of a pod that is not ready, ``reason: message`` (FailedMount, FailedAttachVolume, …)."""
    gone: bool = False
    """True for the last body of a pod that was deleted since the last decision: KubeRay removes failed pods within seconds."""


@dataclass(frozen=True, slots=True)
class RayClusterView:
    name: str
    uid: str
    owned: bool
    """The owner's UID is this job's; False = left from a job that had the same name."""
    deleting: bool
    suspend: bool
    queue: str
    """Value of the Kueue queue label, empty without one."""
    conditions: Mapping[str, tuple[str, str, str]]
    """Type -> (status, reason, message)."""
    ready_workers: int
    """``readyWorkerReplicas``; absent counts as 0."""
    desired_workers: int
    state: str
    head_service: str
    created_at: datetime
    warning: str = ""
    """Last Warning event of the RayCluster, ``reason: message``."""
    resumed_at: datetime | None = None
    """When KubeRay last ended a suspension, by its clock."""
    marked: bool = True
    """Carries the operator's labels and the job's ownerReference. Without the labels no watch shows it; without the other it outlives
    its job."""


@dataclass(frozen=True, slots=True)
class VolumeClaimView:
    name: str
    phase: str
    """Pending, Bound, Lost."""
    owned: bool
    """Carries this job's label, so the operator made it."""
    access_modes: tuple[str, ...] = ()
    message: str = ""
    """Last Warning event of the claim."""
    size_bytes: int | None = None
    """What it has or asks for, whichever is more: a volume that grows has less for a while. None = not said."""


@dataclass(frozen=True, slots=True)
class SubmissionView:
    """What the poller last saw of one submission id."""

    submission_id: str
    found: bool
    status: JobsStatus | None = None
    error_type: str = ""
    exit_code: int | None = None
    message: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The metadata that was submitted: ``rlhf.dev/job-uid``, ``rlhf.dev/attempt``."""
    log_tail: str = ""
    """Last lines of the driver's log, read once when the submission became terminal."""


@dataclass(frozen=True, slots=True)
class HeadView:
    """What the pollers last saw of the head service. All ages are judged against ``at``."""

    at: datetime
    """When the last look began, successful or not: what it saw was so at this moment or later."""
    reachable: bool
    unreachable_since: datetime | None = None
    error: str = ""
    """Why it is not reachable, or what of its answers can't be used."""
    gcs_healthy: bool = False
    version: str = ""
    submission: SubmissionView | None = None
    """None = not asked yet since the current submission id was set."""
    progress: Progress | None = None
    """The last answer of ``/progress`` that belongs to this job and attempt, kept when later polls fail."""
    progress_at: datetime | None = None
    others: tuple[SubmissionView, ...] | None = None
    """This job's submissions that have not ended, asked for only while none is followed; None = not answered yet."""
    progress_fault: ProgressFault | None = None
    """Why the driver that runs can't be read now; kept as it was when the driver ends."""


@dataclass(frozen=True, slots=True)
class ProgressFault:
    """``/progress`` of a driver that Ray calls running gives no report of this job and attempt. Its log then tells whether it works."""

    message: str
    since: datetime
    """When the first of the looks began that all failed."""
    answered: bool
    """Something answered, but not with a report; False = nothing listens there, as before the trainer has opened its port."""
    log_end: str = ""
    """Digest of the log's end; empty = not read yet."""
    log_read_at: datetime | None = None
    log_grew_at: datetime | None = None
    """When the log's end was last seen to be another than before; None = not since ``since``."""


@dataclass(frozen=True, slots=True)
class ActResult:
    """How an action of an earlier decision went. A failure is kept until the action succeeds or is no longer asked for; a success only of
    the calls to a head, until the next such call."""

    action: str
    """Class name of the action."""
    ok: bool
    at: datetime
    code: int = 0
    """HTTP status; 0 = no answer."""
    message: str = ""
    permanent: bool = False
    """True for 400, 403, 404, 405, 409 of a foreign owner, 413, 422: the same call cannot succeed by itself soon."""
    failures: int = 0
    """Consecutive failures."""


@dataclass(frozen=True, slots=True)
class Observation:
    job: JobView
    config: bool
    """The ConfigMap with the resolved job exists and is ours."""
    token: bool
    """The Secret was created by this operator process, or a create answered AlreadyExists."""
    network_policy: bool
    claim: VolumeClaimView | None
    """The checkpoint volume's claim; None = does not exist."""
    cluster: RayClusterView | None
    pods: tuple[PodView, ...]
    head: HeadView | None
    """None = nothing polled (no cluster, or the pollers have just been told)."""
    disruption_budget: str | None = None
    """UID of the head's PodDisruptionBudget, empty where it does not exist; None = this operator makes none."""
    missing: tuple[str, ...] = ()
    """Named objects that the job refers to and that do not exist, such as ``ConfigMap gsm8k-reward`` or ``PersistentVolumeClaim ckpt``."""
    queue_message: str = ""
    """Message of the Kueue Workload, when one was read."""
    results: tuple[ActResult, ...] = ()
    unread: tuple[Unread, ...] = ()
    """What could not be read this time; ``decide`` treats it as unchanged, never as gone."""
    namespace_terminating: bool = False
