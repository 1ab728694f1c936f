"""Creation, suspension, queues, deadlines, cleanup, deletion."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from rlhf_api.spec import RLHFJob
from rlhf_api.status import RayClusterStatus, RLHFJobStatus, RunStatus
from rlhf_operator.decide.actions import (
    DeleteCluster,
    DeleteDisruptionBudget,
    DeleteJob,
    EnsureCluster,
    EnsureConfig,
    EnsureNetworkPolicy,
    EnsureToken,
    MarkCluster,
    ReleaseWorkers,
    StopSubmission,
    Submit,
    SuspendCluster,
)
from rlhf_operator.decide.observation import ActResult, Observation, PodView, RayClusterView, VolumeClaimView
from rlhf_operator.decide.texts import stamp
from tests.rlhf_operator.decide.builders import (
    CLUSTER_UID,
    NAME,
    READY,
    SETTINGS,
    actions,
    ago,
    condition,
    conditions,
    decided,
    ended_status,
    head,
    head_view,
    job_spec,
    later,
    names,
    new_status,
    nothing_yet,
    observe,
    ray_cluster,
    running_status,
    submission,
)
from tests.rlhf_operator.decide.test_waiting import WAITS

A1 = f"{NAME}-a1"


def failed_call(action: str, code: int, message: str, permanent: bool, failures: int = 1, seconds: float = 100) -> ActResult:
    return ActResult(action, False, later(-seconds), code, message, permanent, failures)


# Creation.


def test_rc32_all_conditions_stand_before_the_first_child() -> None:
    first = decided(nothing_yet(RLHFJobStatus()))
    assert {each.type: each.status for each in first.status.conditions} == dict.fromkeys(
        ("Validated", "ClusterReady", "Running", "Suspended", "Complete", "Failed"), "Unknown"
    )
    assert actions(first) == []
    assert first.status.phase == "Pending"
    assert first.urgent
    assert first.requeue_after_seconds == 0
    second = decided(nothing_yet(first.status))
    assert actions(second) == [EnsureConfig(), EnsureToken(), EnsureNetworkPolicy(), EnsureCluster()]
    assert second.before_status == ()
    assert second.status.provisioning_since is not None


def test_the_claim_is_made_before_the_cluster() -> None:
    spec = job_spec(claim={"create": {"size": "10Gi"}})
    assert names(decided(nothing_yet(spec=spec, claim=None))) == [
        "EnsureConfig",
        "EnsureToken",
        "EnsureClaim",
        "EnsureNetworkPolicy",
        "EnsureCluster",
    ]


@pytest.mark.parametrize(
    ("seen", "made"),
    [
        (nothing_yet(config=True, token=True, disruption_budget=""), ["EnsureNetworkPolicy", "EnsureDisruptionBudget", "EnsureCluster"]),
        (nothing_yet(config=True, token=True, disruption_budget="b-1"), ["EnsureNetworkPolicy", "EnsureCluster"]),
        (observe(disruption_budget=""), ["EnsureDisruptionBudget"]),
        (observe(disruption_budget="", unread=("disruption_budget",)), []),
        (observe(disruption_budget="b-1"), []),
        (observe(), []),
    ],
)
def test_the_heads_disruption_budget_is_made_before_the_head_and_again_when_it_is_lost(seen: Observation, made: list[str]) -> None:
    assert names(decided(seen)) == made


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (403, 'rayclusters.ray.io is forbidden: User "operator" cannot create resource'),
        (422, "RayCluster.ray.io is invalid: spec.headGroupSpec.template: Required value"),
        (404, "the server could not find the requested resource"),
    ],
)
def test_rc32_a_permanent_refusal_fails_the_job_with_the_servers_words(code: int, message: str) -> None:
    decision = decided(nothing_yet(results=(failed_call("EnsureCluster", code, message, True),)))
    assert decision.status.phase == "Failed"
    assert message in (decision.status.message or "")
    assert decision.status.failures[-1].class_ == "Config"
    assert actions(decision) == []


def test_rc32_a_temporary_refusal_is_told_with_its_count_and_tried_again() -> None:
    call = failed_call("EnsureCluster", 500, "etcdserver: request timed out", False, failures=3)
    decision = decided(nothing_yet(config=True, token=True, network_policy=True, results=(call,)))
    assert decision.status.phase == "Provisioning"
    assert decision.status.reason == "ApiError"
    assert "HTTP 500: etcdserver: request timed out; failed 3 times" in (decision.status.message or "")
    assert names(decision) == ["EnsureCluster"]


def test_a_secret_that_is_made_again_does_not_hide_why_the_pods_are_not_ready() -> None:
    """After a restart the operator does not know whether it exists, and may not read it."""
    decision = decided(observe(WAITS, token=False, pods=(head(ready=False, unschedulable="0/3 nodes are available"),), head=None))
    assert actions(decision) == [EnsureToken()]
    assert decision.status.reason == "Unschedulable"


def test_rc35_a_checkpoint_claim_that_does_not_exist_is_named() -> None:
    decision = decided(nothing_yet(claim=None))
    assert decision.status.reason == "VolumeMissing"
    assert "PersistentVolumeClaim ckpt" in (decision.status.message or "")
    assert actions(decision) == []


MISSING: dict[str, dict[str, Any]] = {
    "a claim": {"claim": None},
    "a claim of another kind of access": {"claim": VolumeClaimView("ckpt", "Bound", False, ("ReadOnlyMany",))},
    "a ConfigMap": {"missing": ("ConfigMap files",)},
}


@pytest.mark.parametrize("missing", MISSING.values(), ids=MISSING.keys())
def test_what_is_missing_is_looked_for_every_few_seconds(missing: dict[str, Any]) -> None:
    """No event tells that somebody created it."""
    decision = decided(nothing_yet(**missing))
    assert decision.status.phase == "Provisioning"
    assert decision.requeue_after_seconds == SETTINGS.recheck_seconds


@pytest.mark.parametrize("missing", MISSING.values(), ids=MISSING.keys())
def test_the_look_that_finds_what_was_missing_never_fails_by_the_deadline(missing: dict[str, Any]) -> None:
    spec = job_spec(provisioningDeadlineSeconds=60)
    waits = decided(nothing_yet(spec=spec, **missing))
    found = decided(nothing_yet(waits.status, spec=spec), seconds=65)
    assert found.status.phase == "Provisioning"
    assert "EnsureCluster" in names(found)
    assert found.status.provisioning_since == stamp(later(65)), "the pods get their whole time"
    never = decided(nothing_yet(waits.status, spec=spec, **missing), seconds=65)
    assert never.status.reason == "ProvisioningDeadlineExceeded"


def test_rc32_a_quota_on_objects_can_go_away() -> None:
    call = failed_call("EnsureCluster", 403, 'rayclusters.ray.io "gsm8k" is forbidden: exceeded quota: objects', True)
    decision = decided(nothing_yet(results=(call,)))
    assert decision.status.reason == "QuotaExceeded"
    assert "EnsureCluster" in names(decision)


def test_rc64_children_of_another_owner_are_waited_for_and_never_adopted() -> None:
    decision = decided(observe(new_status(), cluster=ray_cluster(owned=False, deleting=True), head=None))
    assert actions(decision) == []
    assert decision.status.reason == "FormerJob"
    assert "is being deleted" in (decision.status.message or "")
    gone = decided(nothing_yet(decision.status))
    assert "EnsureCluster" in names(gone)


def test_rc64_an_orphan_of_the_same_name_is_named_with_the_way_out() -> None:
    decision = decided(observe(new_status(), cluster=ray_cluster(owned=False)))
    assert f"kubectl delete raycluster {NAME}" in (decision.status.message or "")


def test_rc64_a_conflict_on_creation_waits() -> None:
    decision = decided(nothing_yet(results=(failed_call("EnsureConfig", 409, "owned by another UID", True),)))
    assert decision.status.phase == "Provisioning"
    assert decision.status.reason == "FormerJob"
    words = decision.status.message or ""
    assert words.startswith("ConfigMap cannot be created: HTTP 409: owned by another UID; the job waits until it is gone")
    assert "another owner" not in words


def test_rc28_an_invalid_spec_creates_nothing_and_says_why() -> None:
    problem = "spec.placement.rollout: 3 engines x 2 GPUs = 6, but colocate: all shares the actor's 8 GPUs."
    decision = decided(nothing_yet(job={"problems": (problem,)}))
    assert actions(decision) == []
    assert decision.status.phase == "Failed"
    assert decision.status.reason == "BadSpec"
    assert decision.status.message == problem
    assert condition(decision, "Validated").status == "False"


def test_a_running_job_outlives_an_operator_that_cannot_read_its_spec() -> None:
    decision = decided(observe(job={"spec": None, "problems": ("unknown field spec.rl.old",)}))
    assert decision.status.phase == "Running"
    assert actions(decision) == []
    assert condition(decision, "Validated").status == "Unknown"


def test_a_running_jobs_cluster_gets_its_labels_back_and_nothing_fails() -> None:
    decision = decided(observe(cluster=ray_cluster(marked=False)))
    assert actions(decision) == [MarkCluster(CLUSTER_UID)]
    assert decision.status.phase == "Running"
    assert not decision.status.failures


def test_labels_that_cannot_be_put_back_hold_nothing_up() -> None:
    call = failed_call("MarkCluster", 403, "forbidden", True)
    decision = decided(observe(cluster=ray_cluster(marked=False), token=False, results=(call,)))
    assert names(decision) == ["EnsureToken", "MarkCluster"], "a failed action keeps those after it from being taken"
    assert decision.status.phase == "Running"


def test_edits_without_effect_are_named() -> None:
    decision = decided(observe(job={"ignored_edits": ("spec.cluster.podOverlay.spec",), "generation": 2}))
    validated = condition(decision, "Validated")
    assert (validated.status, validated.reason) == ("True", "EditIgnored")
    assert "spec.cluster.podOverlay.spec" in validated.message
    assert validated.observed_generation == 2
    assert actions(decision) == []


# Deletion.


@pytest.mark.parametrize(
    "status", [RLHFJobStatus(), new_status(), running_status(), ended_status()], ids=["new", "creating", "running", "restarting"]
)
def test_rc34_deletion_lets_the_cluster_go_and_writes_one_last_status(status: RLHFJobStatus) -> None:
    decision = decided(observe(status, job={"deleting": True}))
    assert [action for action in actions(decision) if not isinstance(action, StopSubmission)] == [DeleteCluster(CLUSTER_UID)]
    assert not decision.after_status, "nothing waits for a status that perhaps can't be stored any more"
    assert not decision.events
    assert decision.watch is None
    again = decided(observe(decision.status, job={"deleting": True}), seconds=60)
    assert again.status == decision.status
    if status.conditions:
        assert (decision.status.phase, decision.status.reason) == ("Suspending", "Deleting")
        assert "the job is being deleted" in (decision.status.message or "")


def test_rc34_a_job_that_a_finalizer_holds_says_so_and_its_trainer_is_asked_to_save() -> None:
    decision = decided(observe(job={"deleting": True}))
    assert actions(decision) == [DeleteCluster(CLUSTER_UID), StopSubmission(A1)]
    assert (condition(decision, "Running").status, condition(decision, "ClusterReady").status) == ("False", "False")
    failed = observe(decision.status, job={"deleting": True}, cluster=None, results=(failed_call("StopSubmission", 0, "no answer", False),))
    assert actions(decided(failed)) == [StopSubmission(A1)]
    done = observe(decision.status, job={"deleting": True}, cluster=None, results=(ActResult("StopSubmission", True, later(-1)),))
    assert actions(decided(done)) == []
    gone = observe(decision.status, job={"deleting": True}, cluster=None, pods=(), claim=None, config=False, token=False)
    assert actions(decided(gone)) == []


def test_rc34_the_status_of_a_finished_job_that_is_deleted_stays() -> None:
    status = finished("Succeeded")
    assert decided(observe(status, job={"deleting": True})).status == status


def test_rc34_deletion_does_not_wait_for_what_does_not_exist() -> None:
    decision = decided(nothing_yet(job={"deleting": True}))
    assert actions(decision) == []
    assert decision.requeue_after_seconds is None


@pytest.mark.parametrize("status", [new_status(), ended_status()])
def test_rc34_nothing_is_created_in_a_terminating_namespace(status: RLHFJobStatus) -> None:
    decision = decided(nothing_yet(status, namespace_terminating=True))
    assert actions(decision) == []
    assert "namespace research is being deleted" in condition(decision, "ClusterReady").message


# Suspension.


def test_suspend_first_asks_the_trainer_for_a_checkpoint() -> None:
    decision = decided(observe(spec=job_spec(suspend=True)))
    assert decision.after_status == (StopSubmission(A1),)
    assert decision.before_status == ()
    assert decision.status.phase == "Suspending"
    assert decision.status.reason == "SuspendRequested"


def test_then_suspends_the_cluster_and_is_suspended_when_the_pods_are_gone() -> None:
    spec = job_spec(suspend=True)
    stopping = running_status(run={"stop_requested_at": ago(20), "stop_reason": "Suspend"})
    stopped = decided(observe(stopping, spec=spec, head=head_view(submission("STOPPED"))))
    assert actions(stopped) == [SuspendCluster(CLUSTER_UID, True)]
    assert stopped.status.phase == "Suspending"
    assert not stopped.status.failures
    going = decided(observe(stopped.status, spec=spec, cluster=ray_cluster(suspend=True), pods=(head(deleting_since=later(0)),)))
    assert going.status.phase == "Suspending"
    assert "waiting for pods to go: gsm8k-head-x1" in (going.status.message or "")
    assert actions(going) == []
    gone = decided(observe(going.status, spec=spec, cluster=ray_cluster(suspend=True), pods=(), head=None))
    assert gone.status.phase == "Suspended"
    assert gone.watch is None
    assert actions(gone) == []
    resumed = decided(observe(gone.status, cluster=ray_cluster(suspend=True), pods=(), head=None))
    assert actions(resumed) == [SuspendCluster(CLUSTER_UID, False)]
    assert resumed.status.phase == "Provisioning"


def test_a_queued_cluster_is_deleted_and_never_suspended_by_us() -> None:
    spec = job_spec(suspend=True, queue="research")
    stopping = running_status(run={"stop_requested_at": ago(20), "stop_reason": "Suspend"})
    decision = decided(observe(stopping, spec=spec, cluster=ray_cluster(queue="research"), head=head_view(submission("STOPPED"))))
    assert actions(decision) == [DeleteCluster(CLUSTER_UID)]


@pytest.mark.parametrize("queue", ["research", None])
def test_a_suspended_job_says_that_its_place_in_the_queue_is_gone(queue: str | None) -> None:
    status = ended_status().model_copy(update={"ray_cluster": RayClusterStatus(name=NAME, uid=CLUSTER_UID)})
    decision = decided(observe(status, spec=job_spec(suspend=True, queue=queue), cluster=None, pods=(), head=None))
    assert decision.status.phase == "Suspended"
    assert ("its place in the queue was given up" in (decision.status.message or "")) is (queue is not None)


def test_a_job_that_never_was_in_a_queue_has_given_up_no_place() -> None:
    decision = decided(nothing_yet(spec=job_spec(suspend=True, queue="research")))
    assert decision.status.phase == "Suspended"
    assert "place" not in (decision.status.message or "")


def test_suspend_does_not_wait_longer_than_the_grace() -> None:
    stopping = running_status(run={"stop_requested_at": ago(181), "stop_reason": "Suspend"})
    decision = decided(observe(stopping, spec=job_spec(suspend=True)))
    assert actions(decision) == [SuspendCluster(CLUSTER_UID, True)]
    assert not decision.status.failures


def test_a_job_that_succeeds_while_it_is_suspended_has_succeeded() -> None:
    stopping = running_status(run={"stop_requested_at": ago(20), "stop_reason": "Suspend"})
    decision = decided(observe(stopping, spec=job_spec(suspend=True), head=head_view(submission("SUCCEEDED", exit_code=0))))
    assert decision.status.phase == "Succeeded"


def test_a_job_that_is_created_suspended_creates_nothing() -> None:
    decision = decided(nothing_yet(spec=job_spec(suspend=True)))
    assert decision.status.phase == "Suspended"
    assert actions(decision) == []


def test_suspend_before_the_post_was_seen_waits_for_the_heads_word() -> None:
    unseen = running_status(run={"confirmed_at": None, "running_since": None, "submitted_at": ago(5)})
    asked = decided(observe(unseen, spec=job_spec(suspend=True), head=None))
    assert actions(asked) == [StopSubmission(A1)]
    view = head_view(submission(None), at=later(2))
    known = decided(observe(asked.status, spec=job_spec(suspend=True), head=view), seconds=3)
    assert actions(known) == [SuspendCluster(CLUSTER_UID, True)]


def test_resume_during_the_stop_continues_when_the_trainer_has_stopped() -> None:
    stopping = running_status(run={"stop_requested_at": ago(20), "stop_reason": "Suspend"}, conditions=conditions())
    waits = decided(observe(stopping))
    assert "Submit" not in names(waits)
    stopped = decided(observe(stopping, head=head_view(submission("STOPPED"))))
    again = decided(observe(stopped.status, head=head_view(submission("STOPPED"), at=later(3))), seconds=4)
    assert Submit(2, f"{NAME}-a2") in (*stopped.after_status, *again.after_status)
    assert not again.status.failures


# Kueue.

QUEUED = ray_cluster(queue="research", suspend=True, conditions={}, state="", ready_workers=0, desired_workers=0)
WITH_QUEUE = job_spec(queue="research")


def test_waiting_in_a_queue_is_told_with_its_words_and_has_no_deadline() -> None:
    status = new_status().model_copy(update={"provisioning_since": ago(100_000)})
    decision = decided(
        observe(status, spec=WITH_QUEUE, cluster=QUEUED, pods=(), head=None, queue_message="insufficient quota for nvidia.com/gpu")
    )
    assert decision.status.phase == "Queued"
    assert "queue research: insufficient quota for nvidia.com/gpu" in (decision.status.message or "")
    assert decision.status.provisioning_since is None
    assert actions(decision) == []


@pytest.mark.parametrize(
    ("reads", "words", "seconds"), [(False, "", None), (True, "", SETTINGS.recheck_seconds), (True, "quota", SETTINGS.queue_seconds)]
)
def test_the_queues_words_are_looked_for_where_they_can_be_read(reads: bool, words: str, seconds: float | None) -> None:
    seen = observe(new_status(), spec=WITH_QUEUE, cluster=QUEUED, pods=(), head=None, queue_message=words)
    assert decided(seen, settings=replace(SETTINGS, queue_words=reads)).requeue_after_seconds == seconds


SUSPENDING = {**READY, "RayClusterSuspending": ("True", "UserRequestedSuspend", "")}
RESUMED = {**READY, "RayClusterSuspended": ("False", "RayClusterSuspended", "")}


@pytest.mark.parametrize(
    ("cluster", "pods"),
    [
        (ray_cluster(queue="research", suspend=True), None),
        (ray_cluster(queue="research", conditions=SUSPENDING), None),
        (ray_cluster(queue="research", conditions=RESUMED, resumed_at=later(-5)), (head(uid="another"),)),
    ],
    ids=["suspended", "suspended and resumed, its pods go", "suspended and resumed, new pods"],
)
def test_eviction_by_the_queue_is_on_no_budget(cluster: RayClusterView, pods: tuple[PodView, ...] | None) -> None:
    more = {"pods": pods} if pods is not None else {}
    decision = decided(observe(spec=job_spec(queue="research", maxInfraRestarts=0), cluster=cluster, **more))
    assert [(failure.class_, failure.reason) for failure in decision.status.failures] == [("Preempted", "QueueEvicted")]
    assert decision.status.phase == ("Queued" if cluster.suspend else "Restarting")
    assert decision.status.retry_at is None
    assert not {"DeleteCluster", "SuspendCluster", "Submit"} & set(names(decision)), "the same RayCluster keeps its place"


@pytest.mark.parametrize(("queue", "resumed_at"), [("research", later(-650)), ("research", None), ("", later(-5))])
def test_a_lost_head_is_no_eviction_without_a_resumption_in_its_attempt(queue: str, resumed_at: datetime | None) -> None:
    cluster = ray_cluster(queue=queue, conditions=RESUMED, resumed_at=resumed_at)
    decision = decided(observe(spec=job_spec(queue=queue or None), cluster=cluster, pods=(head(uid="another"),)))
    assert [(failure.class_, failure.reason) for failure in decision.status.failures] == [("Infra", "HeadLost")]


def test_a_resumption_without_a_loss_ends_no_attempt() -> None:
    """The times of two clocks are compared."""
    cluster = ray_cluster(queue="research", conditions=RESUMED, resumed_at=later(-5))
    assert not decided(observe(spec=WITH_QUEUE, cluster=cluster)).status.failures


def test_two_attempts_without_a_step_in_a_queue_keep_the_cluster() -> None:
    counters = {"counters": ended_status().counters}
    status = running_status(run={"last_step": None}, **counters)
    for attempt in (1, 2):
        seen = observe(status, spec=WITH_QUEUE, cluster=ray_cluster(queue="research"), pods=(), head=None)
        decision = decided(seen)
        assert decision.status.replacing is None
        run = RunStatus(**(status.run.model_dump() if status.run is not None else {}))
        status = decision.status.model_copy(update={"run": run, "attempt": attempt + 1})


# Restarts.


def test_two_attempts_without_a_new_step_get_a_new_cluster() -> None:
    once = decided(observe(running_status(run={"last_step": None}), pods=(), head=None))
    assert once.status.replacing is None
    second = running_status(attempt=2, run={"last_step": None}, counters=once.status.counters, failures=once.status.failures)
    twice = decided(observe(second, pods=(), head=None))
    assert twice.status.replacing == CLUSTER_UID
    assert condition(twice, "Running").reason == "Recreating"


def test_a_node_where_pods_keep_dying_is_avoided() -> None:
    evicted = head(phase="Failed", reason="Evicted", node="cpu-1")
    once = decided(observe(pods=(evicted,)))
    assert once.status.avoid_nodes == []
    second = running_status(attempt=2, evidence=once.status.evidence, failures=once.status.failures)
    other = replace(evicted, name="gsm8k-head-x2")
    twice = decided(observe(second, pods=(other,)))
    assert twice.status.avoid_nodes == ["cpu-1"]
    assert twice.status.replacing == CLUSTER_UID
    made = decided(observe(twice.status, cluster=None, pods=(), head=None), seconds=60)
    assert actions(made) == [EnsureCluster(("cpu-1",))]


def test_back_off_is_told_and_kept() -> None:
    status = ended_status(retry_at=ago(-40))
    decision = decided(observe(status, head=head_view(submission(None))))
    assert actions(decision) == []
    assert decision.status.phase == "Restarting"
    assert decision.requeue_after_seconds == pytest.approx(40, abs=1)


# Deadlines and the end.


def test_the_active_deadline_stops_after_a_checkpoint_and_fails() -> None:
    spec = job_spec(activeDeadlineSeconds=200)
    asked = decided(observe(spec=spec))
    assert actions(asked) == [StopSubmission(A1)]
    assert asked.status.phase == "Restarting"
    ended = decided(observe(asked.status, spec=spec, head=head_view(submission("STOPPED"))))
    assert ended.status.phase == "Failed"
    assert ended.status.reason == "DeadlineExceeded"
    assert "3m20s" in (ended.status.message or "")


def finished(phase: str, **changes: Any) -> RLHFJobStatus:
    kind, reason = ("Complete", "Succeeded") if phase == "Succeeded" else ("Failed", "BadDataOrReward")
    outcome = "Succeeded" if phase == "Succeeded" else "Failed"
    states = {kind: ("True", reason), "Running": ("False", "NotRunning")}
    run = {"ended_at": ago(100), "outcome": outcome, "fenced": True}
    return running_status(run=run, finished_at=ago(100), phase=phase, conditions=conditions(**states), **changes)


@pytest.mark.parametrize(
    ("policy", "says"),
    [("cluster", "its Ray cluster is released"), ("workers", "its worker pods are released"), ("none", "")],
)
def test_the_conditions_of_a_finished_job_do_not_speak_of_pods_that_are_gone(policy: str, says: str) -> None:
    status = running_status(conditions=conditions(Suspended=("False", "Resumed")))
    view = head_view(submission("SUCCEEDED", exit_code=0))
    decision = decided(observe(status, spec=cleanup(onSuccess=policy), head=view))
    assert decision.status.phase == "Succeeded"
    ready, suspended = condition(decision, "ClusterReady"), condition(decision, "Suspended")
    assert (ready.status, ready.reason) == (("False", "Released") if says else ("True", "ClusterReady"))
    assert says in ready.message
    assert (suspended.reason, suspended.message) == ("NotSuspended", "the job has ended")
    assert [event.reason for event in decision.events] == ["Succeeded"]


def test_why_pods_never_became_ready_stays_told_after_the_end() -> None:
    waits = decided(nothing_yet(claim=None, spec=job_spec(provisioningDeadlineSeconds=60)))
    failed = decided(nothing_yet(waits.status, claim=None, spec=job_spec(provisioningDeadlineSeconds=60)), seconds=61)
    assert (failed.status.phase, condition(failed, "ClusterReady").reason) == ("Failed", "VolumeMissing")


def cleanup(**policy: str) -> RLHFJob:
    return job_spec(cleanupPolicy=policy)


@pytest.mark.parametrize(
    ("status", "spec", "queue", "expected"),
    [
        (finished("Succeeded"), job_spec(), "", [DeleteCluster(CLUSTER_UID)]),
        (finished("Succeeded"), cleanup(onSuccess="workers"), "", [ReleaseWorkers(CLUSTER_UID)]),
        (finished("Succeeded"), cleanup(onSuccess="none"), "", []),
        (finished("Failed"), job_spec(), "", [ReleaseWorkers(CLUSTER_UID)]),
        (finished("Failed"), job_spec(), "research", [DeleteCluster(CLUSTER_UID)]),
        (finished("Failed"), cleanup(onFailure="cluster"), "", [DeleteCluster(CLUSTER_UID)]),
        (finished("Failed"), cleanup(onFailure="none"), "", []),
        (finished("Failed", provisioning_since=ago(1900)), cleanup(onFailure="none"), "", [DeleteCluster(CLUSTER_UID)]),
    ],
)
def test_cleanup_follows_the_policy(status: RLHFJobStatus, spec: RLHFJob, queue: str, expected: list[Any]) -> None:
    decision = decided(observe(status, spec=spec, cluster=ray_cluster(queue=queue)))
    assert actions(decision) == expected
    assert decision.status.model_copy(update={"message": None, "reason": None}) == status
    assert decision.watch is None


@pytest.mark.parametrize(
    ("phase", "spec", "also"),
    [
        ("Succeeded", job_spec(), [DeleteCluster(CLUSTER_UID)]),
        ("Succeeded", cleanup(onSuccess="none"), []),
        ("Failed", job_spec(), [ReleaseWorkers(CLUSTER_UID)]),
    ],
)
def test_a_head_that_stays_after_the_end_holds_up_no_drain(phase: str, spec: RLHFJob, also: list[Any]) -> None:
    assert actions(decided(observe(finished(phase), spec=spec, disruption_budget="b-1"))) == [DeleteDisruptionBudget("b-1"), *also]
    assert actions(decided(observe(finished(phase), spec=spec, disruption_budget=""))) == also


def test_the_disruption_budget_goes_when_the_job_ends() -> None:
    decision = decided(observe(head=head_view(submission("SUCCEEDED", exit_code=0)), disruption_budget="b-1"))
    assert decision.status.phase == "Succeeded"
    assert DeleteDisruptionBudget("b-1") in decision.after_status


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize("spec", [job_spec(), job_spec(suspend=True), job_spec(activeDeadlineSeconds=30)])
def test_terminal_is_latched(phase: str, spec: RLHFJob) -> None:
    for view in (None, head_view(submission("RUNNING")), head_view(submission("FAILED", exit_code=1))):
        decision = decided(observe(finished(phase), spec=spec, head=view, cluster=None))
        assert decision.status.phase == phase
        assert actions(decision) == []


def test_the_job_is_deleted_a_time_after_its_end() -> None:
    spec = job_spec(ttlSecondsAfterFinished=101)
    early = decided(observe(finished("Succeeded"), spec=spec, cluster=None))
    assert actions(early) == []
    assert early.requeue_after_seconds == pytest.approx(1, abs=0.1)
    assert actions(decided(observe(finished("Succeeded"), spec=spec, cluster=None), seconds=2)) == [DeleteJob()]
