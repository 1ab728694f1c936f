"""KL estimators, loss term and controllers. Faults F11, F19, F20, case RC-71."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.spec import KlSpec
from rlhf_trainer.algorithms.kl import AdaptiveKl, FixedKl, controller, estimate, loss_term, mean_k3
from rlhf_trainer.errors import ConfigError

TRUE = torch.tensor([[True]])


def of(d: float, estimator: Any) -> float:
    return float(estimate(torch.tensor([[d]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64), estimator, TRUE))


@pytest.mark.parametrize(
    ("estimator", "d", "expected"),
    [
        ("k1", 0.5, 0.5), ("k2", 0.5, 0.125), ("k3", 0.5, math.exp(-0.5) - 1 + 0.5), ("k3", 0.5, 0.106531),
        ("k1", -0.5, -0.5), ("k2", -0.5, 0.125), ("k3", -0.5, math.exp(0.5) - 1 - 0.5), ("k3", -0.5, 0.148721),
        ("k1", 12.0, 10.0), ("k1", -12.0, -10.0), ("k2", 12.0, 10.0), ("k2", -12.0, 10.0), ("k3", 12.0, 10.0), ("k3", -12.0, 10.0),
    ],
)  # fmt: skip
def test_golden_estimators(estimator: str, d: float, expected: float) -> None:
    assert of(d, estimator) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("d", [-1000.0, 1000.0])
def test_a_huge_log_ratio_has_a_finite_gradient(estimator: Any, d: float) -> None:
    logp = torch.tensor([[d]], requires_grad=True)
    value = estimate(logp, torch.zeros(1, 1), estimator, TRUE)
    (gradient,) = torch.autograd.grad(value.sum(), logp)
    assert float(value.detach()) == (d / abs(d) * 10 if estimator == "k1" else 10)
    assert gradient.tolist() == [[0.0]]


@given(d=st.floats(-30, 30))
def test_k3_is_not_negative(d: float) -> None:
    assert 0 <= of(d, "k3") <= 10


def test_unbiased_gradient_keeps_the_value() -> None:
    logp = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    ref, old, mask = torch.tensor([[-1.5, -1.0]]), torch.tensor([[-1.1, -2.2]]), torch.tensor([[True, True]])
    for estimator in ("k1", "k2", "k3"):
        assert torch.equal(loss_term(logp, ref, old, estimator, True, mask), estimate(logp, ref, estimator, mask))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_f20_unbiased_gradient_is_that_of_weighted_k2(estimator: Any) -> None:
    logp = torch.tensor([[-1.0, -2.0, -0.1]], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([[-1.5, -1.0, -3.0]], dtype=torch.float64)
    old = torch.tensor([[-1.1, -2.2, -9.0]], dtype=torch.float64)
    loss_term(logp, ref, old, estimator, True, torch.ones(1, 3, dtype=torch.bool)).sum().backward()
    weights = [math.exp(0.1), math.exp(0.2), 10.0]
    d = [0.5, -1.0, 2.9]
    assert logp.grad is not None
    assert logp.grad[0].tolist() == pytest.approx([w * x for w, x in zip(weights, d, strict=True)])


def test_f20_k1_as_a_loss_is_refused() -> None:
    x = torch.zeros(1, 1)
    with pytest.raises(ConfigError, match="k1 with placement loss has no gradient"):
        loss_term(x, x, x, "k1", False, TRUE)


def test_f20_k1_has_no_gradient_in_expectation_and_the_unbiased_one_has_the_true_gradient() -> None:
    """Over a whole vocabulary: the expectation is a sum, and the truth is the gradient of sum p (log p - log q)."""
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([1.0, 0.2, -0.5, 0.0], dtype=torch.float64), dim=0)

    logp = torch.log_softmax(logits, dim=0)
    (truth,) = torch.autograd.grad((logp.exp() * (logp - reference)).sum(), logits)

    logp = torch.log_softmax(logits, dim=0)
    probability = logp.detach().exp()
    every = torch.ones(1, 4, dtype=torch.bool)
    plain = (probability * estimate(logp[None], reference[None], "k1", every)[0]).sum()
    assert torch.autograd.grad(plain, logits, retain_graph=True)[0].abs().max() < 1e-12
    # Sampled from another old policy; the weight corrects for it.
    old = torch.log_softmax(torch.tensor([0.0, -0.5, 0.5, 0.4], dtype=torch.float64), dim=0)
    term = loss_term(logp[None], reference[None], old[None], "k1", True, every)[0]
    (unbiased,) = torch.autograd.grad((old.exp() * term).sum(), logits)
    torch.testing.assert_close(unbiased, truth)


def test_rc71_adaptive_golden() -> None:
    kl = AdaptiveKl(coef=0.1, target=1.0, horizon=100)
    seen = []
    for _ in range(3):
        kl = kl.update(mean_k3=50.0, num_rollouts=10)
        seen.append(kl.coef)
    assert seen == pytest.approx([0.102, 0.10404, 0.1061208])
    assert kl.update(0.5, 10).coef < kl.coef


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan])
def test_rc71_bad_target_is_refused(target: float) -> None:
    with pytest.raises(ConfigError, match=r"kl\.target"):
        AdaptiveKl(coef=0.1, target=target, horizon=100)


@pytest.mark.parametrize("horizon", [0, -5])
def test_rc71_bad_horizon_is_refused(horizon: int) -> None:
    with pytest.raises(ConfigError, match=r"kl\.horizon"):
        AdaptiveKl(coef=0.1, target=1.0, horizon=horizon)


def test_rc71_adaptive_with_coefficient_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"kl\.coef"):
        controller(KlSpec(coef=0.0, target=1.0))


def test_rc71_fixed_never_moves() -> None:
    kl = controller(KlSpec(coef=0.1))
    assert isinstance(kl, FixedKl)
    assert kl.update(1e9, 10_000).coef == 0.1


@pytest.mark.parametrize("spec", [KlSpec(coef=0.1), KlSpec(coef=0.1, target=1.0, horizon=100)])
def test_f11_controller_state_round_trips(spec: KlSpec) -> None:
    kl = controller(spec).update(5.0, 10)
    restored = controller(spec, kl.state_dict())
    assert restored == kl
    assert type(kl).from_state(kl.state_dict()) == kl
    assert restored.update(0.1, 7) == kl.update(0.1, 7)


@given(num_rollouts=st.integers(0, 10**9), mean=st.floats(0, 10))
def test_f19_coefficient_stays_positive_for_any_number_of_rollouts(num_rollouts: int, mean: float) -> None:
    assert AdaptiveKl(0.1, 1.0, 100).update(mean, num_rollouts).coef > 0


def test_mean_k3_is_a_token_mean() -> None:
    logp, mask = torch.tensor([[0.5, -0.5, 9.0], [0.5, 9.0, float("nan")]]), torch.tensor([[True, True, False], [True, False, False]])
    assert mean_k3(logp, torch.zeros(2, 3), mask) == pytest.approx((2 * 0.106531 + 0.148721) / 3, abs=1e-6)
    assert mean_k3(logp, logp, torch.zeros_like(mask)) == 0.0


def test_controller_refuses_an_undefined_kl() -> None:
    with pytest.raises(ValueError, match="nan"):
        AdaptiveKl(0.1, 1.0, 100).update(math.nan, 10)
