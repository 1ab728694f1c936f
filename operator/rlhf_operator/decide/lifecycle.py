"""Policies for the life of a job: deletion, the end, deadlines, suspension, queues."""

from __future__ import annotations

from datetime import timedelta

from rlhf_api.reasons import Reason
from rlhf_operator.decide import pods
from rlhf_operator.decide.actions import DeleteCluster, DeleteJob, MarkCluster, StopSubmission, SuspendCluster
from rlhf_operator.decide.attempt import attempt_stops, request_stop
from rlhf_operator.decide.attempt_state import say_not_running
from rlhf_operator.decide.case import Case
from rlhf_operator.decide.conditions import find, is_true, unknown
from rlhf_operator.decide.deadlines import wait_for
from rlhf_operator.decide.outcome import add_failure, clean_up, fail
from rlhf_operator.decide.texts import duration, few, moment_of, one_line
from rlhf_operator.decide.waiting import Trouble


def deletion_comes_first(case: Case) -> bool:
    """Nothing new while the object goes away, and one last word in its status: a foreign finalizer can keep it for long.

    Children go by their ownerReference. The RayCluster is deleted as well: an object that a foreign finalizer keeps would keep its GPUs.
    Its trainer is asked to save while its pods have their grace period.
    """
    if not case.seen.job.deleting:
        return False
    cluster, run = case.cluster, case.run
    if cluster is not None and not cluster.deleting:
        case.before.append(DeleteCluster(cluster.uid))
    if case.finished or not case.status.conditions:
        return True
    message = "the job is being deleted; its pods go"
    if run is not None:
        message = "the job is being deleted; its trainer is asked to write a checkpoint and stop, and its pods go"
        result = case.result("StopSubmission")
        if (cluster is not None or pods.head_pod(case.seen.pods) is not None) and (result is None or not result.ok):
            case.before.append(StopSubmission(run.submission_id))
    case.condition("ClusterReady", "False", Reason.DELETING, message)
    case.condition("Running", "False", Reason.DELETING, message)
    # Of the phases this is what happens: the trainer saves and the pods are released.
    case.set(phase="Suspending", reason=Reason.DELETING, message=message)
    return True


def terminal_is_final(case: Case) -> bool:
    """A finished job may only be cleaned up."""
    if not case.finished:
        return False
    clean_up(case)
    if case.after:
        case.wake_in(max(case.settings.recheck_seconds, 30.0))
    ttl = case.terms.lifecycle.ttl_seconds_after_finished if case.terms is not None else None
    if ttl is not None and case.passed(case.status.finished_at, ttl):
        case.after.append(DeleteJob())
        case.note(Reason.EXPIRED, f"deleted {duration(ttl)} after its end")
    return True


def first_visit(case: Case) -> bool:
    """All conditions are there before the first child: a job whose creation fails must not have an empty status."""
    if all(find(case.status.conditions, condition.type) is not None for condition in unknown(case.now, 0)):
        return False
    fresh = unknown(case.now, case.seen.job.generation)
    case.set(conditions=[find(case.status.conditions, condition.type) or condition for condition in fresh])
    case.wake(case.now)
    return True


def namespace_goes_away(case: Case) -> bool:
    """The API server refuses new objects in a namespace that is being deleted."""
    if not case.seen.namespace_terminating:
        return False
    message = f"namespace {case.seen.job.namespace} is being deleted; nothing is created in it"
    case.condition("ClusterReady", "False", Reason.API_ERROR, message)
    return True


def spec_is_valid(case: Case) -> bool:
    """No pods for a job that cannot run. One that runs already is not stopped because a newer operator reads its spec in another way."""
    job = case.seen.job
    never_started = case.status.attempt is None and case.cluster is None
    if never_started and (job.spec is None or job.problems):
        message = "\n".join(job.problems) or "the spec cannot be read"
        case.condition("Validated", "False", Reason.BAD_SPEC, message)
        fail(case, Reason.BAD_SPEC, message)
        return True
    if case.terms is None:
        words = "; ".join(job.problems) or "the spec cannot be read"
        case.condition("Validated", "Unknown", Reason.BAD_SPEC, f"this operator cannot read the spec and leaves the job as it is: {words}")
        return True
    if job.ignored_edits:
        message = f"edited after the job began, without effect: {few(list(job.ignored_edits), 8)}"
        case.condition("Validated", "True", Reason.EDIT_IGNORED, message)
    else:
        case.condition("Validated", "True", Reason.VALID, "every rule holds")
    for kind in ("Complete", "Failed"):
        if not is_true(case.status.conditions, kind):
            case.condition(kind, "False", Reason.ACCEPTED, "the job has not ended")
    return False


def cluster_is_read(case: Case) -> bool:
    """What could not be read is unchanged, never gone."""
    if "cluster" not in case.seen.unread:
        return False
    case.wake_in(case.settings.recheck_seconds)
    return True


def cluster_is_marked(case: Case) -> bool:
    """The job's own cluster with its labels, before anything is decided from them: the queue stands in one.

    Where they cannot be put back the job goes on without: only the watch does not show the cluster, and it is asked for instead.
    """
    cluster = case.cluster
    if cluster is None or cluster.marked or cluster.deleting:
        return False
    case.after.append(MarkCluster(cluster.uid))
    case.wake_in(case.settings.recheck_seconds)
    result = case.result("MarkCluster")
    return result is None or result.ok


