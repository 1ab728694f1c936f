"""The reinforcement-learning loop: rollout, score, experience, update, sync, report.

Nothing here or below knows which algorithm runs; the spec's estimator, loss and KL settings are looked up by name in
``algorithms/``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rlhf_trainer.algorithms.kl import Controller as KlController
from rlhf_trainer.errors import StopRequested
from rlhf_trainer.loops.experience import Experience
from rlhf_trainer.types import PromptGroup, Reward, Rollout


class Prompts(Protocol):
    def take(self, num_groups: int) -> list[PromptGroup]: ...


class Rollouts(Protocol):
    def sample(self, groups: Sequence[PromptGroup], *, version: int) -> list[Rollout]: ...


class Rewards(Protocol):
    def score(self, rollouts: Sequence[Rollout]) -> list[Reward]: ...


class Learner(Protocol):
    def experience(self, rollouts: Sequence[Rollout], rewards: Sequence[Reward], kl: KlController) -> Experience: ...

    def update(self, experience: Experience, state: RlState) -> Mapping[str, float]: ...


class Weights(Protocol):
    def push(self, version: int) -> Mapping[str, float]: ...


class Outputs(Protocol):
    """Evaluation, checkpoint and report: what leaves the loop."""

    def evaluate(self, state: RlState) -> Mapping[str, float]: ...

    def save(self, state: RlState) -> None: ...

    def report(self, state: RlState, metrics: Mapping[str, float]) -> None: ...


@dataclass(frozen=True, slots=True)
class RlState:
    """Everything the loop itself carries from step to step; with the prompts' cursor and the workers' state it is a checkpoint."""

    step: int
    """Steps done; also the version of the weights."""
    total_steps: int
    updates: int
    """Optimizer updates of the actor done."""
    kl: KlController

    @property
    def done(self) -> bool:
        return self.step >= self.total_steps

    def advance(self, updates: int, kl_k3_mean: float | None, num_rollouts: int) -> RlState:
        """The state after a step. Without a measured KL (no reference, or a frozen actor) the controller stands still."""
        kl = self.kl if kl_k3_mean is None else self.kl.update(kl_k3_mean, num_rollouts)
        return replace(self, step=self.step + 1, updates=self.updates + updates, kl=kl)


@dataclass(frozen=True, slots=True)
class RlParts:
    """The collaborators of the loop, each behind a small protocol."""

    phase: Callable[[str], AbstractContextManager[Any]]
    prompts: Prompts
    rollouts: Rollouts
    rewards: Rewards
    learner: Learner
    weights: Weights
    outputs: Outputs
    prompts_per_step: int
    evaluates_at: Callable[[int], bool]
    saves_at: Callable[[int], bool]
    stop_requested: Callable[[], bool]


def train(parts: RlParts, state: RlState, metrics_of: Callable[..., dict[str, float]]) -> RlState:
    """Run to the last step. Raises StopRequested between steps, once the state is saved.

    Weights are synced once before the first rollout, so that a fault of the transport shows before any generation,
    and a resumed run samples from the weights it saved.
    """
    phase = parts.phase
    refuse_to_begin(parts, state)
    with phase("sync"):
        parts.weights.push(state.step)
    if state.step == 0 and parts.evaluates_at(0):
        with phase("evaluate"):
            evaluation = parts.outputs.evaluate(state)
        parts.outputs.report(state, evaluation)
    refuse_to_begin(parts, state)
    for state, stopping in steps(parts, state, metrics_of):  # noqa: B020 - the state goes on from itself
        if stopping and not state.done:
            raise StopRequested(f"stopped on request after step {state.step} of {state.total_steps}; the same command continues")
    return state


def refuse_to_begin(parts: RlParts, state: RlState) -> None:
    """A stop request that came before any step of this run; everything earlier is saved."""
    if parts.stop_requested() and not state.done:
        raise StopRequested(f"stopped on request at step {state.step} of {state.total_steps}; the same command continues")


def steps(parts: RlParts, state: RlState, metrics_of: Callable[..., dict[str, float]]) -> Iterator[tuple[RlState, bool]]:
    """One training step an item, and whether a stop was requested in time for it to be saved."""
    phase = parts.phase
    while not state.done:
        with phase("data"):
            groups = parts.prompts.take(parts.prompts_per_step)
        with phase("rollout"):
            rollouts = parts.rollouts.sample(groups, version=state.step)
        with phase("reward"):
            rewards = parts.rewards.score(rollouts)
        with phase("experience"):
            experience = parts.learner.experience(rollouts, rewards, state.kl)
        with phase("update"):
            stats = parts.learner.update(experience, state)
        with phase("sync"):
            sync = parts.weights.push(state.step + 1)
        before = state
        state = state.advance(int(stats["updates"]), stats.get("kl_k3_mean"), len(experience.rows))
        evaluation: Mapping[str, float] = {}
        if parts.evaluates_at(state.step):
            with phase("evaluate"):
                evaluation = parts.outputs.evaluate(state)
        metrics = metrics_of(before, experience, stats, sync, evaluation)
        # Reported before it is saved: a checkpoint never stands for a step that metrics.jsonl has not seen.
        parts.outputs.report(state, metrics)
        stopping = parts.stop_requested()
        if parts.saves_at(state.step) or state.done or stopping:
            with phase("checkpoint"):
                parts.outputs.save(state)
        yield state, stopping
