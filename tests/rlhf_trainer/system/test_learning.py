"""Every algorithm learns on the tiny model, with fixed seeds."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

BEST_REWARD = 1.0
WINDOW = 5


def moving_average(values: list[float]) -> list[float]:
    return [sum(values[i : i + WINDOW]) / WINDOW for i in range(len(values) - WINDOW + 1)]


@pytest.mark.parametrize(
    ("example", "start"),
    [
        ("grpo.yaml", 0.3),
        ("ppo.yaml", 0.3),
        # A fitted reward model is not exact: it gives random answers 0.30 where the function gives 0.22.
        ("ppo-reward-model.yaml", 0.34),
    ],
)
def test_reward_rises_from_a_random_policys_to_nine_tenths_of_the_best(jobs, example: str, start: float) -> None:
    run = jobs.run(example)
    assert run.code == 0, run.output
    rewards = run.series("rollout/reward_mean")
    assert rewards[0] < start * BEST_REWARD, rewards
    assert max(moving_average(rewards)) >= 0.9 * BEST_REWARD, rewards


OTHERS = ("reinforce++.yaml", "reinforce++-baseline.yaml", "dr-grpo.yaml")


@pytest.mark.parametrize("example", ["rloo.yaml", *(pytest.param(name, marks=pytest.mark.nightly) for name in OTHERS)])
def test_reward_at_least_doubles(jobs, example: str) -> None:
    run = jobs.run(example)
    assert run.code == 0, run.output
    rewards = run.series("rollout/reward_mean")
    averages = moving_average(rewards)
    assert averages[-1] >= 2 * averages[0], rewards


def test_engine_and_trainer_agree_at_every_step(jobs) -> None:
    run = jobs.run("grpo.yaml", "spec.training.maxSteps=4")
    assert run.code == 0, run.output
    gaps = run.series("rollout/logprob_gap_max")
    assert len(gaps) == 4
    assert max(gaps) < 1e-4