def active_deadline(case: Case) -> bool:
    """A job that trained long enough writes a checkpoint and fails. Suspension starts the clock anew, as for a batch/v1 Job."""
    seconds = case.terms.lifecycle.active_deadline_seconds if case.terms is not None else None
    if seconds is None or not case.passed(case.status.active_since, seconds):
        return False
    run = case.run
    if run is not None:
        request_stop(case, run, "ActiveDeadline")
        if attempt_stops(case):
            return True
    message = f"trained for {duration(seconds)}, as long as lifecycle.activeDeadlineSeconds allows; checkpoints are kept"
    if not case.finished:
        add_failure(case, "User", Reason.ACTIVE_DEADLINE, message)
        fail(case, Reason.ACTIVE_DEADLINE, message)
    return True


def suspension(case: Case) -> bool:
    """Stop after a checkpoint, then release the pods; nothing else while `suspend` is true."""
    if case.terms is None or case.finished:
        return case.finished
    if not case.terms.suspend:
        was = case.condition_reason("Suspended") in (Reason.SUSPEND_REQUESTED, Reason.SUSPENDED, Reason.RESUMED)
        message = "the job continues from its last checkpoint" if was else "the job is not suspended"
        case.condition("Suspended", "False", Reason.RESUMED if was else Reason.NOT_SUSPENDED, message)
        return False
    run = case.run
    if run is not None:
        request_stop(case, run, "Suspend")
        case.condition("Suspended", "False", Reason.SUSPEND_REQUESTED, "waiting for the trainer to write a checkpoint and stop")
        if attempt_stops(case):
            return True
    if not case.finished:
        _release(case)
    return True


def _release(case: Case) -> None:
    cluster = case.cluster
    case.set(retry_at=None, provisioning_since=None, active_since=None)
    # A job that never had a cluster had no place either.
    queued = case.terms is not None and case.terms.queue and case.status.ray_cluster is not None
    place = "; its place in the queue was given up" if queued else ""
    if cluster is not None and cluster.queue:
        # Kueue 0.14 owns the suspension of a queued cluster: admission sets it false whatever it was.
        if not cluster.deleting:
            case.after.append(DeleteCluster(cluster.uid))
    elif cluster is not None and not cluster.suspend and not cluster.deleting:
        case.after.append(SuspendCluster(cluster.uid, True))
    released = cluster is None or (cluster.suspend and not cluster.queue)
    left = [pod.name for pod in pods.present(case.seen.pods)]
    case.condition("ClusterReady", "False", Reason.SUSPENDED, "no pods while the job is suspended")
    case.condition("Running", "False", Reason.NOT_RUNNING, "the job is suspended")
    if released and case.pods_read and not left:
        case.condition("Suspended", "True", Reason.SUSPENDED, f"all pods are released; suspend: false continues{place}")
        return
    results = map(case.result, ("SuspendCluster", "DeleteCluster"))
    failed = next((result for result in results if result is not None and not result.ok), None)
    waits = f"waiting for pods to go: {few(left)}" if left else "waiting for KubeRay to release the pods"
    if failed is not None:
        waits += f"; {failed.action} failed {failed.failures} times: {one_line(failed.message)}"
    case.condition("Suspended", "False", Reason.SUSPEND_REQUESTED, waits)
    case.wake_in(case.settings.recheck_seconds)


def queue_holds(case: Case) -> bool:
    """A queued cluster is suspended and resumed by its queue alone."""
    cluster = case.cluster
    if cluster is None or not cluster.queue or not cluster.suspend or cluster.deleting:
        return False
    case.set(provisioning_since=None, active_since=None)
    words = one_line(case.seen.queue_message) or "waiting for admission"
    case.condition("ClusterReady", "False", Reason.QUEUED, f"queue {cluster.queue}: {words}")
    if case.settings.queue_words:
        case.wake_in(case.settings.queue_seconds if case.seen.queue_message else case.settings.recheck_seconds)
    say_not_running(case, f"queue {cluster.queue}")
    return True


def cluster_is_resumed(case: Case) -> bool:
    """A suspended cluster that no queue manages is started again; one that is being deleted must go first."""
    cluster = case.cluster
    if cluster is None:
        return False
    if cluster.deleting:
        return wait_for(case, Trouble(Reason.PROVISIONING, f"the old RayCluster {cluster.name} is being deleted"))
    if not cluster.suspend:
        return False
    case.after.append(SuspendCluster(cluster.uid, False))
    result = case.result("SuspendCluster")
    failed = f"; failed {result.failures} times: {one_line(result.message)}" if result is not None and not result.ok else ""
    return wait_for(case, Trouble(Reason.PROVISIONING, f"RayCluster {cluster.name} is being resumed{failed}"))


def back_off(case: Case) -> bool:
    """A new attempt waits, longer each time that no step was made."""
    at = moment_of(case.status.retry_at)
    if at is None or case.now >= at:
        return False
    case.wake(at + timedelta(milliseconds=1))
    say_not_running(case, f"until {case.status.retry_at}")
    return True
