"""``decide``: what is to be done about a job, from what is seen of it. Pure, total, deterministic."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from rlhf_api.status import RayClusterStatus, RLHFJobStatus
from rlhf_operator.decide import evidence, progress
from rlhf_operator.decide.actions import Decision
from rlhf_operator.decide.attempt import attempt_ended, attempt_runs, attempt_stops
from rlhf_operator.decide.case import Case
from rlhf_operator.decide.children import children_exist, cluster_is_replaced, former_job_leaves, needs_are_met
from rlhf_operator.decide.conclusion import conclude
from rlhf_operator.decide.lifecycle import (
    active_deadline,
    back_off,
    cluster_is_marked,
    cluster_is_read,
    cluster_is_resumed,
    deletion_comes_first,
    first_visit,
    namespace_goes_away,
    queue_holds,
    spec_is_valid,
    suspension,
    terminal_is_final,
)
from rlhf_operator.decide.observation import Observation
from rlhf_operator.decide.settings import DecideSettings
from rlhf_operator.decide.start import head_answers, next_attempt, no_other_trainer, old_attempt_is_over, old_head_is_gone, pods_are_ready
from rlhf_operator.decide.terms import terms_of

Policy = Callable[[Case], bool]
"""Adds to the decision; True = decided, the policies after it are not asked."""

POLICIES: tuple[Policy, ...] = (
    deletion_comes_first,  # nothing new while the object goes away
    terminal_is_final,  # a finished job may only be cleaned up
    first_visit,  # all conditions stand before the first child
    namespace_goes_away,  # the API server would refuse whatever is created
    spec_is_valid,  # no pods for a job that cannot run
    cluster_is_read,  # what could not be read is unchanged
    cluster_is_marked,  # its labels tell the watches and the queue of it
    attempt_ended,  # before anything builds on an attempt that is over
    active_deadline,  # stops even what is about to be suspended
    suspension,  # nothing else while the user wants it still
    attempt_stops,  # a trainer that was asked to stop gets its grace
    attempt_runs,  # while an attempt is under way it is only followed
    former_job_leaves,  # children of another UID are never adopted
    needs_are_met,  # before GPUs are taken
    cluster_is_replaced,  # the old cluster goes before the new one comes
    children_exist,  # created in order, refusals are told
    queue_holds,  # the queue alone suspends and resumes its clusters
    cluster_is_resumed,  # after a suspension by the user
    old_head_is_gone,  # never two trainers at once
    pods_are_ready,  # with what keeps them, and the provisioning deadline
    head_answers,  # no POST before Ray is healthy
    no_other_trainer,  # never two trainers at once, whatever somebody did to the status
    old_attempt_is_over,  # never two trainers at once, by the head's own word
    back_off,  # longer each time that no step was made
    next_attempt,  # one attempt, one id, one POST
)


def decide(observation: Observation, now: datetime, settings: DecideSettings) -> Decision:
    """The status as it must be stored and the actions to take. Never raises for any observation whose parts are of their types."""
    job = observation.job
    case = Case(observation, now, settings, job.status, terms_of(job.spec) if job.spec is not None else None)
    if not job.deleting and not case.finished:
        _take_note(case)
    for policy in POLICIES:
        if policy(case):
            break
    return conclude(case, job.status)


def _take_note(case: Case) -> None:
    """What was seen, whatever is decided: evidence and progress are gone a moment later."""
    job, cluster = case.seen.job, case.cluster
    case.set(observed_generation=job.generation)
    if case.terms is not None:
        case.set(algorithm=case.terms.algorithm, gpus=job.gpus)
    if cluster is not None:
        case.set(ray_cluster=RayClusterStatus(name=cluster.name, uid=cluster.uid, dashboard=case.head_address[:253]))
    evidence.record(case)
    progress.record(case)


def initial_status() -> RLHFJobStatus:
    """The status of a job that nobody has looked at."""
    return RLHFJobStatus()
