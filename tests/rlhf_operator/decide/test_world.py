"""``decide`` in a world where anything may happen at any moment: nothing gets stuck, and nothing happens twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.rlhf_operator.decide.world import World

PATIENCE_SECONDS = 3 * 3600
"""Longer than every deadline and back-off that a job of this world can meet after the last fault."""


AFTER = st.sampled_from([None, 0, 5, 20, 45])
"""Seconds that a trainer has run when something happens."""


def settle(world: World) -> None:
    """Faults stop; the job must come to rest."""
    world.reachable, world.schedulable, world.lose_writes, world.api_errors = True, True, 0, 0
    world.partitioned = world.cut_after_post = False
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

    @initialize(queue=st.sampled_from([None, "research"]), steps=st.integers(4, 30), workers=st.integers(1, 3))
    def begin(self, queue: str | None, steps: int, workers: int) -> None:
        self.world = World(total_steps=steps, num_workers=workers, queue=queue)
        self.world.advance(5)

    def _train(self, seconds: int | None) -> None:
        """Most of what can go wrong goes wrong while a trainer runs; None: at once, whatever there is."""
        if seconds is None:
            return
        for _ in range(60):
            if self.world.trainers() or self.world.at_rest:
                break
            self.world.advance(5)
        if seconds:
            self.world.advance(seconds)

    @rule(seconds=st.sampled_from([5, 10, 30, 60, 120, 300]))
    def time_passes(self, seconds: int) -> None:
        self.world.advance(seconds)

    @rule(head=st.booleans(), reason=st.sampled_from(["", "PreemptionByScheduler"]), lingers=st.sampled_from([5, 30, 110]), after=AFTER)
    def pod_is_deleted(self, head: bool, reason: str, lingers: int, after: int | None) -> None:
        self._train(after)
        self.world.delete_pod(head, reason, lingers)

    @rule(head=st.booleans(), reason=st.sampled_from(["OOMKilled", "Error"]), after=AFTER)
    def container_dies(self, head: bool, reason: str, after: int | None) -> None:
        self._train(after)
        self.world.restart_container(head, reason)

    @precondition(lambda self: self.world.reachable)
    @rule(after=AFTER)
    def network_breaks(self, after: int | None) -> None:
        self._train(after)
        self.world.reachable = False

    @precondition(lambda self: not self.world.reachable)
    @rule()
    def network_heals(self) -> None:
        self.world.reachable = True

    @precondition(lambda self: not self.world.partitioned)
    @rule(after=AFTER, seconds=st.sampled_from([30, 80, 200]))
    def node_of_the_head_is_cut_off(self, after: int | None, seconds: int) -> None:
        self._train(after)
        self.world.partitioned = True
        self.world.advance(seconds)

    @precondition(lambda self: self.world.partitioned)
    @rule()
    def node_of_the_head_is_back(self) -> None:
        self.world.partitioned = False

    @rule()
    def network_breaks_after_the_next_post(self) -> None:
        self.world.cut_after_post = True

    @rule(after=AFTER)
    def operator_restarts(self, after: int | None) -> None:
        self._train(after)
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

    @precondition(lambda self: not self.world.suspend)
    @rule(after=AFTER)
    def user_suspends(self, after: int | None) -> None:
        self._train(after)
        self.world.set_suspend(True)

    @precondition(lambda self: self.world.suspend)
    @rule()
    def user_resumes(self) -> None:
        self.world.set_suspend(False)

    @precondition(lambda self: self.world.queue is not None and self.world.admitted)
    @rule(after=AFTER)
    def queue_evicts(self, after: int | None) -> None:
        self._train(after)
        self.world.evict()

    @precondition(lambda self: not self.world.admitted)
    @rule()
    def queue_admits(self) -> None:
        self.world.admit()

    @rule(room=st.booleans())
    def nodes_fill_up(self, room: bool) -> None:
        self.world.schedulable = room

    @rule(deaf=st.booleans())
    def next_trainer_hangs(self, deaf: bool) -> None:
        self.world.hang_next, self.world.deaf_next = True, deaf

    @rule(code=st.sampled_from([1, 75, 137, 143]))
    def next_step_fails(self, code: int) -> None:
        self.world.exit_next = code

    @rule(after=AFTER)
    def cluster_is_deleted(self, after: int | None) -> None:
        self._train(after)
        self.world.delete_cluster()

    @invariant()
    def never_two_trainers_and_one_post_an_attempt(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        settle(world)
        if world.suspend:
            world.set_suspend(False)
            settle(world)
        assert world.status.phase in ("Succeeded", "Failed")
        assert world.status.phase == "Failed" or world.checkpoint == world.total_steps
        world.advance(180)
        assert world.cluster is None or not any(not pod.head for pod in world.pods), "a job that has ended holds no workers"


TestAnythingHappens: Any = AnythingHappens.TestCase
TestAnythingHappens.settings = settings(
    max_examples=80, stateful_step_count=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=True
)


@pytest.mark.parametrize("queue", [None, "research"])
@pytest.mark.parametrize("trouble", ["", "head lost", "suspended", "unreachable"])
def test_delete_at_every_moment_leaves_nothing(queue: str | None, trouble: str) -> None:
    for moment in range(0, 160, 10):
        world = World(queue=queue)
        if moment:
            world.advance(moment)
        if trouble == "head lost":
            world.delete_pod(head=True)
        elif trouble == "suspended":
            world.set_suspend(True)
        elif trouble == "unreachable":
            world.reachable = False
        if trouble:
            world.advance(10)
        writes = len(world.log)
        world.delete_job()
        world.advance(40)
        assert not world.exists, (moment, world.log[-5:])
        assert world.cluster is None
        assert len(world.log) <= writes + 1, "one last status is written while the job goes away"


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
