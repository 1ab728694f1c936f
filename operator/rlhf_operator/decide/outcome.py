"""The end of an attempt and the end of a job: how they are written down, and what is released."""

from __future__ import annotations

from datetime import datetime, timedelta

from rlhf_api.reasons import Reason
from rlhf_api.status import MAX_AVOID_NODES, MAX_FAILURES, Failure, FailureClass, RunStatus
from rlhf_operator.decide import budgets, evidence
from rlhf_operator.decide.actions import DeleteCluster, DeleteDisruptionBudget, ReleaseWorkers
from rlhf_operator.decide.case import TERMINAL, Case
from rlhf_operator.decide.classify import Clues, Judgement, Lost, classify
from rlhf_operator.decide.conditions import find
from rlhf_operator.decide.observation import SubmissionView
from rlhf_operator.decide.progress import finished
from rlhf_operator.decide.texts import FAILURE_MAX, cut_middle, moment_of, stamp


def steps_made(run: RunStatus) -> int:
    """Most steps that any attempt so far had done."""
    return max(run.last_step or 0, run.start_step or 0)


def made_step(run: RunStatus) -> bool:
    """Whether the attempt went further than all before it: steps that are repeated are no progress."""
    return (run.last_step or 0) > (run.start_step or 0)


def clues_of(case: Case, run: RunStatus, view: SubmissionView | None, lost: Lost = "", lost_message: str = "", stopped: str = "") -> Clues:
    """All that is known of the running attempt. ``view``: the Jobs API's last answer; ``stopped``: what the operator stopped it for."""
    head = case.seen.head
    report = head.progress if head is not None else None
    ours = report is not None and report.attempt == case.status.attempt and report.job_uid == case.seen.job.uid
    failure = report.failure if report is not None and ours else None
    step = steps_made(run)
    return Clues(
        status=view.status if view is not None else None,
        exit_code=view.exit_code if view is not None else None,
        error_type=view.error_type if view is not None else "",
        ran=run.last_step is not None,
        ray_message=view.message if view is not None else "",
        trainer_message=failure.message if failure is not None else "",
        log_tail=view.log_tail if view is not None else "",
        stop_reason=run.stop_reason,
        stop_message=stopped,
        lost=lost,
        lost_message=lost_message,
        evidence=evidence.of_attempt(case),
        memory_before=budgets.memory_before(case.status.failures, step, case.settings),
        preempted_before=budgets.preempted_before(case.status.failures, made_step(run)),
    )


def judge(case: Case, clues: Clues, ended: datetime | None = None) -> None:
    """Write down how the running attempt ended, and let follow what its budget allows. ``ended``: when, if that was before now."""
    run = case.run
    if run is None:
        return
    judgement = classify(clues)
    case.set_run(
        ended_at=stamp(case.now),
        outcome=judgement.outcome,
        fenced=clues.status in TERMINAL or clues.submission_refused,
    )
    if judgement.outcome == "Succeeded":
        case.set(progress=finished(case.status.progress))
        succeed(case)
    elif judgement.outcome == "Stopped":
        case.condition("Running", "False", Reason.NOT_RUNNING, judgement.message)
    else:
        _after_failure(case, run, judgement, ended or case.now)


def _after_failure(case: Case, run: RunStatus, judgement: Judgement, ended: datetime) -> None:
    step, made = steps_made(run), made_step(run)
    class_ = judgement.class_ or "User"
    add_failure(case, class_, judgement.reason, judgement.message, step, judgement.exit_code)
    counters = budgets.counted(case.counters, judgement, made)
    charges = budgets.remembered(case.status.charges, step, case.now, case.settings)
    if class_ == "Infra":
        charges = budgets.charged(charges, step, case.now)
    case.set(counters=counters, charges=charges)
    lifecycle = case.terms.lifecycle if case.terms is not None else None
    if class_ == "Config":
        fail(case, judgement.reason, judgement.message)
        return
    limit = budgets.used_up(judgement, counters, charges, lifecycle) if lifecycle is not None else None
    if limit is not None:
        if limit.restarts:
            fail(case, limit.reason, f"{limit.message}; the last: {judgement.reason}: {judgement.message}")
        else:
            fail(case, judgement.reason, f"{judgement.message}\n{limit.message}")
        return
    words = f"attempt {case.status.attempt} ended with {judgement.reason}"
    if judgement.reason == Reason.QUEUE_EVICTED:
        case.set(retry_at=None, provisioning_since=None)
        case.condition("Running", "False", Reason.RESTARTING, f"{words}; the next attempt continues when the queue admits the job again")
        return
    delay = budgets.delay_seconds(counters, case.settings) if class_ != "Preempted" else case.settings.retry_min_seconds
    case.set(retry_at=stamp(ended + timedelta(seconds=delay)), provisioning_since=stamp(case.now))
    case.condition("Running", "False", Reason.RESTARTING, f"{words}; the next attempt continues from the last checkpoint")
    _maybe_replace(case)


