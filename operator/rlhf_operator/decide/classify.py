"""From the evidence of an attempt that ended to (outcome, class, reason, message): one pure function over one table.

The first row that matches wins. A pod's own words come before the trainer's exit code 75: the trainer only sees that an actor died, the pod
says why, and a preemption must not be counted as a failure. ``TABLE`` is data, so that the documentation shows the same rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rlhf_api.exit_codes import ExitCode
from rlhf_api.reasons import Reason
from rlhf_api.status import Evidence, FailureClass, Outcome, StopReason
from rlhf_operator.decide.evidence import KILLED_EXIT_CODE, POD_DELETED, describe
from rlhf_operator.decide.observation import JobsStatus
from rlhf_operator.decide.texts import FAILURE_MAX, cut_middle, last_lines

LOG_LINES = 20
Lost = Literal["", "head", "cluster", "queue"]

DISRUPTIONS = frozenset(
    {"PreemptionByScheduler", "EvictionByEvictionAPI", "DeletionByTaintManager", "TerminationByKubelet", "DeletionByPodGC"}
)
"""Reasons of the pod condition DisruptionTarget, Kubernetes 1.36."""
NODE_REASONS = frozenset({"NodeLost", "NodeShutdown", "Shutdown", "Terminated"})
USERS_ERROR_TYPES = {"RUNTIME_ENV_SETUP_FAILURE": Reason.RUNTIME_ENV, "JOB_ENTRYPOINT_COMMAND_START_ERROR": Reason.ENTRYPOINT}
"""``error_type`` of the Jobs API, Ray 2.60."""
KILLED_CODES = (KILLED_EXIT_CODE, -9)
STOPPED_CODES = (ExitCode.STOPPED, -15)
"""With a shell between Ray and the trainer, and without."""
GPU_FAULT = re.compile(
    r"\bXid\b|\buncorrectable\b|\bECC error|NCCL[^\n]{0,80}unrecoverable|CUDA error: (?:an illegal instruction|hardware stack error"
    r"|uncorrectable|ECC)|device has fallen off the bus",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Clues:
    """All that is known of an attempt that ended."""

    status: JobsStatus | None = None
    """What the Jobs API said last; None when it could not be asked any more."""
    exit_code: int | None = None
    error_type: str = ""
    ran: bool = False
    """The trainer has answered for itself at least once."""
    ray_message: str = ""
    trainer_message: str = ""
    """``failure.message`` of /progress."""
    log_tail: str = ""
    stop_reason: StopReason | None = None
    """Why the operator asked the trainer to stop, if it did."""
    stop_message: str = ""
    """What the operator saw when it did: where the trainer stood still, which worker was gone."""
    lost: Lost = ""
    lost_message: str = ""
    evidence: tuple[Evidence, ...] = ()
    """Of this attempt."""
    memory_before: bool = False
    """An earlier attempt was killed for memory at about the same step."""
    preempted_before: str = ""
    """The pod's reason when the attempt before was preempted, and no step was made since."""
    submission_error: str = ""
    """Ray did not take the submission; its last answer."""
    submission_refused: bool = False
    """… and it never will."""


@dataclass(frozen=True, slots=True)
class Judgement:
    outcome: Outcome
    class_: FailureClass | None
    reason: Reason
    message: str
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    evidence: str
    """What was seen, for people."""
    outcome: Outcome
    class_: FailureClass | None
    reason: Reason
    why: Callable[[Clues], str | None]
    """The message; None when the row does not match."""


def classify(clues: Clues) -> Judgement:
    for row in TABLE:
        message = row.why(clues)
        if message is not None:
            return Judgement(row.outcome, row.class_, row.reason, cut_middle(message, FAILURE_MAX), clues.exit_code)
    return Judgement("Failed", "User", Reason.TRAINER_FAILED, cut_middle(_words(clues, _exit(clues)), FAILURE_MAX), clues.exit_code)


def _exit(clues: Clues) -> str:
    return f"the trainer ended with exit code {clues.exit_code}" if clues.exit_code is not None else "the trainer ended without exit code"


def _words(clues: Clues, otherwise: str) -> str:
    """The trainer's own message, else how its log ends, else Ray's message."""
    if clues.trainer_message:
        return clues.trainer_message
    told = last_lines(clues.log_tail, LOG_LINES) or clues.ray_message.strip()
    return f"{otherwise}\n{told}" if told else otherwise


