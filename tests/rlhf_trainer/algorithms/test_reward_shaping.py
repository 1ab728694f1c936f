"""Order and closed forms of reward shaping; case RC-49."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rlhf_api.spec import OverlongSpec, RewardSpec, TruncationSpec
from rlhf_trainer.algorithms.reward_shaping import loss_rows, num_helped_by_factor, shape

OVERLONG = OverlongSpec(buffer_tokens=20)


def shaped(values: list[float], lengths: list[int], truncated: list[bool], max_new_tokens: int = 100, **fields: Any) -> list[float]:
    result = shape(torch.tensor(values), torch.tensor(lengths), torch.tensor(truncated), RewardSpec(**fields), max_new_tokens)
    assert result.dtype == torch.float64
    return result.tolist()


def test_golden_overlong() -> None:
    lengths = [79, 80, 85, 90, 100, 120]
    assert shaped([0.0] * 6, lengths, [False] * 6, overlong=OVERLONG) == [0, 0, -0.25, -0.5, -1, -1]
    double = OverlongSpec(buffer_tokens=20, penalty_factor=2.0)
    assert shaped([1.0] * 6, lengths, [False] * 6, overlong=double) == [1, 1, 0.5, 0, -1, -1]


@pytest.mark.parametrize(("penalty", "expected"), [(0.0, [2, 0, 0]), (0.5, [2, 1, -0.5]), (-3.0, [2, -3, -3]), (None, [2, 2, -1])])
def test_truncation_penalty_scales_or_replaces(penalty: float | None, expected: list[float]) -> None:
    result = shaped([2.0, 2.0, -1.0], [5, 5, 5], [False, True, True], truncation=TruncationSpec(penalty=penalty))
    assert result == expected


def test_order_is_overlong_then_truncation_then_clip() -> None:
    fields: dict[str, Any] = {"overlong": OVERLONG, "truncation": TruncationSpec(penalty=0.5), "clip": (-0.1, 0.4)}
    # (1 - 1) * .5 = 0 and not 1 * .5 - 1; (2 - 1) * .5 = .5 is clipped to .4.
    assert shaped([1.0, 2.0], [100, 100], [True, True], clip_at="beforeBaseline", **fields) == pytest.approx([0, 0.4])
    assert shaped([1.0, 2.0], [100, 100], [True, True], clip_at="afterBaseline", **fields) == pytest.approx([0, 0.5])


def test_dropped_reward_stays_undefined() -> None:
    result = shaped([math.nan], [5], [True], truncation=TruncationSpec(penalty=-1.0), clip_at="beforeBaseline")
    assert math.isnan(result[0])


def test_masked_truncation_gets_no_loss_and_dropped_rows_never_do() -> None:
    truncated, valid = torch.tensor([False, True, True, False]), torch.tensor([True, True, False, False])
    assert loss_rows(truncated, valid, RewardSpec(truncation=TruncationSpec(mask=True))).tolist() == [True, False, False, False]
    assert loss_rows(truncated, valid, RewardSpec()).tolist() == [True, True, False, False]


def test_factor_that_helps_a_negative_reward_is_counted() -> None:
    values, truncated = torch.tensor([-1.0, -1.0, 1.0]), torch.tensor([True, False, True])
    assert num_helped_by_factor(values, truncated, RewardSpec(truncation=TruncationSpec(penalty=0.5))) == 1
    assert num_helped_by_factor(values, truncated, RewardSpec(truncation=TruncationSpec(penalty=-2.0))) == 0
    assert num_helped_by_factor(values, truncated, RewardSpec()) == 0


def test_rc49_tool_text_does_not_count_in_the_length() -> None:
    mask = torch.tensor([[c == "1" for c in "000111100011111"], [False] * 15])
    lengths = mask.sum(dim=1)
    assert lengths.tolist() == [9, 0]
    # Soft limit 10 of at most 15 tokens: first-to-last counting would see 12 and punish.
    assert shaped([1.0, 1.0], lengths.tolist(), [False, False], 15, overlong=OverlongSpec(buffer_tokens=5)) == [1, 1]
