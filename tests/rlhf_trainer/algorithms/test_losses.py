"""Policy and value loss against closed forms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rlhf_api.spec import PolicyLossSpec
from rlhf_trainer.algorithms.policy_losses import PolicyLoss, combine, policy_loss
from rlhf_trainer.algorithms.value_losses import explained_variance, value_loss

TRUE = torch.tensor([[True]])


def ppo_of(log_ratio: float, advantage: float, **fields: Any) -> PolicyLoss:
    logp = torch.tensor([[log_ratio]], dtype=torch.float64)
    return policy_loss(logp, torch.zeros_like(logp), torch.tensor([[advantage]]), TRUE, PolicyLossSpec(**fields))


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "fields", "expected"),
    [
        (0.5, 1, {}, -1.2),
        (0.5, -1, {}, math.exp(0.5)),
        (-1.5, -1, {}, 0.8),
        (-1.5, 1, {}, -math.exp(-1.5)),
        (0.5, 1, {"clip_high": 0.28}, -1.28),
        (-1.5, -1, {"clip_low": 0.3}, 0.7),
        (1.9, -1, {"dual_clip": 3.0}, 3.0),
        (1.5, -1, {"dual_clip": 3.0}, 3.0),
        (1.9, -1, {}, math.exp(1.9)),
        (1.9, 1, {"dual_clip": 3.0}, -1.2),
        (0.5, -2, {"dual_clip": 3.0}, 2 * math.exp(0.5)),
        (50.0, -1, {}, math.exp(20.0)),
        (0.1, 0, {}, 0.0),
    ],
)
def test_golden_ppo(log_ratio: float, advantage: float, fields: dict[str, Any], expected: float) -> None:
    assert float(ppo_of(log_ratio, advantage, **fields).per_token) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "fields", "low", "high"),
    [
        (0.5, 1, {}, False, True),
        (0.5, -1, {}, False, False),
        (-1.5, -1, {}, True, False),
        (-1.5, 1, {}, False, False),
        (0.1, 1, {}, False, False),
        (1.9, -1, {"dual_clip": 3.0}, False, True),
        (0.5, -1, {"dual_clip": 3.0}, False, False),
    ],
)
def test_clipped_means_that_the_bound_decides(log_ratio: float, advantage: float, fields: dict[str, Any], low: bool, high: bool) -> None:
    result = ppo_of(log_ratio, advantage, **fields)
    assert (bool(result.clipped_low), bool(result.clipped_high)) == (low, high)


def test_correction_multiplies_after_clipping_and_carries_no_gradient() -> None:
    logp = torch.tensor([[0.5, 0.1]], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([[2.0, 0.0]], dtype=torch.float64, requires_grad=True)
    result = policy_loss(logp, torch.zeros(1, 2), torch.ones(1, 2), torch.tensor([[True, True]]), PolicyLossSpec(), weight)
    assert result.per_token[0].tolist() == pytest.approx([-2.4, 0.0])
    result.per_token.sum().backward()
    assert weight.grad is None
    assert not result.ratio.requires_grad


def test_on_policy_gradient_is_the_policy_gradient() -> None:
    logp = torch.tensor([[-1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([[0.7, -0.3]])
    policy_loss(logp, logp.detach(), advantages, torch.tensor([[True, True]]), PolicyLossSpec()).per_token.sum().backward()
    assert logp.grad is not None
    assert logp.grad[0].tolist() == pytest.approx([-0.7, 0.3])


def test_combine_adds_kl_and_subtracts_entropy() -> None:
    policy, kl, entropy = torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0)
    assert float(combine(policy, kl, 0.1, entropy, 0.01)) == pytest.approx(1 + 0.2 - 0.03)
    assert combine(policy, None, 0.1, None, None) is policy
    assert combine(policy, torch.tensor(math.nan), 0.0, torch.tensor(math.nan), 0.0) is policy


@pytest.mark.parametrize(
    ("value", "old", "target", "clip", "expected"),
    [
        (2.0, 0.0, 1.0, 0.5, 0.5 * max((0.5 - 1) ** 2, (2.0 - 1) ** 2)),
        (1.0, 0.0, 1.0, 0.5, 0.5 * (0.5 - 1) ** 2),
        (0.25, 0.0, 1.0, 0.5, 0.5 * 0.75**2),
        (1.0, 0.0, 1.0, None, 0.0),
        (2.0, 0.0, 1.0, None, 0.5),
    ],
)
def test_value_loss_closed_form(value: float, old: float, target: float, clip: float | None, expected: float) -> None:
    result = value_loss(torch.tensor([[value]]), torch.tensor([[old]]), torch.tensor([[target]]), TRUE, clip)
    assert float(result) == pytest.approx(expected)


def test_explained_variance() -> None:
    returns, mask = torch.tensor([[1.0, 2.0, 3.0, math.nan]]), torch.tensor([[True, True, True, False]])
    assert explained_variance(returns, returns, mask) == 1.0
    assert explained_variance(torch.full((1, 4), 2.0), returns, mask) == pytest.approx(0.0)
    # Residuals 0, 0, 1: variance 2/9 of a variance of 2/3.
    assert explained_variance(torch.tensor([[1.0, 2.0, 2.0, 0.0]]), returns, mask) == pytest.approx(1 - (2 / 9) / (2 / 3))
    assert explained_variance(returns, torch.ones(1, 4), mask) == 0.0
    assert explained_variance(returns, returns, torch.zeros_like(mask)) == 0.0