def _succeeded(clues: Clues) -> str | None:
    done = clues.status == "SUCCEEDED" or clues.exit_code == ExitCode.DONE
    return "training is complete" if done else None


def _stopped_as_asked(clues: Clues) -> str | None:
    if clues.stop_reason not in ("Suspend", "ActiveDeadline", "Fence"):
        return None
    if clues.status == "FAILED" and clues.exit_code not in (ExitCode.STOPPED, None):
        return None
    return "stopped after a checkpoint, as asked" if clues.status in ("STOPPED", "FAILED") else "stopped, as asked"


def _exited(code: ExitCode) -> Callable[[Clues], str | None]:
    return lambda clues: _words(clues, _exit(clues)) if clues.exit_code == code else None


def _refused(clues: Clues) -> str | None:
    return f"Ray refuses the submission: {clues.submission_error}" if clues.submission_error and clues.submission_refused else None


def _not_taken(clues: Clues) -> str | None:
    return f"Ray did not take the submission: {clues.submission_error}" if clues.submission_error else None


def _gpu_fault(clues: Clues) -> str | None:
    for found in clues.evidence:
        if GPU_FAULT.search(found.message):
            return describe(found)
    for text in (clues.trainer_message, clues.log_tail):
        match = GPU_FAULT.search(text)
        if match:
            return _words(clues, _exit(clues))
    return None


def _queue(clues: Clues) -> str | None:
    return clues.lost_message if clues.lost == "queue" else None


def _disruption(clues: Clues) -> Evidence | None:
    return next((found for found in clues.evidence if found.reason in DISRUPTIONS), None)


def _preempted_again(clues: Clues) -> str | None:
    found = _disruption(clues)
    if found is None or found.reason != clues.preempted_before:
        return None
    return f"{found.reason}: {describe(found)}; the second time without a new step"


def _preempted(clues: Clues) -> str | None:
    found = _disruption(clues)
    return f"{found.reason}: {describe(found)}" if found is not None else None


def _memory(clues: Clues) -> str | None:
    found = next((found for found in clues.evidence if found.reason == "OOMKilled"), None)
    return describe(found) if found is not None else None


def _memory_again(clues: Clues) -> str | None:
    message = _memory(clues)
    return f"{message}; the second time at about the same step" if message is not None and clues.memory_before else None


def _lost(what: Lost) -> Callable[[Clues], str | None]:
    def why(clues: Clues) -> str | None:
        if clues.lost != what:
            return None
        cause = next((describe(found) for found in clues.evidence if found.head and found.reason != POD_DELETED), "")
        return f"{clues.lost_message}; {cause}" if cause and cause not in clues.lost_message else clues.lost_message

    return why


def _pod_reason(reasons: frozenset[str]) -> Callable[[Clues], str | None]:
    return lambda clues: next((describe(found) for found in clues.evidence if found.reason in reasons), None)


def _killed(clues: Clues) -> str | None:
    return next((describe(found) for found in clues.evidence if found.exit_code == KILLED_EXIT_CODE), None)


def _trainer_killed(clues: Clues) -> str | None:
    return _words(clues, "the trainer's process was killed (SIGKILL)") if clues.exit_code in KILLED_CODES else None


def _worker_evidence(clues: Clues) -> str | None:
    found = next((found for found in clues.evidence if not found.head and (found.reason == POD_DELETED or found.container)), None)
    return describe(found) if found is not None else None


def _never_ran(clues: Clues) -> bool:
    """Ray 2.60 gives COMMAND_START_ERROR to any fault of its supervisor, as when a stop meets a trainer that has just ended."""
    return not clues.ran and clues.stop_reason is None


def _error_type(error_type: str) -> Callable[[Clues], str | None]:
    return lambda clues: _said_by_ray(clues) if clues.error_type == error_type and _never_ran(clues) else None


def _supervisor(clues: Clues) -> str | None:
    supervisor = clues.error_type.startswith("JOB_SUPERVISOR_") or clues.error_type in USERS_ERROR_TYPES
    return _said_by_ray(clues) if supervisor and clues.stop_reason is None else None


def _said_by_ray(clues: Clues) -> str:
    return f"{clues.error_type}: {clues.ray_message or 'no message'}"


