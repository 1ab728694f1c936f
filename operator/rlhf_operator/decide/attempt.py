"""Policies for an attempt that is under way: its end, its start, its progress, and how it is stopped."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from rlhf_api.reasons import Reason
from rlhf_api.status import RunStatus, StopReason
from rlhf_operator.decide import pods
from rlhf_operator.decide.actions import StopSubmission, Submit
from rlhf_operator.decide.case import TERMINAL, Case
from rlhf_operator.decide.children import restore
from rlhf_operator.decide.classify import Lost, without_pods
from rlhf_operator.decide.observation import HeadView, ProgressFault, RayClusterView, SubmissionView
from rlhf_operator.decide.outcome import clues_of, judge, replace_cluster
from rlhf_operator.decide.texts import clean, duration, last_lines, moment_of, one_line, stamp
from rlhf_operator.decide.waiting import why_not_ready

TAKEN_BACK = "Kueue took the job's place back"


def attempt_ended(case: Case) -> bool:
    """An attempt that is over must be judged before anything builds on it."""
    run = case.run
    if run is None or case.terms is None:
        return False
    view = case.submission(moment_of(run.submitted_at))
    if view is not None and view.found and view.status in TERMINAL and case.is_ours(view):
        _ended_by_itself(case, run, view)
        return case.finished
    lost = _lost(case, run)
    if lost is not None:
        what, message = lost
        judge(case, clues_of(case, run, None, what, message))
    return case.finished


def _ended_by_itself(case: Case, run: RunStatus, view: SubmissionView) -> None:
    if run.terminal_at is None:
        case.set_run(terminal_at=stamp(case.now), confirmed_at=run.confirmed_at or stamp(case.now))
    terminal_at = (case.status.run or run).terminal_at
    clues = clues_of(case, run, view, stopped=_stop_message(case))
    if without_pods(clues) and case.pods_read and not case.passed(terminal_at, case.settings.evidence_seconds):
        return
    judge(case, clues, moment_of(terminal_at))


def _lost(case: Case, run: RunStatus) -> tuple[Lost, str] | None:
    """What took the attempt away, without the Jobs API's word for it. An unreachable dashboard alone is not enough."""
    cluster = case.cluster
    if cluster is None:
        return "cluster", "the RayCluster does not exist any more"
    if cluster.deleting:
        return "cluster", f"RayCluster {cluster.name} is being deleted"
    if cluster.queue and (cluster.suspend or _being_suspended(cluster)):
        words = one_line(case.seen.queue_message)
        return "queue", TAKEN_BACK + (f": {words}" if words else "")
    if case.pods_read and run.head is not None:
        message = _head_change(case, run)
        if message is not None:
            return ("queue", f"{TAKEN_BACK} for a while: {message}") if _was_resumed(cluster, run) else ("head", message)
    view = case.submission(moment_of(run.confirmed_at))
    if run.confirmed_at is not None and view is not None and not view.found:
        return "head", f"the head does not know submission {run.submission_id} any more: Ray was restarted"
    return None


def _being_suspended(cluster: RayClusterView) -> bool:
    """KubeRay 1.6 says so until all pods are gone, also where `suspend` is false again before anybody saw that it was true."""
    return any(cluster.conditions.get(kind, ("",))[0] == "True" for kind in ("RayClusterSuspending", "RayClusterSuspended"))


def _was_resumed(cluster: RayClusterView, run: RunStatus) -> bool:
    """Whether a queue suspended and resumed the cluster in the attempt's time.

    The times are of two clocks, and KubeRay's has whole seconds: they explain a loss that is seen, and never make one.
    """
    began = moment_of(run.submitted_at)
    if not cluster.queue or cluster.resumed_at is None or began is None:
        return False
    return cluster.resumed_at + timedelta(seconds=1) > began


