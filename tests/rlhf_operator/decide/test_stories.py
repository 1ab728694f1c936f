"""Whole lives of a job in the model world, each with one misfortune: what happens, how often, and how long it takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.rlhf_operator.decide.test_world import settle
from tests.rlhf_operator.decide.world import World


def trained(seconds: int = 60, steps: int = 30) -> World:
    """A world whose trainer has run for so long."""
    world = World(total_steps=steps)
    for _ in range(60):
        if world.trainers():
            break
        world.advance(5)
    world.advance(seconds)
    return world


def head_is_cut_off_and_comes_back(world: World) -> None:
    """Long enough to be given up, while the trainer goes on: it must be stopped before the next begins."""
    world.partitioned = True
    world.advance(90)
    world.partitioned = False


def head_lingers_while_its_successor_is_ready(world: World) -> None:
    world.delete_cluster()
    for pod in world.pods:
        pod.dies_at = pod.deleting_since and pod.deleting_since.replace(minute=pod.deleting_since.minute + 2)


def operator_dies_between_write_and_post(world: World) -> None:
    world.delete_pod(head=True)
    world.crash_after_write = True


def operator_dies_between_post_and_its_answer(world: World) -> None:
    world.delete_pod(head=True)
    world.crash_after_post = True


def network_breaks_between_post_and_its_answer(world: World) -> None:
    """For longer than a submission may take, so the attempt is given up though it runs."""
    world.delete_pod(head=True)
    world.cut_after_post = True
    world.advance(450)
    world.reachable = True


def writes_are_lost(world: World) -> None:
    world.delete_pod(head=True)
    world.lose_writes = 3


def head_container_is_restarted(world: World) -> None:
    world.restart_container(head=True)


def worker_is_deleted(world: World) -> None:
    world.delete_pod(head=False)


def worker_runs_out_of_memory(world: World) -> None:
    world.restart_container(head=False)


def trainer_is_killed(world: World) -> None:
    world.exit_next = 137
    world.advance(30)


def trainer_asks_to_be_retried(world: World) -> None:
    world.exit_next = 75
    world.advance(30)


STORIES: tuple[tuple[Callable[[World], None], str, int], ...] = (
    (head_is_cut_off_and_comes_back, "HeadLost", 1),
    (head_lingers_while_its_successor_is_ready, "ClusterLost", 1),
    (operator_dies_between_write_and_post, "HeadLost", 1),
    (operator_dies_between_post_and_its_answer, "HeadLost", 1),
    (network_breaks_between_post_and_its_answer, "HeadLost", 2),
    (writes_are_lost, "HeadLost", 1),
    (head_container_is_restarted, "OutOfMemory", 1),
    (worker_is_deleted, "WorkerLost", 1),
    (worker_runs_out_of_memory, "OutOfMemory", 1),
    (trainer_is_killed, "Killed", 1),
    (trainer_asks_to_be_retried, "TrainerRetry", 1),
)


@pytest.mark.parametrize(("misfortune", "reason", "failures"), STORIES, ids=[story[0].__name__ for story in STORIES])
def test_one_misfortune_costs_one_attempt_and_ends_well(misfortune: Callable[[World], None], reason: str, failures: int) -> None:
    world = trained()
    misfortune(world)
    settle(world)
    assert world.status.phase == "Succeeded"
    assert [failure.reason for failure in world.status.failures][:1] == [reason]
    assert len(world.status.failures) == failures
    assert len(world.posts) == world.status.attempt == failures + 1


@pytest.mark.parametrize("head", [True, False])
def test_rc05_a_new_attempt_runs_within_two_minutes_of_the_loss(head: bool) -> None:
    world = trained()
    world.delete_pod(head, lingers=5)
    lost = world.now
    while world.status.attempt == 1 or not world.trainers():
        world.advance(5)
        assert (world.now - lost).total_seconds() < 120


def test_rc20_a_cut_of_minutes_is_not_noticed_by_the_training() -> None:
    world = trained()
    world.reachable = False
    world.advance(400)
    assert world.status.phase == "Running"
    assert world.status.reason == "HeadUnreachable"
    world.reachable = True
    settle(world)
    assert world.status.phase == "Succeeded"
    assert not world.status.failures


def test_rc20_a_job_that_ended_while_the_head_could_not_be_reached_is_found_ended() -> None:
    world = trained(steps=6)
    world.reachable = False
    world.advance(300)
    assert not world.trainers()
    world.reachable = True
    world.advance(30)
    assert world.status.phase == "Succeeded"


def test_a_trainer_that_hangs_and_does_not_stop_is_taken_away_with_its_cluster() -> None:
    world = trained()
    world.hang_next = world.deaf_next = True
    world.delete_pod(head=True)
    world.advance(600)
    settle(world)
    assert world.status.phase == "Succeeded"
    assert [failure.reason for failure in world.status.failures] == ["HeadLost", "Stalled"]


def test_a_trainer_that_does_not_notice_a_lost_worker_is_stopped_after_a_minute() -> None:
    world = trained()
    for jobs in world.jobs.values():
        for job in jobs.values():
            job.hangs = True
    world.delete_pod(head=False)
    world.advance(180)
    assert [failure.reason for failure in world.status.failures] == ["WorkerLost"]
    settle(world)
    assert world.status.phase == "Succeeded"


def test_a_job_that_never_gets_its_pods_fails_at_the_deadline_and_holds_nothing() -> None:
    world = World()
    world.schedulable = False
    world.advance(1860)
    assert world.status.phase == "Failed"
    assert world.status.reason == "ProvisioningDeadlineExceeded"
    assert "0/5 nodes are available" in (world.status.message or "")
    world.advance(60)
    assert world.cluster is None
    assert not world.pods


def test_suspend_frees_the_pods_and_resume_continues_from_the_checkpoint() -> None:
    world = trained(seconds=105)
    world.set_suspend(True)
    world.advance(60)
    assert world.status.phase == "Suspended"
    assert not world.pods
    kept = world.checkpoint
    assert kept >= 5
    world.advance(3600)
    world.set_suspend(False)
    settle(world)
    assert world.status.phase == "Succeeded"
    assert world.status.run is not None
    assert world.status.run.start_step == kept
    assert not world.status.failures


def test_an_eviction_by_the_queue_keeps_the_cluster_and_continues() -> None:
    world = World(total_steps=30, queue="research")
    world.advance(120)
    assert world.cluster is not None
    uid = world.cluster.uid
    world.evict()
    world.advance(900)
    assert world.status.phase == "Queued"
    world.admit()
    settle(world)
    assert world.status.phase == "Succeeded"
    assert world.status.ray_cluster is not None
    assert world.status.ray_cluster.uid == uid
    assert [failure.reason for failure in world.status.failures] == ["QueueEvicted"]
