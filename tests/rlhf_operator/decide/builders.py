"""Observations written down: a job in the middle of its life, and what to change about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from rlhf_api import manifest
from rlhf_api.progress import CommittedCheckpoint, Progress
from rlhf_api.spec import RLHFJob
from rlhf_api.status import Condition, Failure, HeadIdentity, RLHFJobStatus, RunStatus
from rlhf_operator.decide.actions import Action, Decision
from rlhf_operator.decide.conditions import TYPES
from rlhf_operator.decide.observation import (
    ContainerView,
    HeadView,
    JobView,
    Observation,
    PodView,
    RayClusterView,
    SubmissionView,
    VolumeClaimView,
)
from rlhf_operator.decide.pods import fingerprint
from rlhf_operator.decide.policies import decide
from rlhf_operator.decide.settings import DecideSettings
from rlhf_operator.decide.texts import stamp

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
SETTINGS = DecideSettings()
UID = "job-uid"
NAME = "gsm8k"
CLUSTER_UID = "cluster-uid"
STARTED = NOW - timedelta(minutes=10)

READY = {"HeadPodReady": ("True", "HeadPodRunningAndReady", ""), "RayClusterProvisioned": ("True", "AllPodRunningAndReadyFirstTime", "")}


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def ago(seconds: float) -> str:
    return stamp(later(-seconds))


def job_spec(suspend: bool = False, queue: str | None = None, claim: Mapping[str, Any] | None = None, **lifecycle: Any) -> RLHFJob:
    cluster: dict[str, Any] = {"files": {"configMap": "files"}}
    if queue is not None:
        cluster["queueName"] = queue
    raw = {
        "apiVersion": "rlhf.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": NAME, "namespace": "research", "uid": UID},
        "spec": {
            "suspend": suspend,
            "rl": {"algorithm": "grpo", "reward": {"sources": [{"function": {"file": "reward.py"}}]}},
            "models": {"actor": {"path": "model"}},
            "data": {"datasets": [{"path": "train.jsonl"}]},
            "cluster": cluster,
            "checkpoint": {"volume": dict(claim or {"existingClaim": "ckpt"})},
            "lifecycle": lifecycle,
        },
    }
    job, violations = manifest.validate(raw)
    assert job is not None, [str(violation) for violation in violations]
    return job


def container(name: str = "ray", container_id: str = "c1", **changes: Any) -> ContainerView:
    view = ContainerView(name=name, container_id=container_id, restart_count=0, ready=True, started_at=STARTED)
    return replace(view, **changes)


def head(**changes: Any) -> PodView:
    view = PodView(
        name=f"{NAME}-head-x1",
        uid="head-1",
        group="headgroup",
        head=True,
        phase="Running",
        ready=True,
        created_at=STARTED,
        node="cpu-1",
        containers=(container(container_id="head-c1"),),
    )
    return replace(view, **changes)


def worker(number: int = 1, **changes: Any) -> PodView:
    view = PodView(
        name=f"{NAME}-workers-worker-w{number}",
        uid=f"worker-{number}",
        group="workers",
        head=False,
        phase="Running",
        ready=True,
        created_at=STARTED,
        node=f"gpu-{number}",
        containers=(container(container_id=f"worker-c{number}", started_at=STARTED + timedelta(seconds=20)),),
    )
    return replace(view, **changes)


def ray_cluster(**changes: Any) -> RayClusterView:
    view = RayClusterView(
        name=NAME,
        uid=CLUSTER_UID,
        owned=True,
        deleting=False,
        suspend=False,
        queue="",
        conditions=READY,
        ready_workers=1,
        desired_workers=1,
        state="ready",
        head_service=f"{NAME}-head-svc",
        created_at=STARTED,
    )
    return replace(view, **changes)


def conditions(**states: tuple[str, str]) -> list[Condition]:
    """Conditions of a running job; ``Running=("False", "Restarting")`` replaces one."""
    base = {
        "Validated": ("True", "Valid"),
        "ClusterReady": ("True", "ClusterReady"),
        "Running": ("True", "Training"),
        "Suspended": ("False", "NotSuspended"),
        "Complete": ("False", "Accepted"),
        "Failed": ("False", "Accepted"),
    } | states
    return [
        Condition(type=kind, status=base[kind][0], reason=base[kind][1], last_transition_time=ago(600), observed_generation=1)
        for kind in TYPES
    ]


def new_status() -> RLHFJobStatus:
    """What the first visit leaves."""
    unknown = dict.fromkeys(TYPES, ("Unknown", "Accepted"))
    return RLHFJobStatus(conditions=conditions(**unknown), phase="Pending", observed_generation=1)


def running_status(attempt: int = 1, run: Mapping[str, Any] | None = None, **changes: Any) -> RLHFJobStatus:
    """A job whose attempt trains since five minutes and has done 7 steps."""
    fields: dict[str, Any] = {
        "submission_id": f"{NAME}-a{attempt}",
        "submitted_at": ago(320),
        "confirmed_at": ago(315),
        "running_since": ago(300),
        "head": HeadIdentity(pod_uid="head-1", container_id="head-c1"),
        "workers": fingerprint([worker()]),
        "start_step": 0,
        "last_step": 7,
        "last_step_at": ago(20),
    }
    status = RLHFJobStatus(
        phase="Running",
        conditions=conditions(),
        observed_generation=1,
        attempt=attempt,
        run=RunStatus(**(fields | dict(run or {}))),
        started_at=ago(300),
        active_since=ago(300),
        first_step_at=ago(200),
    )
    return status.model_copy(update=changes)


def ended_status(outcome: str = "Failed", **changes: Any) -> RLHFJobStatus:
    """An attempt that was judged a minute ago; the back-off is over."""
    failure = Failure(attempt=1, class_="Infra", reason="HeadLost", message="head pod is gone", at=ago(60), step=7)
    run = {"ended_at": ago(60), "outcome": outcome, **changes.pop("run", {})}
    fields = {
        "failures": [failure] if outcome == "Failed" else [],
        "retry_at": ago(50),
        "provisioning_since": ago(60),
        "conditions": conditions(Running=("False", "Restarting")),
    }
    return running_status(run=run, **(fields | changes))


def submission(status: str | None = "RUNNING", attempt: int = 1, **changes: Any) -> SubmissionView:
    view = SubmissionView(
        submission_id=f"{NAME}-a{attempt}",
        found=status is not None,
        status=status,  # type: ignore[arg-type]
        metadata={"rlhf.dev/job-uid": UID, "rlhf.dev/attempt": str(attempt)} if status is not None else {},
    )
    return replace(view, **changes)


def progress(step: int = 7, attempt: int = 1, **changes: Any) -> Progress:
    fields: dict[str, Any] = {
        "stage": "rollout",
        "step": step,
        "total_steps": 60,
        "attempt": attempt,
        "job_uid": UID,
        "metrics": {"rollout/reward_mean": 0.6123, "rollout/kl": 0.00412, "perf/tokens_per_second": 18203.4},
        "checkpoint": CommittedCheckpoint(step=5, path="/checkpoints/research/gsm8k/step-000005", committed_at=ago(100)),
        "eta": 7860.0,
    }
    return Progress(**(fields | changes))


def head_view(view: SubmissionView | None = None, **changes: Any) -> HeadView:
    base = HeadView(
        at=later(-1),
        reachable=True,
        gcs_healthy=True,
        version="2.60.0",
        submission=view,
        progress=progress(),
        progress_at=later(-1),
        others=(),
    )
    return replace(base, **changes)


def silent(seconds: float) -> HeadView:
    """A head that has not answered for so long."""
    return HeadView(at=later(-1), reachable=False, unreachable_since=later(-seconds), error="connection timed out", progress=progress())


def observe(
    status: RLHFJobStatus | None = None, spec: RLHFJob | None = None, job: Mapping[str, Any] | None = None, **changes: Any
) -> Observation:
    """A job that trains; ``changes`` replace parts of what is seen."""
    view = JobView(
        namespace="research",
        name=NAME,
        uid=UID,
        generation=1,
        created_at=STARTED,
        deleting=False,
        spec=spec or job_spec(),
        problems=(),
        ignored_edits=(),
        status=status if status is not None else running_status(),
    )
    seen = Observation(
        job=replace(view, **(job or {})),
        config=True,
        token=True,
        network_policy=True,
        claim=VolumeClaimView(name="ckpt", phase="Bound", owned=False, access_modes=("ReadWriteMany",)),
        cluster=ray_cluster(),
        pods=(head(), worker()),
        head=head_view(submission()),
    )
    return replace(seen, **changes)


def nothing_yet(status: RLHFJobStatus | None = None, **changes: Any) -> Observation:
    """A job of which only the object exists."""
    empty: dict[str, Any] = {"config": False, "token": False, "network_policy": False, "cluster": None, "pods": (), "head": None}
    return observe(status if status is not None else new_status(), **(empty | changes))


def decided(seen: Observation, seconds: float = 0.0, settings: DecideSettings = SETTINGS) -> Decision:
    """The decision, after what always holds was checked."""
    decision = decide(seen, later(seconds), settings)
    assert decision == decide(seen, later(seconds), settings), "not deterministic"
    RLHFJobStatus.model_validate(decision.status.model_dump(by_alias=True, exclude_none=True))
    return decision


def actions(decision: Decision) -> list[Action]:
    return [*decision.before_status, *decision.after_status]


def names(decision: Decision) -> list[str]:
    return [type(action).__name__ for action in actions(decision)]


def condition(decision: Decision, kind: str) -> Condition:
    return next(each for each in decision.status.conditions if each.type == kind)
