from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rlhf_api.spec import CorrectionSpec
from rlhf_trainer.algorithms.correction import Gap, gap, weights

OLD = torch.tensor([[-1.0, -1.0, -1.0, -1.0]], dtype=torch.float64)
LOG_WEIGHTS = torch.tensor([[0.2, math.log(0.4), math.log(6.0), 3.0]], dtype=torch.float64)
ENGINE = OLD - LOG_WEIGHTS
MASK = torch.tensor([[True, True, True, False]])


def test_golden_weight() -> None:
    weight = weights(torch.tensor([[-1.0]]), torch.tensor([[-1.2]]), torch.tensor([[True]]), CorrectionSpec())
    assert float(weight) == pytest.approx(1.221403, abs=1e-6)


@pytest.mark.parametrize(("mode", "expected"), [("clip", [math.exp(0.2), 0.5, 5.0, 1.0]), ("mask", [math.exp(0.2), 0.0, 0.0, 1.0])])
def test_clip_bounds_and_mask_drops(mode: Any, expected: list[float]) -> None:
    assert weights(OLD, ENGINE, MASK, CorrectionSpec(mode=mode))[0].tolist() == pytest.approx(expected)


def test_overflowing_weight_is_bounded_or_dropped() -> None:
    engine = torch.tensor([[-1000.0]])
    assert float(weights(torch.tensor([[0.0]]), engine, torch.tensor([[True]]), CorrectionSpec())) == 5.0
    assert float(weights(torch.tensor([[0.0]]), engine, torch.tensor([[True]]), CorrectionSpec(mode="mask"))) == 0.0


def test_weight_is_detached() -> None:
    old = OLD.clone().requires_grad_()
    assert not weights(old, ENGINE, MASK, CorrectionSpec()).requires_grad


def test_gap_closed_form() -> None:
    engine, old = torch.tensor([[-1.2, -0.5]], dtype=torch.float64), torch.tensor([[-1.0, -0.6]], dtype=torch.float64)
    result = gap(engine, old, torch.tensor([[True, True]]))
    assert result.mean == pytest.approx((-0.2 + 0.1) / 2)
    assert result.max_abs == pytest.approx(0.2)
    assert result.k3 == pytest.approx(((math.exp(0.2) - 1 - 0.2) + (math.exp(-0.1) - 1 + 0.1)) / 2)
    differences = [abs(math.exp(-1.2) - math.exp(-1.0)), abs(math.exp(-0.5) - math.exp(-0.6))]
    assert differences[0] == pytest.approx(0.066685, abs=1e-6)
    assert result.mean_prob_difference == pytest.approx(sum(differences) / 2)
    assert result.max_prob_difference == pytest.approx(differences[0])
    assert result.filtered_share == 0
    assert not result.healthy


def test_filtered_share_counts_weights_out_of_bounds() -> None:
    assert gap(ENGINE, OLD, MASK, CorrectionSpec()).filtered_share == pytest.approx(2 / 3)


def test_gap_of_nothing_and_of_equals_is_zero_and_healthy() -> None:
    nothing = gap(OLD, ENGINE, torch.zeros_like(MASK))
    assert nothing == Gap(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert gap(OLD, OLD, MASK) == nothing
    assert nothing.healthy