def _head_change(case: Case, run: RunStatus) -> str | None:
    known = run.head
    if known is None:
        return None
    pod = next((pod for pod in pods.present(case.seen.pods) if pod.uid == known.pod_uid), None)
    if pod is None:
        gone = next((pod.name for pod in case.seen.pods if pod.uid == known.pod_uid), "")
        return f"head pod {gone} is gone" if gone else "the head pod is gone"
    if pod.phase in ("Failed", "Succeeded"):
        return f"head pod {pod.name} is {pod.phase}" + (f": {pod.reason}" if pod.reason else "")
    container = pods.ray_container(pod)
    if container is None:
        return None
    replaced = bool(container.container_id) and container.container_id[:253] != known.container_id
    if replaced or container.state != "running":
        code = f", exit code {container.terminated_exit_code}" if container.terminated_exit_code is not None else ""
        why = f" ({container.terminated_reason or 'ended'}{code})" if container.terminated_reason or code else ""
        return f"container {container.name} of head pod {pod.name} {'was restarted' if replaced else 'has ended'}{why}"
    if not pod.ready and _silent_for(case, case.settings.head_loss_seconds):
        where = f" on node {pod.node}" if pod.node else ""
        return f"head pod {pod.name}{where} is not ready and has not answered for {duration(case.settings.head_loss_seconds)}"
    return None


def attempt_stops(case: Case) -> bool:
    """A trainer that was asked to stop gets its grace, and no more."""
    run = case.run
    if run is None or run.stop_requested_at is None:
        return False
    asked = moment_of(run.stop_requested_at)
    view = case.submission(asked)
    submitting = case.result("Submit")
    if run.confirmed_at is None and view is not None and not view.found and (submitting is None or not submitting.ok):
        judge(case, clues_of(case, run, None, stopped=_stop_message(case)))
        case.set_run(fenced=True)
        return case.finished
    if case.passed(run.stop_requested_at, case.grace_seconds):
        judge(case, clues_of(case, run, None, stopped=_stop_message(case)))
        if not case.finished and run.stop_reason not in ("Suspend", "ActiveDeadline") and case.status.replacing is None:
            replace_cluster(case, "the trainer did not stop")
        return case.finished
    stop_again(case, run)
    waits = duration(case.grace_seconds)
    message = f"{_stop_message(case)}; the trainer was asked to write a checkpoint and stop, within {waits}"
    case.condition("Running", "False", Reason.NOT_RUNNING if run.stop_reason == "Suspend" else Reason.RESTARTING, message)
    return True


def request_stop(case: Case, run: RunStatus, reason: StopReason) -> None:
    """SIGTERM after the status says so; asked for once, until a call succeeds."""
    if run.stop_requested_at is None:
        case.set_run(stop_requested_at=stamp(case.now), stop_reason=reason)
        case.after.append(StopSubmission(run.submission_id))


def stop_again(case: Case, run: RunStatus) -> None:
    """Until the trainer has stopped: nothing tells for certain that an earlier call arrived, and Ray 2.60 passes only the first on."""
    result = case.result("StopSubmission")
    asked = moment_of(run.stop_requested_at)
    delivered = result is not None and result.ok and (asked is None or result.at >= asked)
    if not delivered and not any(isinstance(action, StopSubmission) for action in case.after):
        case.after.append(StopSubmission(run.submission_id))
    case.wake_in(case.settings.stop_again_seconds)


def attempt_runs(case: Case) -> bool:
    """While an attempt is under way nothing else is done than to follow it."""
    run = case.run
    if run is None:
        return False
    _follow(case, run)
    restore(case)
    return True


def _follow(case: Case, run: RunStatus) -> None:
    _cluster_condition(case)
    view = case.submission(moment_of(run.submitted_at))
    if view is not None and view.status in TERMINAL and case.is_ours(view):
        return
    if run.confirmed_at is None and not _confirm(case, run, view):
        return
    if _worker_lost(case, run):
        return
    _say_how_it_runs(case, view)
    _stalled(case)


