"""Every reason that a condition, an Event or an entry of ``status.failures`` can carry, with its meaning and what to do.

Data, so that the operator, its tests and ``docs/failures.md`` say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from rlhf_api.status import FailureClass

Kind = Literal["spec", "waiting", "running", "failure", "end"]
"""Where a reason appears: about the spec, before training, while it trains, why an attempt ended, how the job ended."""


class Reason(StrEnum):
    # spec
    VALID = "Valid"
    BAD_SPEC = "BadSpec"
    EDIT_IGNORED = "EditIgnored"
    # waiting
    ACCEPTED = "Accepted"
    QUEUED = "Queued"
    PROVISIONING = "Provisioning"
    CLUSTER_READY = "ClusterReady"
    PODS_NOT_READY = "PodsNotReady"
    IMAGE_PULL = "ImagePull"
    CONTAINER_CONFIG = "ContainerConfig"
    UNSCHEDULABLE = "Unschedulable"
    QUOTA_EXCEEDED = "QuotaExceeded"
    ADMISSION_DENIED = "AdmissionDenied"
    VOLUME_MISSING = "VolumeMissing"
    VOLUME_PENDING = "VolumePending"
    VOLUME_UNSUITABLE = "VolumeUnsuitable"
    VOLUME_MOUNT = "VolumeMount"
    OBJECT_MISSING = "ObjectMissing"
    WAITING_FOR_HEAD = "WaitingForHead"
    TOKEN_REFUSED = "TokenRefused"
    CRASH_LOOP = "CrashLoop"
    INVALID_RAY_CLUSTER = "InvalidRayCluster"
    FORMER_JOB = "FormerJob"
    API_ERROR = "ApiError"
    RELEASED = "Released"
    # running
    SUBMITTED = "Submitted"
    TRAINING = "Training"
    HEAD_UNREACHABLE = "HeadUnreachable"
    PROGRESS_UNREADABLE = "ProgressUnreadable"
    RESTARTING = "Restarting"
    RECREATING = "Recreating"
    NOT_RUNNING = "NotRunning"
    NOT_SUSPENDED = "NotSuspended"
    SUSPEND_REQUESTED = "SuspendRequested"
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    DELETING = "Deleting"
    # failure
    BAD_CONFIGURATION = "BadConfiguration"
    BAD_DATA_OR_REWARD = "BadDataOrReward"
    TRAINER_FAILED = "TrainerFailed"
    TRAINER_RETRY = "TrainerRetry"
    GPU_FAULT = "GpuFault"
    OUT_OF_MEMORY = "OutOfMemory"
    PREEMPTED = "Preempted"
    QUEUE_EVICTED = "QueueEvicted"
    HEAD_LOST = "HeadLost"
    WORKER_LOST = "WorkerLost"
    NODE_LOST = "NodeLost"
    POD_EVICTED = "PodEvicted"
    KILLED = "Killed"
    STALLED = "Stalled"
    RUNTIME_ENV = "RuntimeEnv"
    ENTRYPOINT = "Entrypoint"
    JOB_SUPERVISOR = "JobSupervisor"
    SUBMISSION_FAILED = "SubmissionFailed"
    CLUSTER_LOST = "ClusterLost"
    # end
    SUCCEEDED = "Succeeded"
    PROVISIONING_DEADLINE = "ProvisioningDeadlineExceeded"
    ACTIVE_DEADLINE = "DeadlineExceeded"
    BACKOFF_LIMIT = "BackoffLimitExceeded"
    RESTART_LIMIT = "RestartLimitExceeded"
    EXPIRED = "Expired"


@dataclass(frozen=True, slots=True)
class Fact:
    kind: Kind
    meaning: str
    """One sentence."""
    remedy: str = ""
    """What to do; empty where there is nothing to do."""
    classes: tuple[FailureClass, ...] = ()
    """Whose failure it is: the budget a restart is counted against. Empty = no failure. Two: the first time, and again;
    where ``either`` holds, one or the other."""
    warning: bool = False
    """Its Event is a Warning."""
    either: bool = False
    """Which of two ``classes`` it is depends on what was found, as ``meaning`` says."""


def _failure(meaning: str, remedy: str, *classes: FailureClass) -> Fact:
    return Fact("failure", meaning, remedy, classes, warning=True)


def _fault(meaning: str, remedy: str) -> Fact:
    """Something that keeps the pods from coming up: shown at once, ends the job at the provisioning deadline."""
    return Fact("waiting", meaning, remedy, ("Config",), warning=True)


FACTS: Mapping[Reason, Fact] = {
    Reason.VALID: Fact("spec", "Every rule of the API holds."),
    Reason.BAD_SPEC: Fact(
        "spec",
        "A rule of the API is broken; nothing was created.",
        "The message names field, value, rule and the nearest value that works. Delete the job, correct the manifest, apply it again; "
        "`rlhf validate --cluster FILE` shows the same without a cluster.",
        ("Config",),
        warning=True,
    ),
    Reason.EDIT_IGNORED: Fact(
        "spec",
        "A field was edited that cannot change any more; the job goes on as it was created.",
        "Undo the edit, or create a new job.",
        warning=True,
    ),
    Reason.ACCEPTED: Fact("waiting", "The operator has taken the job up."),
    Reason.QUEUED: Fact(
        "waiting",
        "Kueue has not admitted the job yet.",
        "`kubectl describe workloads` shows what the queue waits for.",
    ),
    Reason.PROVISIONING: Fact("waiting", "The pods are being created; the message says which are not ready."),
    Reason.CLUSTER_READY: Fact("waiting", "All pods are ready and Ray answers."),
    Reason.PODS_NOT_READY: Fact("waiting", "A pod that was ready is not, or is gone.", "Nothing; the message names it."),
    Reason.IMAGE_PULL: _fault(
        "A node cannot pull the image.", "Check `cluster.image` (or the chart's trainer image), `imagePullSecrets` and the registry."
    ),
    Reason.CONTAINER_CONFIG: _fault(
        "A container cannot be made from its configuration.", "The message names the missing Secret, ConfigMap or key; create it."
    ),
    Reason.UNSCHEDULABLE: _fault(
        "No node has room for a pod.",
        "The message holds the scheduler's words: free or add nodes, ask for fewer GPUs in `placement`, or correct `nodeSelector`, "
        "`tolerations`, `affinity`, `resources`.",
    ),
    Reason.QUOTA_EXCEEDED: _fault(
        "A ResourceQuota or LimitRange of the namespace refuses a pod.", "Ask for less, or have the quota raised; the message names it."
    ),
    Reason.ADMISSION_DENIED: _fault(
        "The API server or an admission policy refuses an object of the job.",
        "The message holds its words; correct the field it names, often in `podOverlay` or `securityContext`.",
    ),
    Reason.VOLUME_MISSING: _fault(
        "A PersistentVolumeClaim that the job names does not exist.", "Create it in the job's namespace, or correct the name."
    ),
    Reason.VOLUME_PENDING: _fault(
        "A PersistentVolumeClaim is not bound.", "Check its storage class and provisioner; the message holds its last warning."
    ),
    Reason.VOLUME_UNSUITABLE: _fault(
        "A claim's access modes or size do not fit the job's pods.",
        "Pods on several nodes need ReadWriteMany for checkpoints; use a claim, or a storage class, that has it.",
    ),
    Reason.VOLUME_MOUNT: _fault(
        "A node cannot attach or mount a volume.",
        "The message holds the kubelet's words; a volume that is attached elsewhere (ReadWriteOnce) is the usual cause.",
    ),
    Reason.OBJECT_MISSING: _fault(
        "A ConfigMap, Secret or service account that the job names does not exist.",
        "Create it in the job's namespace, or correct the name.",
    ),
    Reason.WAITING_FOR_HEAD: Fact(
        "waiting",
        "Ray's head does not answer yet; worker pods or the submission wait for it.",
        "If it lasts, look at the head pod: `kubectl describe pod -l rlhf.dev/job=NAME,ray.io/node-type=head`.",
    ),
    Reason.TOKEN_REFUSED: _fault(
        "Ray's head refuses the job's token (401, 403).",
        "The Secret NAME-ray-token is mostly from another job, made by hand, or older than the operator's key; the operator may not read "
        "it. `kubectl delete secret/NAME-ray-token raycluster/NAME`: the operator makes both anew.",
    ),
    Reason.CRASH_LOOP: _fault(
        "A container ends again and again before Ray is up.",
        "`kubectl logs --previous` of the pod in the message; often the image has no Ray, or another version than `cluster.rayVersion`.",
    ),
    Reason.INVALID_RAY_CLUSTER: _fault(
        "KubeRay refuses the RayCluster.", "The message holds KubeRay's words; `cluster.podOverlay` is the usual cause."
    ),
    Reason.FORMER_JOB: Fact(
        "waiting",
        "Objects of a deleted job with the same name are still there.",
        "Nothing, where they go away with their pods. For what nothing removes, such as what `--cascade=orphan` left, the message has the "
        "command.",
    ),
    Reason.API_ERROR: Fact(
        "waiting",
        "The API server answers with errors; the operator tries again.",
        "Look at the API server if it lasts; the message has the count.",
        warning=True,
    ),
    Reason.RELEASED: Fact("waiting", "The job has ended, and its pods are released as `lifecycle.cleanupPolicy` says."),
    Reason.SUBMITTED: Fact("running", "The attempt was handed to Ray; the trainer starts."),
    Reason.TRAINING: Fact("running", "The trainer runs; `status.progress` says how far it is."),
    Reason.HEAD_UNREACHABLE: Fact(
        "running",
        "The operator cannot reach the head's service; training goes on meanwhile.",
        "Check NetworkPolicies between the operator's namespace and the job's.",
        warning=True,
    ),
    Reason.PROGRESS_UNREADABLE: Fact(
        "running",
        "The trainer runs, but its `/progress` (port 8290) can't be read; the message says why. Step and checkpoint stand still meanwhile, "
        "and it counts as stalled only if its log does not grow for `lifecycle.progressDeadlineSeconds` either.",
        "No answer: a NetworkPolicy that lets only port 8265 through. Any other: something else than this job's trainer listens there, or "
        "a trainer of another version; `driver.log` in the job's folder tells how the training goes.",
        warning=True,
    ),
    Reason.RESTARTING: Fact("running", "A new attempt will start from the last checkpoint on the same cluster; the message says when."),
    Reason.RECREATING: Fact("running", "A new attempt will start from the last checkpoint on a new cluster."),
    Reason.NOT_RUNNING: Fact("running", "No trainer runs."),
    Reason.NOT_SUSPENDED: Fact("running", "The job is not suspended."),
    Reason.SUSPEND_REQUESTED: Fact("running", "The trainer was asked to write a checkpoint and stop."),
    Reason.SUSPENDED: Fact("running", "Stopped after a checkpoint, all pods are released.", "`suspend: false` continues."),
    Reason.RESUMED: Fact("running", "The job continues from its last checkpoint."),
    Reason.DELETING: Fact(
        "running",
        "The job is being deleted: its trainer was asked to write a checkpoint and stop, its pods go.",
        "If it lasts, a finalizer holds the object: `kubectl get rlhfjob NAME -o jsonpath='{.metadata.finalizers}'`.",
    ),
    Reason.BAD_CONFIGURATION: _failure(
        "The trainer refuses the job's configuration (exit code 2).",
        "The message names the field. Create a corrected job under another name, or delete this one first.",
        "Config",
    ),
    Reason.BAD_DATA_OR_REWARD: _failure(
        "Data cannot be read or the reward code fails (exit code 3).",
        "The message has the last lines of the traceback; `rlhf validate FILE` tries data and reward code on a laptop.",
        "User",
    ),
    Reason.TRAINER_FAILED: _failure(
        "The trainer ended with an error of its own.",
        "The message has the last lines of its log; the whole log is `driver.log` in the job's folder on the volume.",
        "User",
    ),
    Reason.TRAINER_RETRY: _failure(
        "The trainer met a fault of the machines and asks to be started again (exit code 75).", "Nothing, unless it repeats.", "Infra"
    ),
    Reason.GPU_FAULT: _failure(
        "A GPU reported a fault (Xid, ECC, NCCL).", "Have the node in the message checked; the next attempt avoids it.", "Infra"
    ),
    Reason.OUT_OF_MEMORY: _failure(
        "A container used more memory than its limit.",
        "Raise `cluster.workers.resources.limits.memory` (or the head's), lower `shmSize`, `microBatchSize` or `maxLength`.",
        "Infra",
        "User",
    ),
    Reason.PREEMPTED: _failure("A pod made room for another, or its node was drained.", "Nothing.", "Preempted"),
    Reason.QUEUE_EVICTED: _failure("Kueue took the job's place back.", "Nothing; it continues when it is admitted again.", "Preempted"),
    Reason.HEAD_LOST: _failure(
        "The head pod or its container was replaced, and Ray's state with it.",
        "Nothing, unless it repeats: then raise `cluster.head.resources` (memory is the usual cause).",
        "Infra",
    ),
    Reason.WORKER_LOST: _failure("A worker pod is gone or its container was restarted.", "Nothing, unless it repeats.", "Infra"),
    Reason.NODE_LOST: _failure("A node is gone or not ready.", "Have the node checked.", "Infra"),
    Reason.POD_EVICTED: _failure(
        "The kubelet evicted a pod, mostly for memory or disk pressure.", "Set memory and ephemeral-storage requests.", "Infra"
    ),
    Reason.KILLED: _failure(
        "A container or the trainer was killed or stopped from outside, without a memory limit being the cause.",
        "Nothing, unless it repeats.",
        "Infra",
    ),
    Reason.STALLED: _failure(
        "No step was finished within `lifecycle.progressDeadlineSeconds`.",
        "The message has stage and role of the last heartbeat. Raise the deadline if steps really take that long.",
        "Infra",
    ),
    Reason.RUNTIME_ENV: _failure("Ray could not set up the trainer's environment.", "The message has Ray's words.", "Config"),
    Reason.ENTRYPOINT: _failure(
        "The trainer's command could not be started.", "Check that `cluster.image` is a trainer image of this version.", "Config"
    ),
    Reason.JOB_SUPERVISOR: _failure("Ray's supervisor of the trainer failed.", "Nothing, unless it repeats.", "Infra"),
    Reason.SUBMISSION_FAILED: Fact(
        "failure",
        "Ray refused the submission (Config), or did not take it within five minutes (Infra).",
        "The message has Ray's last answer. Refused: correct what it names and create the job again. Not taken: look at the head pod.",
        ("Config", "Infra"),
        warning=True,
        either=True,
    ),
    Reason.CLUSTER_LOST: _failure("The RayCluster was deleted by somebody else.", "Nothing; it is made anew.", "Infra"),
    Reason.SUCCEEDED: Fact("end", "Training is complete; `status.model` says where on the volume the model is."),
    Reason.PROVISIONING_DEADLINE: Fact(
        "end",
        "The pods were not ready within `lifecycle.provisioningDeadlineSeconds`.",
        "The message says what was waited for; correct it and create the job again.",
        ("Config",),
        warning=True,
    ),
    Reason.ACTIVE_DEADLINE: Fact(
        "end",
        "The job ran longer than `lifecycle.activeDeadlineSeconds`.",
        "Checkpoints are kept: raise the deadline and create the job again, with a new name and the old claim, or continue it by hand.",
        ("User",),
        warning=True,
    ),
    Reason.BACKOFF_LIMIT: Fact(
        "end",
        "The failures that are the user's used up `lifecycle.backoffLimit`; where that is 0, the failure's own reason stands instead.",
        "The message and the last entry of `status.failures` say why.",
        ("User",),
        warning=True,
    ),
    Reason.RESTART_LIMIT: Fact(
        "end",
        "The failures of the cluster used up `lifecycle.maxInfraRestarts`; where that is 0, the failure's own reason stands instead.",
        "`status.failures` lists the last ten; look for one node, one pod or one cause in them.",
        ("Infra",),
        warning=True,
    ),
    Reason.EXPIRED: Fact("end", "The job is deleted, `lifecycle.ttlSecondsAfterFinished` after its end."),
}
