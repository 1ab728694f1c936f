"""One attempt from its POST to its end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlhf_api.progress import BestEvaluation, TrainedModel
from rlhf_api.progress import Failure as Reported
from rlhf_api.status import Charge, HeadIdentity
from rlhf_operator.decide.actions import EnsureCluster, StopSubmission, Submit
from rlhf_operator.decide.observation import ActResult, HeadView, PodView
from tests.rlhf_operator.decide.builders import (
    NAME,
    UID,
    actions,
    ago,
    condition,
    container,
    decided,
    ended_status,
    head,
    head_view,
    job_spec,
    later,
    names,
    observe,
    progress,
    ray_cluster,
    running_status,
    silent,
    submission,
    worker,
)
from tests.rlhf_operator.decide.test_waiting import WAITS

A1, A2 = f"{NAME}-a1", f"{NAME}-a2"
UNCONFIRMED: dict[str, Any] = {
    "confirmed_at": None,
    "running_since": None,
    "submitted_at": ago(20),
    "last_step": None,
    "last_step_at": None,
}
NEW_HEAD = head(
    name="gsm8k-head-x2", uid="head-2", created_at=later(-60), containers=(container(container_id="head-c2", started_at=later(-40)),)
)
NEW_WORKER = worker(containers=(container(container_id="worker-c9", started_at=later(-20)),))


def submit_result(ok: bool, **changes: Any) -> ActResult:
    return replace(ActResult("Submit", ok, later(-10), failures=0 if ok else 1), **changes)


# RC-43, RC-37: the POST.


def test_rc43_status_holds_attempt_and_id_before_the_post() -> None:
    decision = decided(observe(WAITS, head=head_view()))
    assert decision.after_status == (Submit(1, A1),)
    assert not decision.before_status
    assert decision.status.attempt == 1
    run = decision.status.run
    assert run is not None
    assert (run.submission_id, run.head) == (A1, HeadIdentity(pod_uid="head-1", container_id="head-c1"))
    assert decision.urgent
    assert decision.status.phase == "Starting"


def test_rc43_same_observation_three_times_makes_one_attempt() -> None:
    status = WAITS
    for _ in range(3):
        decision = decided(observe(status, head=head_view()))
        status = decision.status
    assert status.attempt == 1
    assert actions(decision) == [], "the POST of this attempt was asked for; the head is asked before it is repeated"


def test_rc43_after_a_restart_the_head_is_asked_before_the_post_is_repeated() -> None:
    status = running_status(run=UNCONFIRMED)
    unknown = decided(observe(status, head=None))
    assert actions(unknown) == []
    not_there = decided(observe(status, head=head_view(submission(None))))
    assert actions(not_there) == [Submit(1, A1)]
    there = decided(observe(status, head=head_view(submission("RUNNING"))))
    assert actions(there) == []
    assert there.status.run is not None
    assert there.status.run.confirmed_at is not None
    assert there.status.phase == "Running"


def test_rc43_an_id_that_another_job_uses_is_not_taken_for_ours() -> None:
    foreign = submission("RUNNING", metadata={"rlhf.dev/job-uid": "another", "rlhf.dev/attempt": "1"})
    decision = decided(observe(running_status(run=UNCONFIRMED), head=head_view(foreign)))
    assert decision.status.phase == "Failed"
    assert "used by another job" in (decision.status.message or "")


def test_a_failed_post_is_repeated_with_the_same_id() -> None:
    status = running_status(run=UNCONFIRMED)
    again = decided(observe(status, head=head_view(), results=(submit_result(False, failures=2, message="No available agent"),)))
    assert actions(again) == [Submit(1, A1)]
    assert "2 failures: No available agent" in condition(again, "Running").message


def test_the_next_attempt_does_not_wait_for_a_version_that_the_poller_never_asked() -> None:
    """After a restart of the operator, a head that shows the old submission is asked for nothing else."""
    view = head_view(submission("FAILED", exit_code=75), version="")
    assert actions(decided(observe(ended_status(), head=view))) == [Submit(2, A2)]


def test_five_minutes_without_an_agent_cost_one_infrastructure_restart() -> None:
    status = running_status(run=UNCONFIRMED | {"submitted_at": ago(301)})
    decision = decided(observe(status, head=head_view(submission(None)), results=(submit_result(False, message="No available agent"),)))
    failure = decision.status.failures[-1]
    assert (failure.class_, failure.reason) == ("Infra", "SubmissionFailed")
    assert "No available agent" in failure.message
    assert decision.status.phase == "Restarting"


def test_a_refused_post_ends_the_job() -> None:
    result = submit_result(False, code=400, permanent=True, message="entrypoint missing")
    decision = decided(observe(running_status(run=UNCONFIRMED), results=(result,), head=head_view()))
    assert decision.status.phase == "Failed"
    assert "HTTP 400: entrypoint missing" in (decision.status.message or "")


# A status that somebody edited.


def test_rc43_a_trainer_that_the_status_does_not_name_is_followed_again() -> None:
    decision = decided(observe(WAITS.model_copy(update={"attempt": 1}), head=head_view(others=(submission("RUNNING"),))))
    assert actions(decision) == []
    assert decision.status.attempt == 1
    run = decision.status.run
    assert run is not None
    assert (run.submission_id, run.head) == (A1, HeadIdentity(pod_uid="head-1", container_id="head-c1"))
    assert run.confirmed_at is not None
    followed = decided(observe(decision.status, head=head_view(submission("RUNNING"), at=later(2))), seconds=3)
    assert followed.status.phase == "Running"


def test_rc43_a_later_attempt_is_followed_and_earlier_ones_are_stopped_first() -> None:
    status = WAITS.model_copy(update={"attempt": None})
    both = decided(observe(status, head=head_view(others=(submission("RUNNING"), submission("PENDING", attempt=2)))))
    assert actions(both) == [StopSubmission(A1)]
    assert both.status.run is None
    alone = decided(observe(both.status, head=head_view(others=(submission("RUNNING", attempt=2),))))
    assert (alone.status.attempt, alone.status.run and alone.status.run.submission_id) == (2, A2)


@pytest.mark.parametrize("metadata", [{"rlhf.dev/attempt": "1"}, {}, {"rlhf.dev/attempt": "²"}], ids=["earlier", "unsaid", "odd"])
def test_rc43_a_trainer_of_no_attempt_that_counts_is_stopped_before_the_post(metadata: dict[str, str]) -> None:
    status = WAITS.model_copy(update={"attempt": 3})
    other = submission("RUNNING", metadata={"rlhf.dev/job-uid": UID} | metadata)
    decision = decided(observe(status, head=head_view(others=(other,))))
    assert actions(decision) == [StopSubmission(A1)]
    assert "still runs gsm8k-a1 of this job" in condition(decision, "ClusterReady").message


def test_rc43_no_first_post_before_the_head_has_said_what_it_runs() -> None:
    asked = decided(observe(WAITS, head=head_view(others=None)))
    assert actions(asked) == []
    assert asked.requeue_after_seconds == 5
    fault = decided(observe(WAITS, head=head_view(others=None, error="500 gone mad")))
    assert actions(fault) == []
    assert "does not say which trainers it has: 500 gone mad" in (fault.status.message or "")


# RC-05: loss of the head.

LOST_HEADS: dict[str, tuple[PodView, ...]] = {
    "pod gone": (worker(),),
    "pod gone, last body seen": (head(gone=True), worker()),
    "another pod": (NEW_HEAD, worker()),
    "container restarted": (
        head(containers=(container(container_id="head-c2", terminated_reason="Error", terminated_exit_code=1),)),
        worker(),
    ),
    "container ended": (head(ready=False, containers=(container(container_id="head-c1", state="terminated", ready=False),)), worker()),
    "pod failed": (head(phase="Failed", reason="Evicted", ready=False), worker()),
}


@pytest.mark.parametrize("pods", LOST_HEADS.values(), ids=LOST_HEADS.keys())
@pytest.mark.parametrize("run", [{}, UNCONFIRMED], ids=["training", "before the id was seen"])
def test_rc05_a_lost_head_ends_the_attempt(pods: tuple[PodView, ...], run: dict[str, Any]) -> None:
    decision = decided(observe(running_status(run=run), pods=pods, head=silent(5)))
    failure = decision.status.failures[-1]
    assert (failure.attempt, failure.class_, failure.reason) == (1, "Infra", "HeadLost")
    assert "head" in failure.message
    assert decision.status.phase == "Restarting"
    assert decision.status.retry_at is not None
    assert decision.status.attempt == 1, "the next attempt begins with its POST"
    assert decision.urgent


def test_rc05_a_job_that_the_head_forgot_is_lost_even_if_the_pod_looks_the_same() -> None:
    decision = decided(observe(head=head_view(submission(None))))
    assert decision.status.failures[-1].reason == "HeadLost"
    assert "does not know submission gsm8k-a1" in decision.status.failures[-1].message


def test_rc05_an_answer_from_before_the_post_is_no_loss() -> None:
    status = running_status(run={"confirmed_at": ago(3)})
    assert not decided(observe(status, head=head_view(submission(None), at=later(-5)))).status.failures


def test_rc05_without_retries_left_the_reason_names_the_head_and_pods_are_released() -> None:
    decision = decided(observe(pods=(worker(),), spec=job_spec(maxInfraRestarts=0)))
    assert decision.status.phase == "Failed"
    assert decision.status.reason == "HeadLost"
    assert "maxInfraRestarts allows 0" in (decision.status.message or "")
    assert names(decision) == ["ReleaseWorkers"]


def test_rc05_one_new_attempt_from_the_checkpoint_once_pods_are_ready() -> None:
    view = head_view(submission(None), progress=None)
    decision = decided(observe(ended_status(checkpoint=None), pods=(NEW_HEAD, NEW_WORKER), head=view))
    assert actions(decision) == [Submit(2, A2)]
    assert decision.status.attempt == 2
    run = decision.status.run
    assert run is not None
    assert run.head == HeadIdentity(pod_uid="head-2", container_id="head-c2")
    assert run.start_step == 7, "only steps beyond this count as progress"


def test_rc05_head_deleted_twice() -> None:
    status = running_status(attempt=2, failures=ended_status().failures, run={"last_step": None, "start_step": 7})
    decision = decided(observe(status, pods=(worker(),)))
    assert [(failure.attempt, failure.reason) for failure in decision.status.failures] == [(1, "HeadLost"), (2, "HeadLost")]
    assert decision.status.counters is not None
    assert decision.status.counters.infra == 1


def test_a_silent_head_whose_pod_is_not_ready_is_lost_after_a_minute() -> None:
    pods = (head(ready=False), worker())
    assert not decided(observe(pods=pods, head=silent(50))).status.failures
    decision = decided(observe(pods=pods, head=silent(61)))
    assert decision.status.failures[-1].reason == "HeadLost"
    assert "on node cpu-1 is not ready" in decision.status.failures[-1].message


def test_a_deleted_ray_cluster_is_made_again() -> None:
    lost = decided(observe(cluster=None, pods=(head(), worker())))
    assert lost.status.failures[-1].reason == "ClusterLost"
    assert actions(lost) == [EnsureCluster()]


# The fence.


@pytest.mark.parametrize("answer", ["RUNNING", "PENDING"])
def test_an_old_trainer_that_still_runs_is_stopped_before_the_next_post(answer: str) -> None:
    decision = decided(observe(ended_status(), head=head_view(submission(answer))))
    assert actions(decision) == [StopSubmission(A1)]
    assert decision.status.attempt == 1


@pytest.mark.parametrize("answer", ["STOPPED", "FAILED", "SUCCEEDED", None])
def test_an_old_trainer_that_is_over_lets_the_next_begin(answer: str | None) -> None:
    assert actions(decided(observe(ended_status(), head=head_view(submission(answer))))) == [Submit(2, A2)]


def test_no_post_before_the_head_has_answered_for_the_old_id() -> None:
    for view in (None, submission(None, attempt=7)):
        assert actions(decided(observe(ended_status(), head=head_view(view)))) == []


def test_an_old_trainer_that_does_not_stop_goes_with_its_cluster() -> None:
    status = ended_status(run={"ended_at": ago(200)})
    first = decided(observe(status, head=head_view(submission("RUNNING"))))
    assert first.status.replacing == "cluster-uid"
    second = decided(observe(first.status, head=head_view(submission("RUNNING"))), seconds=1)
    assert names(second) == ["DeleteCluster"]
    third = decided(observe(second.status, cluster=None, pods=(head(deleting_since=later(0)),)), seconds=2)
    assert third.status.replacing is None
    assert names(third) == ["EnsureCluster"]


def test_no_post_while_the_old_head_still_goes_away() -> None:
    pods = (head(deleting_since=later(-30)), NEW_HEAD, NEW_WORKER)
    view = head_view(submission(None))
    waits = decided(observe(ended_status(), pods=pods, head=view))
    assert actions(waits) == []
    assert "head pod gsm8k-head-x1 of attempt 1 is going away" in condition(waits, "ClusterReady").message


# RC-20: the network.


@pytest.mark.parametrize("seconds", [5, 65, 1800])
def test_rc20_an_unreachable_head_is_unknown_and_not_failed(seconds: float) -> None:
    status = running_status(run={"last_step_at": ago(seconds + 10), "running_since": ago(3000)})
    decision = decided(observe(status, head=silent(seconds)))
    assert decision.status.phase == "Running"
    assert not decision.status.failures
    assert actions(decision) == []
    running = condition(decision, "Running")
    assert running.status == ("True" if seconds < 60 else "Unknown")
    if seconds > 60:
        assert "has not answered since 2026-11-29T" in running.message
        assert "connection timed out" in running.message


@pytest.mark.parametrize(("answer", "code", "phase"), [("SUCCEEDED", 0, "Succeeded"), ("FAILED", 3, "Failed")])
def test_rc20_what_ended_during_the_gap_is_found(answer: str, code: int, phase: str) -> None:
    gap = decided(observe(head=silent(500)))
    found = decided(observe(gap.status, head=head_view(submission(answer, exit_code=code))))
    assert found.status.phase == phase


def test_rc20_a_head_that_this_process_could_not_ask_for_long_enough_is_not_stalled() -> None:
    status = running_status(run={"last_step_at": ago(7200)})
    assert actions(decided(observe(status, head=None))) == []
    assert actions(decided(observe(status, head=silent(600)))) == []
    assert actions(decided(observe(status, head=silent(3700)))) == [StopSubmission(A1)]


@pytest.mark.parametrize("code", [401, 403])
def test_a_submission_that_the_heads_token_refuses_names_the_secret(code: int) -> None:
    status = running_status(run=UNCONFIRMED)
    result = submit_result(False, code=code, message="Forbidden: Invalid authentication token", permanent=True)
    decision = decided(observe(status, head=head_view(), results=(result,)))
    assert "kubectl -n research delete secret/gsm8k-ray-token raycluster/gsm8k" in decision.status.failures[-1].message


# Loss of a worker.

LOST_WORKERS: dict[str, tuple[PodView, ...]] = {
    "gone": (head(),),
    "on its way out": (head(), worker(deleting_since=later(-1))),
    "replaced": (head(), worker(uid="worker-9")),
    "restarted": (head(), worker(containers=(container(container_id="worker-c2"),))),
}


@pytest.mark.parametrize("pods", LOST_WORKERS.values(), ids=LOST_WORKERS.keys())
def test_a_lost_worker_is_left_to_the_trainer_for_a_minute(pods: tuple[PodView, ...]) -> None:
    first = decided(observe(pods=pods))
    assert actions(first) == []
    assert condition(first, "Running").reason == "WorkerLost"
    assert "worker pod" in condition(first, "Running").message
    assert first.status.phase == "Running"
    assert first.requeue_after_seconds is not None
    assert first.requeue_after_seconds <= 60
    still = decided(observe(first.status, pods=pods, head=head_view(submission(), at=later(60))), seconds=61)
    assert actions(still) == [StopSubmission(A1)]
    assert still.status.run is not None
    assert still.status.run.stop_reason == "WorkerLost"


def test_small_children_are_restored_under_a_running_attempt_after_all_else() -> None:
    decision = decided(observe(running_status(run=UNCONFIRMED), head=head_view(submission(None)), token=False, network_policy=False))
    assert names(decision) == ["Submit", "EnsureToken", "EnsureNetworkPolicy"]
    assert decision.status.phase == "Starting"


def test_an_unready_worker_is_not_lost() -> None:
    decision = decided(observe(pods=(head(), worker(ready=False)), cluster=ray_cluster(ready_workers=0)))
    assert condition(decision, "Running").reason == "Training"
    assert condition(decision, "ClusterReady").reason == "PodsNotReady"


def test_pods_that_were_not_read_are_unchanged() -> None:
    decision = decided(observe(pods=(), unread=("pods",)))
    assert not decision.status.failures
    assert condition(decision, "ClusterReady").status == "True"
    assert actions(decision) == []


def test_a_cluster_that_was_not_read_is_unchanged() -> None:
    decision = decided(observe(cluster=None, unread=("cluster",)))
    assert not decision.status.failures
    assert actions(decision) == []


def test_exit_75_waits_for_the_pods_word_and_is_then_judged_by_it() -> None:
    exited = head_view(submission("FAILED", exit_code=75))
    first = decided(observe(head=exited))
    assert not first.status.failures
    assert first.requeue_after_seconds == pytest.approx(10, abs=1)
    killed = worker(
        containers=(
            container(
                container_id="worker-c2",
                terminated_reason="OOMKilled",
                terminated_exit_code=137,
                terminated_at=later(-4),
                terminated_message="This command will now block forever",
            ),
        )
    )
    second = decided(observe(first.status, head=exited, pods=(head(), killed)), seconds=3)
    failure = second.status.failures[-1]
    assert (failure.class_, failure.reason, failure.exit_code) == ("Infra", "OutOfMemory", 75)
    assert "container ray: OOMKilled (exit code 137)" in failure.message
    assert "block forever" not in failure.message, "the end of the log of a container that the kernel killed"
    alone = decided(observe(first.status, head=replace(exited, at=later(11))), seconds=11)
    assert alone.status.failures[-1].reason == "TrainerRetry"


def test_evidence_is_kept_after_the_pod_is_gone() -> None:
    preempted = worker(gone=True, disruption="PreemptionByScheduler", message="preempted by production/serve")
    first = decided(observe(pods=(head(), preempted)))
    assert [(found.pod, found.node, found.reason) for found in first.status.evidence] == [
        (preempted.name, "gpu-1", "PreemptionByScheduler")
    ]
    assert first.urgent
    second = decided(observe(first.status, pods=(head(),), head=head_view(submission("FAILED", exit_code=75), at=later(19))), seconds=20)
    assert [(failure.class_, failure.reason) for failure in second.status.failures] == [("Preempted", "Preempted")]
    assert second.status.phase == "Restarting"


def test_evidence_of_a_container_keeps_how_its_log_ends() -> None:
    log = "\x1b[36mRay runtime started\x1b[39m\n" * 40 + "received SIGTERM. Draining\n"
    ended = container(
        container_id="worker-c1", terminated_reason="Error", terminated_exit_code=1, terminated_at=later(1), terminated_message=log
    )
    (found,) = decided(observe(pods=(head(), worker(containers=(ended,))))).status.evidence
    assert found.message.startswith("…")
    assert found.message.endswith("Ray runtime started received SIGTERM. Draining")
    assert "\x1b" not in found.message


def test_an_end_from_before_the_attempt_is_no_evidence() -> None:
    """lastState stays in the pod for as long as the pod lives."""
    old = container(container_id="worker-c1", terminated_reason="OOMKilled", terminated_exit_code=137, terminated_at=later(-900))
    decision = decided(observe(pods=(head(), worker(containers=(old,)))))
    assert not decision.status.evidence


# Deadlines and stops.


def test_no_step_for_too_long_is_a_stall_that_names_the_stage() -> None:
    status = running_status(run={"last_step_at": ago(3601), "last_step": 7})
    view = head_view(submission(), progress=progress(stage="sync", heartbeat_age_seconds=1900.0))
    decision = decided(observe(status, head=view))
    assert actions(decision) == [StopSubmission(A1)]
    assert "stage sync after step 7, last heartbeat 31m40s ago" in condition(decision, "Running").message
    stopped = replace(view, submission=submission("STOPPED"))
    ended = decided(observe(decision.status, head=stopped))
    assert (ended.status.failures[-1].class_, ended.status.failures[-1].reason) == ("Infra", "Stalled")
    assert "stage sync" in ended.status.failures[-1].message


def test_a_new_step_moves_the_progress_deadline() -> None:
    status = running_status(run={"last_step_at": ago(3601), "last_step": 6})
    decision = decided(observe(status))
    assert actions(decision) == []
    assert decision.status.run is not None
    assert decision.status.run.last_step == 7


def test_a_trainer_that_ignores_the_stop_goes_with_its_cluster() -> None:
    status = running_status(run={"stop_requested_at": ago(181), "stop_reason": "Stalled", "last_step_at": ago(4000)})
    decision = decided(observe(status, results=(ActResult("StopSubmission", True, later(-180)),)))
    assert decision.status.failures[-1].reason == "Stalled"
    assert decision.status.replacing == "cluster-uid"
    assert decision.status.phase == "Restarting"


def test_a_stop_is_asked_for_once_and_again_only_if_the_call_failed() -> None:
    status = running_status(run={"stop_requested_at": ago(10), "stop_reason": "Stalled"})
    assert actions(decided(observe(status, results=(ActResult("StopSubmission", True, later(-9)),)))) == []
    assert actions(decided(observe(status, results=(ActResult("StopSubmission", False, later(-9)),)))) == [StopSubmission(A1)]


# The user's own errors.

TRACEBACK = "reward.py: score() raised\nTraceback (most recent call last):\nZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    "view",
    [
        head_view(submission("FAILED", exit_code=3), progress=progress(failure=Reported(exit_code=3, stage="rollout", message=TRACEBACK))),
        head_view(submission("FAILED", exit_code=3, log_tail=TRACEBACK), progress=None),
    ],
    ids=["from /progress", "from the log"],
)
def test_the_users_traceback_stands_in_the_condition(view: HeadView) -> None:
    decision = decided(observe(head=view))
    assert decision.status.phase == "Failed"
    assert decision.status.reason == "BadDataOrReward"
    assert "ZeroDivisionError: division by zero" in (decision.status.message or "")
    assert condition(decision, "Failed").message == decision.status.message
    assert [event.reason for event in decision.events].count("BadDataOrReward") == 1


def test_a_bad_configuration_burns_no_retries() -> None:
    view = head_view(submission("FAILED", exit_code=2, log_tail="checkpoint layout: saved 2 ranks, asked for 4"))
    decision = decided(observe(head=view, spec=job_spec(backoffLimit=5)))
    assert decision.status.phase == "Failed"
    assert "saved 2 ranks" in (decision.status.message or "")


def test_user_failures_have_their_own_budget() -> None:
    status, view = running_status(), head_view(submission("FAILED", exit_code=3))
    once = decided(observe(status, head=view, spec=job_spec(backoffLimit=1)))
    assert once.status.phase == "Restarting"
    again = running_status(attempt=2, counters=once.status.counters, failures=once.status.failures)
    view = head_view(submission("FAILED", attempt=2, exit_code=3), progress=None)
    twice = decided(observe(again, head=view, spec=job_spec(backoffLimit=1)))
    assert (twice.status.phase, twice.status.reason) == ("Failed", "BackoffLimitExceeded")
    assert condition(twice, "Failed").reason == "BackoffLimitExceeded"
    assert "allows 1 restarts after failures of the job itself; the last: BadDataOrReward: " in (twice.status.message or "")
    assert {"BackoffLimitExceeded", "BadDataOrReward"} <= {event.reason for event in twice.events}


def test_the_limit_of_restarts_is_the_reason_and_the_message_names_the_last_failure() -> None:
    charges = [Charge(at=ago(60), step=7)]
    decision = decided(observe(running_status(charges=charges), pods=(worker(),), spec=job_spec(maxInfraRestarts=1)))
    assert (decision.status.phase, decision.status.reason) == ("Failed", "RestartLimitExceeded")
    assert "maxInfraRestarts allows 1 restarts" in (decision.status.message or "")
    assert "the last: HeadLost: the head pod is gone" in (decision.status.message or "")


def test_progress_becomes_text() -> None:
    decision = decided(observe())
    stored = decision.status.progress
    assert stored is not None
    assert (stored.step, stored.total_steps, stored.reward, stored.kl) == (7, 60, "0.612", "0.0041")
    assert (stored.tokens_per_second, stored.eta, stored.stage) == ("18203", "2h11m", "rollout")
    assert decision.status.checkpoint is not None
    assert decision.status.checkpoint.step == 5
    further = decided(observe(decision.status, head=head_view(submission(), progress=progress(8))))
    assert further.status != decision.status
    assert not further.urgent, "progress alone waits for the limit of writes"


@pytest.mark.parametrize("report", [progress(attempt=2), progress(job_uid="another")])
def test_progress_of_another_attempt_or_job_is_not_taken(report: Any) -> None:
    assert decided(observe(head=head_view(submission(), progress=report))).status.progress is None


def test_the_best_evaluation_stands_beside_the_last_checkpoint_and_outlives_an_attempt() -> None:
    best = BestEvaluation(step=4, metric="eval/test/pass@1", value=0.71)
    first = decided(observe(head=head_view(submission(), progress=progress(best=best)))).status
    assert first.checkpoint is not None
    assert first.checkpoint.best is not None
    assert (first.checkpoint.best.step, first.checkpoint.best.metric, first.checkpoint.best.value) == (4, "eval/test/pass@1", "0.710")
    later_report = decided(observe(first, head=head_view(submission(), progress=progress(8)))).status
    assert later_report.checkpoint is not None
    assert later_report.checkpoint.best == first.checkpoint.best, "an attempt that has not read its history yet says nothing of it"


def test_success_says_where_the_model_is() -> None:
    path = "/checkpoints/research/gsm8k/final"
    report = progress(60, model=TrainedModel(step=60, path=path))
    status = decided(observe(head=head_view(submission("SUCCEEDED", exit_code=0), progress=report))).status
    assert status.model is not None
    assert (status.model.step, status.model.path) == (60, path)
    assert status.message == f"training is complete after 60 steps; the model is {path}"


def test_success_shows_the_last_step_though_the_last_poll_missed_it() -> None:
    decision = decided(observe(head=head_view(submission("SUCCEEDED", exit_code=0), progress=progress(58))))
    assert decision.status.phase == "Succeeded"
    assert decision.status.progress is not None
    assert decision.status.progress.step == 60
    assert decision.status.message == "training is complete after 60 steps"
    assert decision.status.model is None
    assert names(decision) == ["DeleteCluster"]