def _confirm(case: Case, run: RunStatus, view: SubmissionView | None) -> bool:
    """Whether Ray has the submission. A repeated POST of the same id is harmless; a different one is never made."""
    result = case.result("Submit")
    submitted = moment_of(run.submitted_at)
    if result is not None and submitted is not None and result.at < submitted:
        result = None
    if view is not None and view.found:
        if not case.is_ours(view):
            _refuse(case, run, f"the id {run.submission_id} is used by another job: {dict(view.metadata)}", refused=True)
            return False
        case.set_run(confirmed_at=stamp(case.now))
        return True
    if result is not None and result.ok:
        case.set_run(confirmed_at=stamp(result.at))
        return True
    if result is not None and result.permanent:
        refused = case.token_trouble(str(result.code))
        _refuse(case, run, f"HTTP {result.code}: {one_line(result.message)}" + (f"; {refused}" if refused else ""), refused=True)
        return False
    failed = f": {one_line(result.message)}" if result is not None else ""
    if case.passed(run.submitted_at, case.settings.submit_seconds):
        _refuse(case, run, f"no answer in {duration(case.settings.submit_seconds)}{failed}", refused=False)
        return False
    # Where nothing is remembered of the POST (it succeeded, another process made it, or it never happened) the head is asked first.
    if case.pods_read and (result is not None or (view is not None and not view.found)):
        case.after.append(Submit(case.status.attempt or 1, run.submission_id))
    tries = f", {result.failures} failures{failed}" if result is not None and not result.ok else ""
    case.condition("Running", "False", Reason.SUBMITTED, f"attempt {case.status.attempt} is handed to Ray{tries}")
    case.wake_in(case.settings.recheck_seconds)
    return False


def _refuse(case: Case, run: RunStatus, error: str, refused: bool) -> None:
    clues = clues_of(case, run, None)
    judge(case, replace(clues, submission_error=error, submission_refused=refused))
    case.wake_in(case.settings.recheck_seconds)


def _worker_lost(case: Case, run: RunStatus) -> bool:
    """The trainer notices a dead actor and exits with 75; one that does not is stopped."""
    if run.worker_lost_at is None:
        if not case.pods_read or run.workers is None or pods.fingerprint(case.seen.pods) == run.workers:
            return False
        case.set_run(worker_lost_at=stamp(case.now))
    lost_at = (case.status.run or run).worker_lost_at
    if case.passed(lost_at, case.settings.worker_loss_seconds):
        request_stop(case, run, "WorkerLost")
        case.condition("Running", "False", Reason.RESTARTING, f"{_stop_message(case)}; the trainer is asked to stop")
        return True
    case.condition("Running", "True", Reason.WORKER_LOST, f"{_stop_message(case)}; waiting for the trainer to notice")
    return True


def _say_how_it_runs(case: Case, view: SubmissionView | None) -> None:
    run, head = case.run, case.seen.head
    if run is None:
        return
    if view is not None and view.status == "RUNNING" and run.running_since is None:
        now = stamp(case.now)
        case.set_run(running_since=now)
        case.set(started_at=case.status.started_at or now, active_since=case.status.active_since or now)
    started = case.run is not None and case.run.running_since is not None
    if not started:
        case.condition("Running", "False", Reason.SUBMITTED, f"attempt {case.status.attempt}: Ray starts the trainer")
    elif head is not None and head.reachable and head.progress_fault is not None and _unread_is_shown(case, head.progress_fault):
        message = f"attempt {case.status.attempt} runs, but {_unread(head.progress_fault)}"
        case.condition("Running", "True", Reason.PROGRESS_UNREADABLE, message)
    elif head is None or head.reachable:
        case.condition("Running", "True", Reason.TRAINING, f"attempt {case.status.attempt} is training")
    elif _silent_for(case, case.settings.silence_shown_seconds):
        since = stamp(head.unreachable_since or head.at)
        refused = case.token_trouble(head.error)
        error = one_line(clean(head.error)) or "no answer"
        if refused:
            error += f" ({refused}, and the next attempt continues from the last checkpoint)"
        message = f"the head at {case.head_address} has not answered since {since}: {error}; training may well go on"
        case.condition("Running", "Unknown", Reason.HEAD_UNREACHABLE, message)