def _stopped_because(reason: StopReason) -> Callable[[Clues], str | None]:
    return lambda clues: clues.stop_message if clues.stop_reason == reason else None


def _stopped_from_outside(clues: Clues) -> str | None:
    if clues.exit_code not in STOPPED_CODES and clues.status != "STOPPED":
        return None
    return "the trainer was stopped, but not by the operator; `suspend: true` stops a job"


TABLE: tuple[Row, ...] = (
    Row("trainer exit 0", "Succeeded", None, Reason.SUCCEEDED, _succeeded),
    Row("trainer stopped, or gone, after a stop that was asked for", "Stopped", None, Reason.SUSPENDED, _stopped_as_asked),
    Row("trainer exit 2", "Failed", "Config", Reason.BAD_CONFIGURATION, _exited(ExitCode.CONFIG)),
    Row("trainer exit 3", "Failed", "User", Reason.BAD_DATA_OR_REWARD, _exited(ExitCode.DATA)),
    Row("Ray refuses the submission", "Failed", "Config", Reason.SUBMISSION_FAILED, _refused),
    Row("Ray takes no submission within five minutes", "Failed", "Infra", Reason.SUBMISSION_FAILED, _not_taken),
    Row("Xid, ECC, uncorrectable or unrecoverable NCCL error, in any words", "Failed", "Infra", Reason.GPU_FAULT, _gpu_fault),
    Row("RayCluster suspended by its queue", "Preempted", "Preempted", Reason.QUEUE_EVICTED, _queue),
    Row("pod condition DisruptionTarget, the same reason twice without a new step", "Failed", "Infra", Reason.PREEMPTED, _preempted_again),
    Row("pod condition DisruptionTarget", "Preempted", "Preempted", Reason.PREEMPTED, _preempted),
    Row("OOMKilled, the second time at about the same step", "Failed", "User", Reason.OUT_OF_MEMORY, _memory_again),
    Row("OOMKilled", "Failed", "Infra", Reason.OUT_OF_MEMORY, _memory),
    Row("RayCluster deleted, but not by the operator", "Failed", "Infra", Reason.CLUSTER_LOST, _lost("cluster")),
    Row("head pod or container changed, or Jobs API 404 for what it knew", "Failed", "Infra", Reason.HEAD_LOST, _lost("head")),
    Row("pod reason Evicted", "Failed", "Infra", Reason.POD_EVICTED, _pod_reason(frozenset({"Evicted"}))),
    Row("pod reason NodeLost, NodeShutdown", "Failed", "Infra", Reason.NODE_LOST, _pod_reason(NODE_REASONS)),
    Row("container exit 137 without OOMKilled", "Failed", "Infra", Reason.KILLED, _killed),
    Row("worker pod deleted, or its container restarted", "Failed", "Infra", Reason.WORKER_LOST, _worker_evidence),
    Row("trainer exit 75", "Failed", "Infra", Reason.TRAINER_RETRY, _exited(ExitCode.RETRY)),
    *(
        Row(f"error_type {kind}, and the trainer never ran", "Failed", "Config", reason, _error_type(kind))
        for kind, reason in USERS_ERROR_TYPES.items()
    ),
    Row("error_type JOB_SUPERVISOR_…, or one of these though the trainer ran", "Failed", "Infra", Reason.JOB_SUPERVISOR, _supervisor),
    Row("no step within progressDeadlineSeconds", "Failed", "Infra", Reason.STALLED, _stopped_because("Stalled")),
    Row("worker pods changed, the trainer did not end itself", "Failed", "Infra", Reason.WORKER_LOST, _stopped_because("WorkerLost")),
    Row("trainer killed (exit 137)", "Failed", "Infra", Reason.KILLED, _trainer_killed),
    Row("trainer exit 143, not asked for", "Failed", "Infra", Reason.KILLED, _stopped_from_outside),
)
"""Anything else: exit code other than 0 with nothing else known, class User, reason TrainerFailed."""


def without_pods(clues: Clues) -> bool:
    """Whether the exit could still be explained by pod evidence that the kubelet has not written yet."""
    explained = clues.exit_code in (ExitCode.DONE, ExitCode.CONFIG, ExitCode.DATA) or clues.error_type in USERS_ERROR_TYPES
    return not clues.evidence and not clues.lost and clues.stop_reason is None and clues.status != "SUCCEEDED" and not explained
