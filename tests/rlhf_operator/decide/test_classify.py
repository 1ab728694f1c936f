from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from rlhf_api.reasons import FACTS, Reason
from rlhf_api.status import Evidence
from rlhf_operator.decide.classify import TABLE, Clues, classify
from tests.rlhf_operator.decide.builders import ago

TRACEBACK = 'Traceback (most recent call last):\n  File "/etc/rlhf/files/reward.py", line 3, in score\n    return 1 / 0\nZeroDivisionError'


def found(reason: str, **changes: Any) -> Evidence:
    fields: dict[str, Any] = {"attempt": 1, "pod": "gsm8k-workers-worker-w1", "node": "gpu-1", "reason": reason, "at": ago(5)}
    return Evidence(**(fields | changes))


OOM = found("OOMKilled", container="ray", exit_code=137)
PREEMPTED = found("PreemptionByScheduler", message="preempted by production/serve")
DELETED = found("PodDeleted")


class Case(NamedTuple):
    name: str
    given: dict[str, Any]
    expected: tuple[str, str | None, str]
    says: str = ""


CASES = (
    Case("exit 0", {"status": "SUCCEEDED", "exit_code": 0}, ("Succeeded", None, "Succeeded")),
    Case("success wins over a lost worker", {"status": "SUCCEEDED", "evidence": (DELETED,)}, ("Succeeded", None, "Succeeded")),
    Case("success wins over a stop", {"status": "SUCCEEDED", "stop_reason": "Suspend"}, ("Succeeded", None, "Succeeded")),
    Case("stopped as asked", {"status": "STOPPED", "stop_reason": "Suspend"}, ("Stopped", None, "Suspended"), "after a checkpoint"),
    Case("exit 143 as asked", {"status": "FAILED", "exit_code": 143, "stop_reason": "Suspend"}, ("Stopped", None, "Suspended")),
    Case("head gone while stopping", {"stop_reason": "Suspend", "lost": "head", "lost_message": "gone"}, ("Stopped", None, "Suspended")),
    Case(
        "a failure while stopping is a failure",
        {"status": "FAILED", "exit_code": 1, "stop_reason": "Suspend"},
        ("Failed", "User", "TrainerFailed"),
    ),
    Case(
        "bad configuration",
        {"status": "FAILED", "exit_code": 2, "trainer_message": "spec.training.maxSteps: 0"},
        ("Failed", "Config", "BadConfiguration"),
        "spec.training.maxSteps",
    ),
    Case(
        "reward code",
        {"status": "FAILED", "exit_code": 3, "trainer_message": TRACEBACK},
        ("Failed", "User", "BadDataOrReward"),
        "ZeroDivisionError",
    ),
    Case(
        "reward code, from the log when /progress is gone",
        {"status": "FAILED", "exit_code": 3, "log_tail": TRACEBACK},
        ("Failed", "User", "BadDataOrReward"),
        "ZeroDivisionError",
    ),
    Case("refused", {"submission_error": "HTTP 400: bad", "submission_refused": True}, ("Failed", "Config", "SubmissionFailed"), "bad"),
    Case("not taken", {"submission_error": "No available agent"}, ("Failed", "Infra", "SubmissionFailed"), "No available agent"),
    Case(
        "GPU fault",
        {"status": "FAILED", "exit_code": 75, "trainer_message": "rank 3: NVRM: Xid 79, GPU has fallen off the bus"},
        ("Failed", "Infra", "GpuFault"),
        "Xid 79",
    ),
    Case("queue", {"lost": "queue", "lost_message": "Kueue took it"}, ("Preempted", "Preempted", "QueueEvicted"), "Kueue"),
    Case(
        "preempted worker, seen by the trainer as a dead actor",
        {"status": "FAILED", "exit_code": 75, "evidence": (PREEMPTED,)},
        ("Preempted", "Preempted", "Preempted"),
        "PreemptionByScheduler: worker pod gsm8k-workers-worker-w1 on node gpu-1",
    ),
    Case(
        "preempted head",
        {"lost": "head", "lost_message": "head pod x is gone", "evidence": (PREEMPTED,)},
        ("Preempted", "Preempted", "Preempted"),
    ),
    Case(
        "the same preemption twice without a step",
        {"evidence": (PREEMPTED,), "preempted_before": "PreemptionByScheduler", "status": "FAILED", "exit_code": 75},
        ("Failed", "Infra", "Preempted"),
        "second time",
    ),
    Case(
        "another preemption is not the same",
        {"evidence": (PREEMPTED,), "preempted_before": "EvictionByEvictionAPI"},
        ("Preempted", "Preempted", "Preempted"),
    ),
    Case(
        "worker out of memory",
        {"status": "FAILED", "exit_code": 75, "evidence": (OOM,)},
        ("Failed", "Infra", "OutOfMemory"),
        "exit code 137",
    ),
    Case(
        "out of memory again",
        {"status": "FAILED", "exit_code": 75, "evidence": (OOM,), "memory_before": True},
        ("Failed", "User", "OutOfMemory"),
        "second time",
    ),
    Case(
        "head out of memory",
        {"lost": "head", "lost_message": "restarted", "evidence": (found("OOMKilled", head=True),)},
        ("Failed", "Infra", "OutOfMemory"),
        "head pod",
    ),
    Case("head lost", {"lost": "head", "lost_message": "head pod x is gone"}, ("Failed", "Infra", "HeadLost"), "head pod x is gone"),
    Case(
        "head lost, with its cause",
        {"lost": "head", "lost_message": "head pod x is gone", "evidence": (found("Evicted", head=True, message="disk"),)},
        ("Failed", "Infra", "HeadLost"),
        "Evicted: disk",
    ),
    Case("cluster deleted", {"lost": "cluster", "lost_message": "gone"}, ("Failed", "Infra", "ClusterLost")),
    Case(
        "evicted worker",
        {"status": "FAILED", "exit_code": 75, "evidence": (found("Evicted", message="memory"),)},
        ("Failed", "Infra", "PodEvicted"),
        "memory",
    ),
    Case("node gone", {"status": "FAILED", "exit_code": 75, "evidence": (found("NodeLost"),)}, ("Failed", "Infra", "NodeLost"), "gpu-1"),
    Case(
        "killed container",
        {"status": "FAILED", "exit_code": 1, "evidence": (found("Error", container="ray", exit_code=137),)},
        ("Failed", "Infra", "Killed"),
    ),
    Case("worker deleted", {"status": "FAILED", "exit_code": 75, "evidence": (DELETED,)}, ("Failed", "Infra", "WorkerLost"), "PodDeleted"),
    Case(
        "worker deleted, and the trainer crashed over it",
        {"status": "FAILED", "exit_code": 1, "evidence": (DELETED,)},
        ("Failed", "Infra", "WorkerLost"),
    ),
    Case(
        "collective timeout",
        {"status": "FAILED", "exit_code": 75, "trainer_message": "weight sync timed out"},
        ("Failed", "Infra", "TrainerRetry"),
        "weight sync timed out",
    ),
    Case(
        "runtime environment",
        {"status": "FAILED", "error_type": "RUNTIME_ENV_SETUP_FAILURE", "ray_message": "no such dir"},
        ("Failed", "Config", "RuntimeEnv"),
        "no such dir",
    ),
    Case("entry point", {"status": "FAILED", "error_type": "JOB_ENTRYPOINT_COMMAND_START_ERROR"}, ("Failed", "Config", "Entrypoint")),
    Case(
        "supervisor failed under a trainer that ran",
        {"status": "FAILED", "error_type": "JOB_ENTRYPOINT_COMMAND_START_ERROR", "ran": True},
        ("Failed", "Infra", "JobSupervisor"),
    ),
    Case(
        "a stop that met a trainer which had just ended",
        {"status": "FAILED", "error_type": "JOB_ENTRYPOINT_COMMAND_START_ERROR", "stop_reason": "WorkerLost", "stop_message": "a worker"},
        ("Failed", "Infra", "WorkerLost"),
    ),
    Case("supervisor", {"status": "FAILED", "error_type": "JOB_SUPERVISOR_ACTOR_DIED"}, ("Failed", "Infra", "JobSupervisor")),
    Case(
        "stalled",
        {"status": "STOPPED", "stop_reason": "Stalled", "stop_message": "no step for 1h00m: stage rollout"},
        ("Failed", "Infra", "Stalled"),
        "rollout",
    ),
    Case("stalled and deaf", {"stop_reason": "Stalled", "stop_message": "no step"}, ("Failed", "Infra", "Stalled")),
    Case(
        "worker changed",
        {"status": "STOPPED", "stop_reason": "WorkerLost", "stop_message": "a worker pod"},
        ("Failed", "Infra", "WorkerLost"),
    ),
    Case("trainer killed", {"status": "FAILED", "exit_code": 137}, ("Failed", "Infra", "Killed"), "SIGKILL"),
    Case("trainer killed, no shell between", {"status": "FAILED", "exit_code": -9}, ("Failed", "Infra", "Killed")),
    Case("stopped by hand", {"status": "STOPPED"}, ("Failed", "Infra", "Killed"), "suspend: true"),
    Case(
        "the user's own error",
        {"status": "FAILED", "exit_code": 1, "error_type": "JOB_ENTRYPOINT_COMMAND_ERROR", "log_tail": "a\n\nb\nValueError: bad"},
        ("Failed", "User", "TrainerFailed"),
        "ValueError: bad",
    ),
    Case("an error without words", {"status": "FAILED", "exit_code": 139}, ("Failed", "User", "TrainerFailed"), "exit code 139"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_evidence_becomes_class_and_reason(case: Case) -> None:
    judgement = classify(Clues(**case.given))
    assert (judgement.outcome, judgement.class_, judgement.reason) == case.expected
    assert case.says in judgement.message


def test_every_row_of_the_table_is_reached_by_a_case() -> None:
    reached = set()
    for case in CASES:
        clues = Clues(**case.given)
        reached |= {row.evidence for row in TABLE if row.why(clues) is not None}
    assert reached == {row.evidence for row in TABLE}


def test_reasons_of_the_table_are_documented_with_their_class() -> None:
    for row in TABLE:
        if row.class_ is not None:
            assert row.class_ in FACTS[row.reason].classes or row.reason is Reason.PREEMPTED, row.evidence


def test_a_long_traceback_keeps_its_beginning_and_its_end() -> None:
    """RC-65: two megabytes of text that is not ASCII."""
    text = "reward.py failed\n" + "ü" * 2_000_000 + "\nValueError: наконец"
    message = classify(Clues(status="FAILED", exit_code=3, trainer_message=text)).message
    assert len(message) <= 2048
    assert message.startswith("reward.py failed")
    assert message.endswith("ValueError: наконец")
