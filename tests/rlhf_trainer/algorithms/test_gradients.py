"""Finite differences (fp64) of every loss, for each placement of the KL, through masks and aggregation."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch.autograd import gradcheck

from rlhf_api.spec import AdvantageSpec, Aggregation, KlSpec, PolicyLossSpec, RewardSpec
from rlhf_trainer.algorithms import advantages as adv
from rlhf_trainer.algorithms.aggregation import aggregate, denominators
from rlhf_trainer.algorithms.kl import estimate, loss_term
from rlhf_trainer.algorithms.policy_losses import combine, policy_loss
from rlhf_trainer.algorithms.value_losses import value_loss

MASK = torch.tensor([[True, True, False, True], [True, False, False, False], [False, False, False, False], [True, True, True, True]])


def numbers(seed: int, scale: float = 0.5) -> torch.Tensor:
    return scale * torch.randn(MASK.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


OLD, REF, ENTROPY = numbers(1) - 1, numbers(2) - 1, numbers(3)


@pytest.mark.parametrize("mode", get_args(Aggregation))
@pytest.mark.parametrize("fields", [{}, {"dual_clip": 1.5}, {"clip_low": 0.1, "clip_high": 0.5}])
def test_policy_loss(mode: Aggregation, fields: dict[str, Any]) -> None:
    total = denominators(list(MASK.numpy()), mode, 7)
    weight, advantages = numbers(4).exp(), numbers(5)
    spec = PolicyLossSpec(**fields)

    def loss(logp: torch.Tensor) -> torch.Tensor:
        return aggregate(policy_loss(logp, OLD, advantages, MASK, spec, weight).per_token, MASK, total)

    assert gradcheck(loss, (OLD + numbers(6)).requires_grad_())


@pytest.mark.parametrize("clip", [None, 0.3])
def test_value_loss(clip: float | None) -> None:
    total = denominators(list(MASK.numpy()), "token-mean")
    old, returns = numbers(7), numbers(8)
    assert gradcheck(lambda v: aggregate(value_loss(v, old, returns, MASK, clip), MASK, total), numbers(9).requires_grad_())


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_kl_as_a_loss_with_policy_and_entropy(estimator: Any) -> None:
    total = denominators(list(MASK.numpy()), "token-mean")
    advantages, spec = numbers(5), PolicyLossSpec()

    def loss(logp: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        return combine(
            aggregate(policy_loss(logp, OLD, advantages, MASK, spec).per_token, MASK, total),
            aggregate(loss_term(logp, REF, OLD, estimator, False, MASK), MASK, total),
            0.3,
            aggregate(entropy, MASK, total),
            0.1,
        )

    assert gradcheck(loss, ((OLD + numbers(6)).requires_grad_(), ENTROPY.clone().requires_grad_()))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_as_a_loss_with_unbiased_gradient(estimator: Any) -> None:
    """The value is constant by construction, so the difference quotient is taken of ``w d^2 / 2`` with ``w`` frozen."""
    start = OLD + numbers(6)
    logp = start.clone().requires_grad_()
    loss_term(logp, REF, OLD, estimator, True, MASK).sum().backward()
    weight = (start - OLD).exp().clamp(max=10)

    def surrogate(x: torch.Tensor) -> torch.Tensor:
        return torch.where(MASK, weight * (x - REF).square() / 2, 0.0).sum()

    h = 1e-6
    assert logp.grad is not None
    for i, j in [(0, 0), (0, 3), (1, 0), (3, 2), (0, 2), (2, 1)]:
        shift = torch.zeros_like(start)
        shift[i, j] = h
        quotient = float((surrogate(start + shift) - surrogate(start - shift)) / (2 * h))
        assert float(logp.grad[i, j]) == pytest.approx(quotient, abs=1e-6)


@pytest.mark.parametrize("estimator", sorted(adv.ESTIMATORS))
@pytest.mark.parametrize("kl_estimator", ["k1", "k2", "k3"])
def test_kl_in_the_reward_reaches_the_gradient_through_the_advantages_only(estimator: Any, kl_estimator: Any) -> None:
    batch = adv.AdvantageBatch(
        rewards=torch.tensor([1.0, 0.0, 0.5, 0.25]),
        valid=torch.ones(4, dtype=torch.bool),
        group_ids=torch.tensor([0, 0, 1, 1]),
        mask=MASK,
        kl=estimate(OLD, REF, kl_estimator, MASK),
        kl_coef=0.2,
        values=numbers(10),
    )
    kl = KlSpec(placement="reward", estimator=kl_estimator)
    spec = AdvantageSpec(estimator=estimator, whiten="batch", std_norm=True)
    advantages = adv.compute(batch, spec, RewardSpec(), kl).advantages
    total = denominators(list(MASK.numpy()), "token-mean")

    def loss(logp: torch.Tensor) -> torch.Tensor:
        return aggregate(policy_loss(logp, OLD, advantages, MASK, PolicyLossSpec()).per_token, MASK, total)

    assert gradcheck(loss, (OLD + numbers(6)).requires_grad_())
    at_old = OLD.clone().requires_grad_()
    loss(at_old).backward()
    assert at_old.grad is not None
    torch.testing.assert_close(at_old.grad, -advantages.double() * MASK / MASK.sum())
