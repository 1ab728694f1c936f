"""Recursions walk action tokens only. Faults F1 and F2, case RC-50."""

from __future__ import annotations

import pytest
import torch

from rlhf_trainer.algorithms.returns import ActionTokens, discounted_return, gae

GAP = torch.tensor([[True, True, False, False, False, True]])


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def with_gap(tensor: torch.Tensor, at: int, fill: float, count: int) -> torch.Tensor:
    """Insert ``count`` columns of ``fill`` before column ``at``."""
    filler = torch.full((tensor.shape[0], count), fill, dtype=tensor.dtype)
    return torch.cat([tensor[:, :at], filler, tensor[:, at:]], dim=1)


def test_gae_golden_gap_without_values() -> None:
    rewards = row(0, 0, 0, 0, 0, 1)
    result = gae(rewards, torch.zeros_like(rewards), GAP, gamma=0.9, lambda_=1.0)
    assert result.advantages[0].tolist() == pytest.approx([0.81, 0.9, 0, 0, 0, 1])
    assert gae(rewards, torch.zeros_like(rewards), GAP, 0.0, 1.0).advantages[0].tolist() == [0, 0, 0, 0, 0, 1]


def test_gae_golden_gap_with_values() -> None:
    result = gae(row(0, 0, 0, 0, 0, 1), row(0.5, 0.4, 0.9, 0.9, 0.9, 0.6), GAP, gamma=0.9, lambda_=0.95)
    # Closed form: delta_3 = 1 - .6; delta_2 = .9 * .6 - .4; delta_1 = .9 * .4 - .5; A_t = delta_t + .855 A_next.
    a3 = 1 - 0.6
    a2 = (0.9 * 0.6 - 0.4) + 0.855 * a3
    a1 = (0.9 * 0.4 - 0.5) + 0.855 * a2
    assert result.advantages[0].tolist() == pytest.approx([a1, a2, 0, 0, 0, a3])
    assert result.advantages[0].tolist() == pytest.approx([0.27211, 0.482, 0, 0, 0, 0.4], abs=1e-6)
    assert result.returns[0].tolist() == pytest.approx([0.77211, 0.882, 0, 0, 0, 1.0], abs=1e-6)


def test_gae_with_gamma_and_lambda_one_is_the_rest_of_the_reward_minus_value() -> None:
    rewards, values = row(0.1, -0.2, 0.3, 1.0), row(0.4, 0.3, 0.2, 0.1)
    result = gae(rewards, values, torch.ones(1, 4, dtype=torch.bool), 1.0, 1.0)
    assert result.returns[0].tolist() == pytest.approx([1.2, 1.1, 1.3, 1.0])
    assert result.advantages[0].tolist() == pytest.approx([0.8, 0.8, 1.1, 0.9])


@pytest.mark.parametrize("fill", [0.0, 7.5, float("nan"), float("inf")])
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("at", [0, 1, 3, 4])
def test_f1_gae_is_bit_equal_with_masked_tokens_inserted(fill: float, count: int, at: int) -> None:
    generator = torch.Generator().manual_seed(at)
    rewards, values = torch.randn(3, 4, generator=generator), torch.randn(3, 4, generator=generator)
    mask = torch.ones(3, 4, dtype=torch.bool)
    plain = gae(rewards, values, mask, 0.9, 0.95)
    spread = with_gap(mask, at, False, count)
    result = gae(with_gap(rewards, at, fill, count), with_gap(values, at, fill, count), spread, 0.9, 0.95)
    assert torch.equal(result.advantages[spread], plain.advantages[mask])
    assert torch.equal(result.returns[spread], plain.returns[mask])
    assert bool((result.advantages[~spread] == 0).all())
    assert bool((result.returns[~spread] == 0).all())


@pytest.mark.parametrize("fill", [0.0, 3.0, float("nan")])
@pytest.mark.parametrize("at", [0, 1, 3, 4])
def test_f2_return_is_bit_equal_with_masked_tokens_inserted(fill: float, at: int) -> None:
    rewards = torch.randn(3, 4, generator=torch.Generator().manual_seed(at))
    mask = torch.ones(3, 4, dtype=torch.bool)
    spread = with_gap(mask, at, False, 3)
    result = discounted_return(with_gap(rewards, at, fill, 3), spread, 0.7)
    assert torch.equal(result.returns[spread], discounted_return(rewards, mask, 0.7).returns[mask])


def test_return_closed_form() -> None:
    result = discounted_return(row(1, 10, 100), torch.tensor([[True, True, True]]), 0.5)
    assert result.returns[0].tolist() == [1 + 5 + 25, 10 + 50, 100]


@pytest.mark.parametrize("trailing", [0, 2])
@pytest.mark.parametrize(("gamma", "expected"), [(0.9, [0.81, 0.9, 1.0]), (0.0, [0.0, 0.0, 1.0])])
def test_rc50_observations_carry_no_credit(trailing: int, gamma: float, expected: list[float]) -> None:
    mask = torch.tensor([[True, True, False, False, False, True] + [False] * trailing])
    rewards = ActionTokens.of(mask).at_last(torch.tensor([1.0]))
    assert rewards[0, 5] == 1.0
    for result in (gae(rewards, torch.zeros(mask.shape), mask, gamma, 1.0), discounted_return(rewards, mask, gamma)):
        assert result.advantages[mask].tolist() == pytest.approx(expected)
        assert bool((result.advantages[~mask] == 0).all())


def test_rows_of_different_length_do_not_mix() -> None:
    mask = torch.tensor([[False, True, True, True], [True, False, False, False], [False, False, False, False]])
    placed = ActionTokens.of(mask).at_last(torch.tensor([1.0, 2.0, 3.0]))
    assert placed.tolist() == [[0, 0, 0, 1], [2, 0, 0, 0], [0, 0, 0, 0]]
    result = discounted_return(placed, mask, 0.5)
    assert result.returns.tolist() == [[0, 0.25, 0.5, 1], [2, 0, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("shape", [(0, 4), (2, 0), (2, 3)])
def test_nothing_to_walk(shape: tuple[int, int]) -> None:
    mask = torch.zeros(shape, dtype=torch.bool)
    assert gae(torch.ones(shape), torch.ones(shape), mask, 1.0, 1.0).advantages.tolist() == torch.zeros(shape).tolist()


def test_long_rows_are_summed_in_fp64() -> None:
    rewards, mask = torch.full((1, 20_000), 0.1), torch.ones(1, 20_000, dtype=torch.bool)
    exact = 20_000 * float(torch.tensor(0.1))
    assert float(discounted_return(rewards, mask, 1.0).returns[0, 0]) == pytest.approx(exact, rel=1e-12)