def _maybe_replace(case: Case) -> None:
    """A new cluster instead of the same one, when the same one does not help. In a queue that would give up the job's place."""
    cluster = case.cluster
    node = budgets.suspect_node(case.status.evidence, case.status.avoid_nodes, case.settings)
    if node is not None:
        case.set(avoid_nodes=[*case.status.avoid_nodes, node][-MAX_AVOID_NODES:])
    if cluster is None or case.queued_cluster:
        return
    if node is not None:
        replace_cluster(case, f"pods of this job kept dying on node {node}")
    elif case.counters.in_place >= case.settings.in_place_attempts:
        replace_cluster(case, f"{case.counters.in_place} attempts in a row made no new step")


def replace_cluster(case: Case, why: str) -> None:
    """Let the RayCluster go before the next attempt; the status that says so is stored before it is deleted."""
    cluster = case.cluster
    if cluster is None:
        return
    case.set(replacing=cluster.uid, counters=case.counters.model_copy(update={"in_place": 0}))
    case.condition("Running", "False", Reason.RECREATING, f"{why}: the next attempt gets a new Ray cluster")


def add_failure(
    case: Case, class_: FailureClass, reason: Reason, message: str, step: int | None = None, exit_code: int | None = None
) -> None:
    failure = Failure(
        attempt=case.status.attempt or 0,
        class_=class_,
        reason=reason,
        message=cut_middle(message, FAILURE_MAX),
        at=stamp(case.now),
        step=step,
        exit_code=exit_code,
    )
    case.set(failures=[*case.status.failures, failure][-MAX_FAILURES:])
    case.note(reason, f"attempt {failure.attempt}: {message}" if failure.attempt else message)


def succeed(case: Case) -> None:
    step = case.status.progress.step if case.status.progress is not None else None
    message = "training is complete" + (f" after {step} steps" if step else "")
    if case.status.model is not None:
        message += f"; the model is {case.status.model.path}"
    case.condition("Complete", "True", Reason.SUCCEEDED, message)
    case.condition("Failed", "False", Reason.SUCCEEDED, "the job succeeded")
    _finish(case)


def fail(case: Case, reason: Reason, message: str) -> None:
    """The end of the job. What the condition says is all that most people will read."""
    case.condition("Failed", "True", reason, message)
    case.condition("Complete", "False", reason, "the job failed")
    _finish(case)


def _finish(case: Case) -> None:
    case.condition("Running", "False", Reason.NOT_RUNNING, "the job has ended")
    case.condition("Suspended", "False", Reason.NOT_SUSPENDED, "the job has ended")
    case.set(finished_at=stamp(case.now), retry_at=None)
    clean_up(case)
    _say_released(case)


def _say_released(case: Case) -> None:
    """That pods which were ready are not kept. Why others never became ready stays told."""
    ready = find(case.status.conditions, "ClusterReady")
    if ready is None or (ready.status != "True" and ready.reason != Reason.PODS_NOT_READY):
        return
    if any(isinstance(action, DeleteCluster) for action in case.after) or case.cluster is None:
        case.condition("ClusterReady", "False", Reason.RELEASED, "the job has ended and its Ray cluster is released")
    elif any(isinstance(action, ReleaseWorkers) for action in case.after):
        message = "the job has ended and its worker pods are released; the head stays for its logs"
        case.condition("ClusterReady", "False", Reason.RELEASED, message)


def clean_up(case: Case) -> None:
    """Release what ``lifecycle.cleanupPolicy`` says, after the status is stored: no cluster goes before its job is known to have ended.

    A job that failed before its pods were ready leaves nothing worth keeping, whatever the policy, and a trainer that did not stop ends
    with its cluster. A queue counts the whole cluster until it is gone, so there `workers` means `cluster`. A head that stays for its logs
    holds up no drain.
    """
    if case.seen.disruption_budget:
        case.after.append(DeleteDisruptionBudget(case.seen.disruption_budget))
    cluster = case.cluster
    if cluster is None or cluster.deleting or case.terms is None:
        return
    policy, run = case.terms.lifecycle.cleanup_policy, case.status.run
    unstoppable = run is not None and run.stop_requested_at is not None and not run.fenced
    chosen = policy.on_success
    if run is None or run.outcome != "Succeeded":
        chosen = "cluster" if case.status.provisioning_since is not None or unstoppable else policy.on_failure
    if chosen == "cluster" or (chosen == "workers" and cluster.queue):
        case.after.append(DeleteCluster(cluster.uid))
    elif chosen == "workers" and cluster.desired_workers > 0:
        case.after.append(ReleaseWorkers(cluster.uid))


def ended_at(run: RunStatus) -> datetime | None:
    return moment_of(run.ended_at)
