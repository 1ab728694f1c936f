"""Policies between two attempts: the old one must be over, the pods ready, the head answering; then one POST."""

from __future__ import annotations

from datetime import timedelta

from rlhf_api.reasons import Reason
from rlhf_api.status import RunStatus
from rlhf_operator import names
from rlhf_operator.decide import pods
from rlhf_operator.decide.actions import StopSubmission, Submit
from rlhf_operator.decide.attempt_state import say_not_running
from rlhf_operator.decide.case import TERMINAL, Case
from rlhf_operator.decide.deadlines import wait_for
from rlhf_operator.decide.observation import PodView, SubmissionView
from rlhf_operator.decide.outcome import ended_at, replace_cluster, steps_made
from rlhf_operator.decide.texts import clean, few, moment_of, one_line, stamp
from rlhf_operator.decide.waiting import Trouble, rejoining, why_not_ready


def pods_are_ready(case: Case) -> bool:
    """Health is what KubeRay counts and what the pods say, now: `state: ready` never falls again."""
    cluster = case.cluster
    if cluster is None:
        return True
    if not case.pods_read:
        case.wake_in(case.settings.recheck_seconds)
        return True
    trouble = why_not_ready(case.seen, cluster, case.settings, case.now, case.grace_seconds)
    if trouble is None and case.status.run is not None:
        trouble = rejoining(case.seen, case.settings, case.now)
    if trouble is None:
        return False
    return wait_for(case, trouble, every=case.settings.init_wait_seconds / 4)


def head_answers(case: Case) -> bool:
    """No POST before the head is healthy: waiting for it uses no retries and has the provisioning deadline.

    An answer from before the wait is one of a former head, unless the attempt ended on this one. A submission that the Jobs API shows says
    more than a version.
    """
    head, since = case.fresh_head, moment_of(case.status.provisioning_since)
    run = case.status.run
    same = run is not None and run.fenced and run.head == pods.identity(pods.head_pod(case.seen.pods))
    if head is not None and since is not None and head.at <= since and not same:
        head = None
    known = head is not None and head.submission is not None and head.submission.found
    if head is not None and head.reachable and head.gcs_healthy and (head.version or known):
        case.condition("ClusterReady", "True", Reason.CLUSTER_READY, "all pods are ready and Ray answers")
        return False
    if head is None:
        words = "has not been asked yet"
    elif not head.reachable:
        words = f"does not answer yet: {one_line(head.error) or 'no connection'}"
    else:
        words = "answers, but Ray's control store is not healthy yet" if not head.gcs_healthy else "answers, but not with a version yet"
        words += f": {one_line(clean(head.error))}" if head.error and head.gcs_healthy else ""
    message = f"all pods are ready; Ray's head at {case.head_address} {words}"
    refused = case.token_trouble(head.error) if head is not None and not head.reachable else ""
    trouble = Trouble(Reason.TOKEN_REFUSED, f"{message}; {refused}") if refused else Trouble(Reason.WAITING_FOR_HEAD, message)
    # A head that this process has not asked yet says nothing about the deadline: it may have been ready for long.
    return wait_for(case, trouble, bounded=head is not None)


def old_head_is_gone(case: Case) -> bool:
    """Fence, first half: the pod of the former attempt's head must be gone, unless it is the head that will run the next."""
    run = case.status.run
    if run is None or run.fenced or run.head is None or not case.pods_read:
        return False
    known = run.head
    old = next((pod for pod in pods.present(case.seen.pods) if pod.uid == known.pod_uid), None)
    current = pods.head_pod(case.seen.pods)
    if old is None or old.phase in ("Failed", "Succeeded") or (current is not None and current.uid == old.uid):
        return False
    if _lingers_too_long(case, old):
        return False
    return wait_for(case, Trouble(Reason.PROVISIONING, f"the head pod {old.name} of attempt {case.status.attempt} is going away"))


def _lingers_too_long(case: Case, pod: PodView) -> bool:
    """A pod of a node that is gone stays for ever. After its grace the kubelet, if there is one, has killed it."""
    return pod.deleting_since is not None and case.now >= pod.deleting_since + timedelta(seconds=case.grace_seconds)


