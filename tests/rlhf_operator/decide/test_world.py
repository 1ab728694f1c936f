"""``decide`` in a world where anything may happen at any moment: nothing gets stuck, and nothing happens twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rlhf_operator.decide.conditions import is_true
from tests.rlhf_operator.decide.world import World

PATIENCE_SECONDS = 3 * 3600
"""Longer than every deadline and back-off that a job of this world can meet after the last fault."""


def settle(world: World) -> None:
    """Faults stop; the job must come to rest."""
    world.reachable, world.schedulable, world.lose_writes, world.api_errors = True, True, 0, 0
    world.hang_next = world.deaf_next = False
    world.exit_next = None
    world.admit()
    waited = 0
    while not world.at_rest:
        assert waited < PATIENCE_SECONDS, "stuck:\n" + "\n".join(world.log[-30:])
        world.advance(30)
        waited += 30


class AnythingHappens(RuleBasedStateMachine):
    world: World

    @initialize(queue=st.sampled_from([None, "research"]), steps=st.integers(2, 8), workers=st.integers(1, 3), suspended=st.booleans())
    def begin(self, queue: str | None, steps: int, workers: int, suspended: bool) -> None:
        self.world = World(total_steps=steps, num_workers=workers, queue=queue)
        self.world.set_suspend(suspended)

    @rule(seconds=st.sampled_from([5, 10, 30, 60, 120, 300]))
    def time_passes(self, seconds: int) -> None:
        self.world.advance(seconds)

    @rule()
    def training_begins(self) -> None:
        """Most of what can go wrong goes wrong while a trainer runs."""
        for _ in range(24):
            if self.world.trainers() or self.world.at_rest:
                return
            self.world.advance(5)

    @rule(head=st.booleans(), reason=st.sampled_from(["", "PreemptionByScheduler", "EvictionByEvictionAPI"]), lingers=st.sampled_from([5, 30, 110]))
    def pod_is_deleted(self, head: bool, reason: str, lingers: int) -> None:
        self.world.delete_pod(head, reason, lingers)

    @rule(head=st.booleans(), reason=st.sampled_from(["OOMKilled", "Error"]))
    def container_dies(self, head: bool, reason: str) -> None:
        self.world.restart_container(head, reason)

    @rule(up=st.booleans())
    def network_changes(self, up: bool) -> None:
        self.world.reachable = up

    @rule()
    def operator_restarts(self) -> None:
        self.world.restart_operator()

    @rule()
    def operator_dies_after_its_next_write(self) -> None:
        self.world.crash_after_write = True

    @rule()
    def operator_dies_after_its_next_post(self) -> None:
        self.world.crash_after_post = True

    @rule(count=st.integers(1, 3))
    def status_writes_get_lost(self, count: int) -> None:
        self.world.lose_writes = count

    @rule(count=st.integers(1, 3))
    def creation_fails(self, count: int) -> None:
        self.world.api_errors = count

    @rule(suspend=st.booleans())
    def user_suspends_or_resumes(self, suspend: bool) -> None:
        self.world.set_suspend(suspend)

    @precondition(lambda self: self.world.queue is not None)
    @rule(admitted=st.booleans())
    def queue_flips(self, admitted: bool) -> None:
        if admitted:
            self.world.admit()
        else:
            self.world.evict()

    @rule(room=st.booleans())
    def nodes_fill_up(self, room: bool) -> None:
        self.world.schedulable = room

    @rule(deaf=st.booleans())
    def next_trainer_hangs(self, deaf: bool) -> None:
        self.world.hang_next, self.world.deaf_next = True, deaf

    @rule(code=st.sampled_from([1, 2, 3, 75, 137, 143]))
    def next_step_fails(self, code: int) -> None:
        self.world.exit_next = code

    @rule()
    def cluster_is_deleted(self) -> None:
        self.world.delete_cluster()

    @rule()
    def job_is_deleted(self) -> None:
        self.world.delete_job()
        self.world.advance(60)
        assert not self.world.pods or any(pod.deleting_since is not None for pod in self.world.pods)

    @invariant()
    def never_two_trainers_and_one_post_an_attempt(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        settle(self.world)
        world = self.world
        if not world.exists:
            assert world.cluster is None
            assert not world.pods
        elif is_true(world.status.conditions, "Complete"):
            assert world.checkpoint == world.total_steps


TestAnythingHappens: Any = AnythingHappens.TestCase
TestAnythingHappens.settings = settings(
    max_examples=120, stateful_step_count=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=True
)


@pytest.mark.parametrize("queue", [None, "research"])
@pytest.mark.parametrize("flips", range(32))
def test_every_order_of_suspend_and_resume_ends_well(queue: str | None, flips: int) -> None:
    """Five flips of `suspend`, each given 5 or 45 seconds: before, while and after everything that a suspension does."""
    world = World(queue=queue)
    world.advance(50)
    for turn in range(5):
        world.set_suspend(turn % 2 == 0)
        world.advance(45 if flips >> turn & 1 else 5)
    world.set_suspend(False)
    settle(world)
    assert world.status.phase == "Succeeded"
    assert not world.status.failures, "a suspension is no failure"
