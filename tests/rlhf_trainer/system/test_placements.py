"""The same job on other numbers of ranks and engines, and with roles apart."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

SHORT = ("spec.training.maxSteps=2", "spec.logging.tensorboard=false", "spec.evaluation=null", "spec.checkpoint.exportHuggingFace=false")


def test_two_ranks_and_two_engines_give_the_losses_of_one(jobs) -> None:
    one = jobs.run("grpo.yaml", *SHORT, "metadata.name=one")
    two = jobs.run("grpo.yaml", *SHORT, "metadata.name=two", "spec.placement.actor.gpusPerNode=2", "spec.placement.rollout.engines=2")
    assert one.code == 0, one.output
    assert two.code == 0, two.output
    first, second = jobs.named("one"), jobs.named("two")
    # Every request has a seed of its own, so two engines sample what one does.
    assert second.series("rollout/reward_mean")[0] == first.series("rollout/reward_mean")[0]
    for key in ("actor/loss", "actor/grad_norm", "actor/entropy"):
        assert second.series(key) == pytest.approx(first.series(key), abs=1e-5), key


def test_roles_apart_with_weights_over_gloo(jobs, leftovers) -> None:
    run = jobs.run(
        "ppo-reward-model.yaml",
        *SHORT,
        "spec.placement.colocate=[actorReference, criticReward]",
        "spec.placement.rollout.weightSync=gloo",
        flags=("--cpus", "4"),
    )
    assert run.code == 0, run.output
    assert "workers actor+reference x 1, critic+reward x 1" in run.output
    assert max(run.series("rollout/logprob_gap_max")) < 1e-4
    assert leftovers() == []


def test_a_plan_that_does_not_fit_says_what_it_needs_and_what_there_is(jobs, leftovers) -> None:
    run = jobs.run("ppo-reward-model.yaml", *SHORT, "spec.placement.colocate=none", flags=("--cpus", "2"))
    assert run.code == 2, run.output
    assert "needs 5 CPUs (actor 1, reference 1, critic 1, reward 1, rollout 1), there are 2" in run.output
    assert leftovers() == []
