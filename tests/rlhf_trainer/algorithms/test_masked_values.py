"""What stands at a masked position can't reach loss, gradient or metrics. Fault F17, case RC-44."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable

import pytest
import torch

from rlhf_api.spec import CorrectionSpec, PolicyLossSpec
from rlhf_trainer.algorithms import correction, finite
from rlhf_trainer.algorithms.aggregation import aggregate, denominators
from rlhf_trainer.algorithms.kl import loss_term, mean_k3
from rlhf_trainer.algorithms.policy_losses import policy_loss
from rlhf_trainer.algorithms.value_losses import explained_variance, value_loss
from rlhf_trainer.algorithms.whitening import whiten

MASK = torch.tensor([[True, False]])
BAD = [math.nan, -math.inf, math.inf, -1000.0, 1000.0]
NEW, OLD = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.1, -1.2]])


def pair(clean: torch.Tensor, bad: float) -> torch.Tensor:
    return torch.where(MASK, clean, bad)


def corrected(old: torch.Tensor) -> torch.Tensor:
    return correction.weights(old, old - 0.1, MASK, CorrectionSpec())


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "ppo": lambda x, y: policy_loss(x, y, y, MASK, PolicyLossSpec(dual_clip=3.0)).per_token,
    "corrected": lambda x, y: policy_loss(x, y, y, MASK, PolicyLossSpec(), corrected(y)).per_token,
    "bad weight": lambda x, y: policy_loss(x, OLD, OLD, MASK, PolicyLossSpec(), y).per_token,
    "k2": lambda x, y: loss_term(x, y, y, "k2", False, MASK),
    "k3": lambda x, y: loss_term(x, y, y, "k3", False, MASK),
    "unbiased k3": lambda x, y: loss_term(x, y, y, "k3", True, MASK),
    "value": lambda x, y: value_loss(x, y, y, MASK, 0.5),
    "entropy": lambda x, y: x + 0 * y,
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", LOSSES)
def test_f17_rc44_masked_value_does_not_reach_the_loss(name: str, bad: float) -> None:
    total = denominators(list(MASK.numpy()), "token-mean")
    results = []
    for second in (-1.2, bad):
        new = NEW.clone().requires_grad_()
        loss = aggregate(LOSSES[name](new, pair(OLD, second)), MASK, total)
        loss.backward()
        assert new.grad is not None
        assert new.grad[0, 1] == 0
        results.append((loss.item(), new.grad.tolist()))
    assert results[0] == results[1]
    assert math.isfinite(results[0][0])


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", [name for name in LOSSES if name != "entropy"])
def test_f17_rc44_masked_positions_of_a_per_token_loss_are_zero(name: str, bad: float) -> None:
    assert LOSSES[name](pair(NEW, bad), pair(OLD, bad))[0, 1] == 0


@pytest.mark.parametrize("bad", BAD)
def test_f17_rc44_masked_value_in_the_trained_tensor_itself(bad: float) -> None:
    total = denominators(list(MASK.numpy()), "token-mean")
    new = pair(NEW, bad).requires_grad_()
    for loss in (
        policy_loss(new, OLD, OLD, MASK, PolicyLossSpec()).per_token,
        loss_term(new, OLD, OLD, "k3", True, MASK),
        value_loss(new, OLD, OLD, MASK, 0.5),
        new,
    ):
        (gradient,) = torch.autograd.grad(aggregate(loss, MASK, total), new)
        assert bool(torch.isfinite(gradient).all())
        assert gradient[0, 1] == 0


@pytest.mark.parametrize("bad", BAD)
def test_f17_rc44_masked_value_does_not_reach_metrics(bad: float) -> None:
    clean, dirty = pair(OLD, -1.2), pair(OLD, bad)
    spec = CorrectionSpec(mode="mask")
    assert correction.gap(dirty, NEW, MASK, spec) == correction.gap(clean, NEW, MASK, spec)
    assert mean_k3(NEW, dirty, MASK) == mean_k3(NEW, clean, MASK)
    assert explained_variance(dirty, NEW, MASK) == explained_variance(clean, NEW, MASK)
    assert torch.equal(whiten(dirty, MASK), whiten(clean, MASK))
    assert torch.equal(correction.weights(NEW, dirty, MASK, spec), correction.weights(NEW, clean, MASK, spec))
    result = policy_loss(NEW, dirty, OLD, MASK, PolicyLossSpec())
    assert result.ratio[0, 1] == 1
    assert not result.clipped_low[0, 1]
    assert not result.clipped_high[0, 1]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_f17_rc44_unmasked_value_stops_with_step_and_sample(bad: float) -> None:
    tensor, mask = torch.zeros(2, 3), torch.tensor([[True, True, False], [False, True, True]])
    tensor[0, 2] = math.nan
    finite.check("log-prob", tensor, mask, [31, 32])
    tensor[1, 2] = bad
    with pytest.raises(finite.NonFiniteError, match=rf"^step 7: log-prob is {bad} at row 32, position 2 \(1 such"):
        finite.check("log-prob", tensor, mask, [31, 32], step=7)


def test_non_finite_error_survives_the_way_between_processes() -> None:
    with pytest.raises(finite.NonFiniteError) as caught:
        finite.check("reward", torch.tensor([0.0, math.nan]), torch.tensor([True, True]))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
