from __future__ import annotations

import math

import pytest
import torch

from rlhf_trainer.algorithms.whitening import whiten


def test_golden() -> None:
    mask = torch.tensor([[True, True], [False, True]])
    result = whiten(torch.tensor([[1.0, 2.0], [99.0, 4.0]]), mask)
    std = math.sqrt(((1 - 7 / 3) ** 2 + (2 - 7 / 3) ** 2 + (4 - 7 / 3) ** 2) / 3)
    assert result[mask].tolist() == pytest.approx([(a - 7 / 3) / std for a in (1, 2, 4)])
    assert result[mask].tolist() == pytest.approx([-1.069045, -0.267261, 1.336306], abs=1e-6)
    assert result[1, 0] == 0


def test_equal_advantages_become_zero_and_not_noise() -> None:
    result = whiten(torch.full((4, 7), 0.1), torch.ones(4, 7, dtype=torch.bool))
    assert result.abs().max() <= 1e-6


def test_small_variance_is_clamped() -> None:
    result = whiten(torch.tensor([[1e-6, -1e-6]], dtype=torch.float64), torch.tensor([[True, True]]))
    assert result[0].tolist() == pytest.approx([1e-6 / 1e-4, -1e-6 / 1e-4])


def test_large_offset_does_not_lose_the_variance() -> None:
    result = whiten(torch.tensor([[1e4 + 1, 1e4 - 1]]), torch.tensor([[True, True]]))
    assert result[0].tolist() == pytest.approx([1, -1])


def test_without_scale_only_the_mean_goes() -> None:
    result = whiten(torch.tensor([[1.0, 2.0, 6.0]]), torch.ones(1, 3, dtype=torch.bool), scale=False)
    assert result[0].tolist() == [-2, -1, 3]


def test_f7_no_action_token_is_a_no_op() -> None:
    assert whiten(torch.full((2, 2), math.nan), torch.zeros(2, 2, dtype=torch.bool)).tolist() == [[0, 0], [0, 0]]