def _unread_is_shown(case: Case, fault: ProgressFault) -> bool:
    """Not for a moment in which an attempt follows another, or before the trainer has opened its port, or while it ends."""
    if case.condition_reason("Running") == Reason.PROGRESS_UNREADABLE:
        return True
    seconds = case.settings.unread_shown_seconds
    if not fault.answered:
        told = case.run is not None and case.run.last_step is not None
        seconds = case.settings.silence_shown_seconds if told else case.settings.unread_starting_seconds
    return case.passed(stamp(fault.since), seconds)


def _unread(fault: ProgressFault) -> str:
    log = "its log grows" if fault.log_grew_at is not None else "its log has not grown since"
    return f"/progress of the trainer can't be read: {one_line(clean(fault.message))}; {log}"


def _silent_for(case: Case, seconds: float) -> bool:
    """Whether the head has not answered for ``seconds``; if it is silent for less, look again then."""
    head = case.fresh_head
    if head is None or head.reachable:
        return False
    return case.passed(stamp(head.unreachable_since or head.at), seconds)


def _stalled(case: Case) -> None:
    """No step for too long. A trainer that nobody could ask is judged by how long this process has not reached it, and one whose report
    can't be read by its log: a training that goes on is not stopped for a port that is shut."""
    run, head = case.run, case.fresh_head
    if run is None or case.terms is None or run.stop_requested_at is not None:
        return
    deadline = case.terms.lifecycle.progress_deadline_seconds
    since = run.last_step_at or run.running_since or run.submitted_at
    if not case.passed(since, deadline):
        return
    if head is None or (not head.reachable and not _silent_for(case, deadline)):
        case.wake_in(case.settings.fresh_seconds)
        return
    if head.reachable and head.progress_fault is not None and _log_grows(case, head, head.progress_fault, deadline):
        return
    request_stop(case, run, "Stalled")
    case.condition("Running", "False", Reason.RESTARTING, f"{_stop_message(case)}; the trainer is asked to stop")


def _log_grows(case: Case, head: HeadView, fault: ProgressFault, deadline: float) -> bool:
    """Whether a trainer that can't be asked still prints: each step is a line. Of one that never could be, this process knows nothing from
    before its own first look."""
    if fault.log_read_at is None:
        case.wake_in(case.settings.recheck_seconds)
        return True
    sign = fault.log_grew_at or (fault.since if head.progress is None else None)
    return sign is not None and not case.passed(stamp(sign), deadline)


def _stop_message(case: Case) -> str:
    """What the operator saw when it asked the trainer to stop, or waits for before it does."""
    run, head = case.run, case.seen.head
    if run is None:
        return ""
    if run.stop_reason == "Suspend":
        return "a suspension was asked for"
    if run.stop_reason == "ActiveDeadline":
        return "lifecycle.activeDeadlineSeconds have passed"
    if run.worker_lost_at is not None:
        lost = [found for found in case.status.evidence if found.attempt == case.status.attempt and not found.head]
        return f"worker pod {lost[-1].pod} was lost ({lost[-1].reason})" if lost else "a worker pod was lost"
    seconds = duration(case.terms.lifecycle.progress_deadline_seconds) if case.terms is not None else "too long"
    if head is None or not head.reachable:
        return f"no step for {seconds}, and the head at {case.head_address} does not answer"
    report, unread = head.progress, f"; {_unread(head.progress_fault)}" if head.progress_fault is not None else ""
    if report is None or report.attempt != case.status.attempt:
        return f"no step for {seconds}{unread or '; the trainer reports nothing'}"
    beat = duration(report.heartbeat_age_seconds)
    return f"no step for {seconds}: stage {last_lines(clean(report.stage), 1)} after step {report.step}, last heartbeat {beat} ago{unread}"


def _cluster_condition(case: Case) -> None:
    cluster = case.cluster
    if cluster is None or not case.pods_read:
        return
    trouble = why_not_ready(case.seen, cluster, case.settings, case.now, case.grace_seconds)
    if trouble is None:
        case.condition("ClusterReady", "True", Reason.CLUSTER_READY, "all pods are ready")
    else:
        reason = Reason.PODS_NOT_READY if trouble.reason == Reason.PROVISIONING else trouble.reason
        case.condition("ClusterReady", "False", reason, trouble.message)