def old_attempt_is_over(case: Case) -> bool:
    """Fence, second half: the head that will run the next attempt must not run the old one, and it is asked."""
    run = case.status.run
    if run is None or run.fenced:
        return False
    ended = ended_at(run)
    view = case.submission(ended)
    if view is not None and (not view.found or view.status in TERMINAL or not case.is_ours(view)):
        case.set_run(fenced=True)
        return False
    case.wake_in(case.settings.recheck_seconds)
    if view is None:
        say_not_running(case, f"the head to say whether attempt {case.status.attempt} is over")
        return True
    if case.passed(run.ended_at, case.grace_seconds):
        replace_cluster(case, f"attempt {case.status.attempt} does not stop")
        return True
    case.after.append(StopSubmission(run.submission_id))
    if run.stop_requested_at is None:
        case.set_run(stop_requested_at=stamp(case.now), stop_reason="Fence")
    say_not_running(case, f"attempt {case.status.attempt} to stop, which Ray still runs")
    return True


def no_other_trainer(case: Case) -> bool:
    """A trainer that the status does not name, because somebody edited it, is followed again where it is the last attempt, else stopped."""
    if case.status.run is not None:
        return False
    head = case.fresh_head
    if head is None or not head.reachable or head.others is None:
        error = one_line(clean(head.error)) if head is not None else ""
        words = f"does not say which trainers it has: {error}" if error else "has not been asked yet which trainers it has"
        trouble = Trouble(Reason.WAITING_FOR_HEAD, f"Ray's head at {case.head_address} {words}")
        return wait_for(case, trouble, bounded=bool(error))
    if not head.others:
        return False
    last = max(head.others, key=_attempt_of)
    if _attempt_of(last) < max(case.status.attempt or 0, 1):
        case.after.extend(StopSubmission(view.submission_id) for view in head.others)
        return _waits_for(case, head.others)
    older = tuple(view for view in head.others if view is not last)
    if older:
        case.after.extend(StopSubmission(view.submission_id) for view in older)
        return _waits_for(case, older)
    run = RunStatus(
        submission_id=last.submission_id,
        submitted_at=stamp(case.now),
        confirmed_at=stamp(case.now),
        head=pods.identity(pods.head_pod(case.seen.pods)),
        workers=pods.fingerprint(case.seen.pods),
        start_step=case.status.checkpoint.step if case.status.checkpoint is not None else 0,
    )
    case.set(attempt=_attempt_of(last), run=run, retry_at=None, provisioning_since=None)
    message = f"the head runs {last.submission_id}, which the status did not name any more; it is followed again"
    case.condition("Running", "False", Reason.SUBMITTED, message)
    case.wake_in(case.settings.recheck_seconds)
    return True


def _attempt_of(view: SubmissionView) -> int:
    """0 where the submission does not say."""
    said = view.metadata.get(names.ATTEMPT_METADATA, "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 10 else 0


def _waits_for(case: Case, others: tuple[SubmissionView, ...]) -> bool:
    named = few([view.submission_id for view in others])
    return wait_for(case, Trouble(Reason.WAITING_FOR_HEAD, f"the head still runs {named} of this job, which is asked to stop"))


def next_attempt(case: Case) -> bool:
    """One attempt, one id, one POST; all of it is in the status before the POST is made."""
    old = case.status.run
    attempt = max(case.status.attempt or 0, 0) + 1
    run = RunStatus(
        submission_id=names.submission_id(case.seen.job.name, attempt),
        submitted_at=stamp(case.now),
        head=pods.identity(pods.head_pod(case.seen.pods)),
        workers=pods.fingerprint(case.seen.pods),
        start_step=steps_made(old) if old is not None else 0,
    )
    case.set(attempt=attempt, run=run, retry_at=None, provisioning_since=None)
    message = f"attempt {attempt} is handed to Ray"
    if case.status.checkpoint is not None:
        message += f"; it continues from the checkpoint of step {case.status.checkpoint.step}"
    case.condition("Running", "False", Reason.SUBMITTED, message)
    case.after.append(Submit(attempt, run.submission_id))
    case.wake_in(case.settings.recheck_seconds)
    return True
