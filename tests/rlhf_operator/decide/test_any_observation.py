"""Whatever is observed, ``decide`` returns a decision that can be stored: it never raises and stays within the bounds of the schema."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.progress import STEPS_MAX, BestEvaluation, CommittedCheckpoint, Failure, Progress, TrainedModel
from rlhf_api.status import RLHFJobStatus
from rlhf_operator.decide.actions import EnsureCluster, EnsureConfig, Submit
from rlhf_operator.decide.observation import (
    ActResult,
    ContainerView,
    HeadView,
    JobView,
    Observation,
    PodView,
    RayClusterView,
    SubmissionView,
    VolumeClaimView,
)
from rlhf_operator.decide.policies import decide
from tests.rlhf_operator.decide.builders import (
    NAME,
    NOW,
    SETTINGS,
    UID,
    ago,
    conditions,
    ended_status,
    job_spec,
    new_status,
    running_status,
)

TEXTS = st.one_of(
    st.text(max_size=20), st.sampled_from(["", "x" * 10_000, "й" * 5000, "\ud800", "exceeded quota", "NVRM: Xid 79", "a\n" * 3000])
)
TIMES = st.integers(-100_000, 100_000).map(lambda seconds: NOW + timedelta(seconds=seconds))
MAYBE_TIMES = st.none() | TIMES
SPECS = st.sampled_from(
    [
        None,
        job_spec(),
        job_spec(suspend=True),
        job_spec(queue="research"),
        job_spec(suspend=True, queue="research"),
        job_spec(activeDeadlineSeconds=30, ttlSecondsAfterFinished=0, provisioningDeadlineSeconds=30, progressDeadlineSeconds=30),
        job_spec(claim={"create": {"size": "1Gi"}}, backoffLimit=100, maxInfraRestarts=0),
    ]
)
STRANGE = {"submission_id": "x", "submitted_at": "yesterday", "ended_at": "9999-12-31T23:59:59Z", "last_step_at": "0001-01-01T00:00:00Z"}
STATUSES = st.sampled_from(
    [
        RLHFJobStatus(),
        new_status(),
        running_status(),
        running_status(attempt=2, run={"confirmed_at": None, "running_since": None}),
        running_status(run={"stop_requested_at": ago(500), "stop_reason": "Suspend"}),
        running_status(run={"stop_requested_at": ago(5), "stop_reason": "Stalled", "worker_lost_at": ago(90)}),
        running_status(run={"terminal_at": ago(5)}),
        running_status(run=STRANGE, retry_at="never", provisioning_since="2026-13-01T00:00:00Z"),
        running_status(run=STRANGE | {"ended_at": None}),
        running_status(conditions=conditions()[:3]),
        running_status(conditions=conditions(Running=("True", "FromAnotherVersion"))),
        running_status(conditions=conditions(Complete=("True", "Succeeded")), finished_at="soon"),
        running_status(conditions=conditions(Failed=("True", "HeadLost")), finished_at=ago(5)),
        ended_status(),
        ended_status("Stopped", conditions=conditions(Suspended=("True", "Suspended"))),
        ended_status("Preempted", replacing="cluster-uid", avoid_nodes=[f"n{index}" for index in range(8)]),
    ]
)
CONTAINERS = st.builds(
    ContainerView,
    name=TEXTS,
    container_id=st.sampled_from(["", "head-c1", "worker-c1", "other"]),
    restart_count=st.integers(0, 5),
    ready=st.booleans(),
    waiting_reason=st.sampled_from(["", "ImagePullBackOff", "CrashLoopBackOff", "CreateContainerConfigError", "PodInitializing"]),
    waiting_message=TEXTS,
    terminated_reason=st.sampled_from(["", "OOMKilled", "Error", "x" * 400]),
    terminated_exit_code=st.none() | st.integers(-20, 255),
    terminated_message=TEXTS,
    terminated_at=MAYBE_TIMES,
    init=st.booleans(),
    state=st.sampled_from(["waiting", "running", "terminated"]),
    started_at=MAYBE_TIMES,
)
PODS = st.builds(
    PodView,
    name=TEXTS,
    uid=st.sampled_from(["head-1", "worker-1", "other"]),
    group=st.just("workers"),
    head=st.booleans(),
    phase=st.sampled_from(["Pending", "Running", "Failed", "Succeeded", "Unknown"]),
    ready=st.booleans(),
    created_at=TIMES,
    node=st.sampled_from(["", "n1", "x" * 300]),
    reason=st.sampled_from(["", "Evicted", "NodeLost"]),
    message=TEXTS,
    deleting_since=MAYBE_TIMES,
    disruption=st.sampled_from(["", "PreemptionByScheduler", "DeletionByTaintManager"]),
    unschedulable=TEXTS,
    containers=st.lists(CONTAINERS, max_size=2).map(tuple),
    warning=TEXTS,
    gone=st.booleans(),
)
CLUSTERS = st.builds(
    RayClusterView,
    name=st.just(NAME),
    uid=st.sampled_from(["cluster-uid", "other"]),
    owned=st.sampled_from([True, True, True, False]),
    deleting=st.booleans(),
    suspend=st.booleans(),
    queue=st.sampled_from(["", "research"]),
    conditions=st.dictionaries(
        st.sampled_from(["HeadPodReady", "ReplicaFailure", "RayClusterSuspended"]),
        st.tuples(st.sampled_from(["True", "False"]), st.just("Why"), TEXTS),
        max_size=3,
    ),
    ready_workers=st.integers(0, 2),
    desired_workers=st.integers(0, 2),
    state=st.sampled_from(["", "ready", "suspended"]),
    head_service=st.sampled_from(["", "gsm8k-head-svc", "x" * 300]),
    created_at=TIMES,
    warning=TEXTS,
)
REPORTS = st.builds(
    Progress,
    stage=TEXTS.filter(lambda text: "\ud800" not in text),
    step=st.integers(0, STEPS_MAX),
    total_steps=st.integers(0, STEPS_MAX),
    attempt=st.integers(1, 2),
    job_uid=st.sampled_from([UID, "another"]),
    metrics=st.dictionaries(st.sampled_from(["rollout/reward_mean", "rollout/kl", "x"]), st.none() | st.floats(-1e30, 1e30), max_size=3),
    checkpoint=st.none() | st.builds(CommittedCheckpoint, step=st.integers(0, 9), path=st.just("p" * 2000), committed_at=st.just("t" * 99)),
    best=st.none()
    | st.builds(
        BestEvaluation, step=st.integers(0, STEPS_MAX), metric=st.just("m" * 999), value=st.floats(allow_nan=False, allow_infinity=False)
    ),
    model=st.none() | st.builds(TrainedModel, step=st.integers(0, STEPS_MAX), path=st.sampled_from(["/c/final", "p" * 2000])),
    heartbeat_age_seconds=st.floats(0, 1e9),
    eta=st.none() | st.floats(0, 1e12),
    failure=st.none() | st.builds(Failure, exit_code=st.just(3), stage=st.just("rollout"), message=st.just("m" * 9000)),
)
SUBMISSIONS = st.builds(
    SubmissionView,
    submission_id=st.sampled_from([f"{NAME}-a1", f"{NAME}-a2"]),
    found=st.booleans(),
    status=st.sampled_from([None, "PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"]),
    error_type=st.sampled_from(["", "RUNTIME_ENV_SETUP_FAILURE", "JOB_SUPERVISOR_ACTOR_DIED"]),
    exit_code=st.none() | st.sampled_from([0, 1, 2, 3, 75, 137, 143]),
    message=TEXTS,
    metadata=st.sampled_from([{}, {"rlhf.dev/job-uid": UID}, {"rlhf.dev/job-uid": "another"}]),
    log_tail=TEXTS,
)
HEADS = st.builds(
    HeadView,
    at=TIMES,
    reachable=st.booleans(),
    unreachable_since=MAYBE_TIMES,
    error=TEXTS,
    gcs_healthy=st.booleans(),
    version=st.sampled_from(["", "2.60.0"]),
    submission=st.none() | SUBMISSIONS,
    progress=st.none() | REPORTS,
    progress_at=MAYBE_TIMES,
    others=st.none() | st.lists(SUBMISSIONS, max_size=2).map(tuple),
)
RESULTS = st.builds(
    ActResult,
    action=st.sampled_from(["Submit", "StopSubmission", "EnsureCluster", "EnsureConfig", "DeleteCluster", "SuspendCluster"]),
    ok=st.booleans(),
    at=TIMES,
    code=st.sampled_from([0, 403, 404, 409, 500]),
    message=TEXTS,
    permanent=st.booleans(),
    failures=st.sampled_from([0, 1, 5000]),
)


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    job = JobView(
        namespace="research",
        name=NAME,
        uid=UID,
        generation=draw(st.integers(1, 3)),
        created_at=NOW,
        deleting=draw(st.sampled_from([False, False, False, True])),
        spec=draw(SPECS),
        problems=tuple(draw(st.lists(TEXTS, max_size=1))),
        ignored_edits=tuple(draw(st.lists(TEXTS, max_size=1))),
        status=draw(STATUSES),
        worker_pods=draw(st.integers(0, 3)),
    )
    return Observation(
        job=job,
        config=draw(st.booleans()),
        token=draw(st.booleans()),
        network_policy=draw(st.booleans()),
        disruption_budget=draw(st.sampled_from([None, "", "uid-of-budget"])),
        claim=draw(
            st.none() | st.builds(VolumeClaimView, TEXTS, st.sampled_from(["Pending", "Bound", "Lost"]), st.booleans(), st.just(()), TEXTS)
        ),
        cluster=draw(st.none() | CLUSTERS),
        pods=tuple(draw(st.lists(PODS, max_size=3))),
        head=draw(st.none() | HEADS),
        missing=tuple(draw(st.lists(TEXTS, max_size=2))),
        queue_message=draw(TEXTS),
        results=tuple(draw(st.lists(RESULTS, max_size=3))),
        unread=tuple(draw(st.lists(st.sampled_from(["config", "claim", "cluster", "pods", "missing", "disruption_budget"]), max_size=2))),
        namespace_terminating=draw(st.sampled_from([False, False, True])),
    )


@settings(max_examples=400)
@given(observations(), TIMES)
def test_every_observation_has_a_decision_that_can_be_stored(seen: Observation, now: datetime) -> None:
    decision = decide(seen, now, SETTINGS)
    assert decision == decide(seen, now, SETTINGS), "not deterministic"
    stored = decision.status.model_dump(by_alias=True, exclude_none=True, mode="json")
    RLHFJobStatus.model_validate(stored)
    assert len(decision.status.model_dump_json(by_alias=True).encode()) < 400_000
    assert decision.requeue_after_seconds is None or decision.requeue_after_seconds >= 0
    _check_actions(seen, decision.status, [*decision.before_status, *decision.after_status])
    assert not any(isinstance(action, Submit) for action in decision.before_status)
    for event in decision.events:
        assert len(event.message) <= 1024


def _check_actions(seen: Observation, status: RLHFJobStatus, actions: list[Any]) -> None:
    kinds = {type(action) for action in actions}
    created = kinds & {EnsureConfig, EnsureCluster, Submit}
    assert not created or not (seen.job.deleting or seen.namespace_terminating), "nothing new in what goes away"
    assert not created or seen.job.status.conditions, "the first child comes after the first status"
    assert Submit not in kinds or (status.run is not None and status.run.ended_at is None)
    assert (status.attempt or 0) >= (seen.job.status.attempt or 0)
