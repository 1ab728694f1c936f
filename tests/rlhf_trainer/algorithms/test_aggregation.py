"""Aggregation with the denominators of the whole optimizer step. Faults F4, F6, F7, case RC-52."""

from __future__ import annotations

import itertools
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.spec import Aggregation
from rlhf_trainer.algorithms.aggregation import Denominators, aggregate, denominators

MODES = get_args(Aggregation)
LOSSES = torch.tensor([[1.0, 2.0, 9.0], [4.0, 9.0, 9.0], [9.0, 9.0, 9.0]])
MASK = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])


def counts(mask: torch.Tensor, mode: Aggregation, norm_length: int = 8) -> Denominators:
    return denominators(list(mask.numpy()), mode, norm_length)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", (1 + 2 + 4) / 3),
        ("seq-mean-token-mean", ((1 + 2) / 2 + 4) / 2),
        ("seq-mean-token-sum-norm", (1 + 2 + 4) / (2 * 8)),
        ("token-sum", 1 + 2 + 4),
    ],
)
def test_closed_forms(mode: Aggregation, expected: float) -> None:
    assert float(aggregate(LOSSES, MASK, counts(MASK, mode))) == pytest.approx(expected)


def test_rows_without_action_tokens_are_not_counted() -> None:
    rows = [np.array([True, True, False]), np.array([False]), np.array([True])]
    assert denominators(rows, "token-mean") == Denominators("token-mean", tokens=3, rows=2)


def test_constant_denominator_needs_its_length() -> None:
    with pytest.raises(ValueError, match="normLength"):
        denominators([np.array([True])], "seq-mean-token-sum-norm")


def gradient(lengths: list[int], mode: Aggregation) -> torch.Tensor:
    mask = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    loss = torch.ones(mask.shape, requires_grad=True)
    aggregate(loss, mask, counts(mask, mode)).backward()
    assert loss.grad is not None
    return loss.grad


def test_f4_a_longer_row_leaves_the_other_rows_gradient_only_under_a_constant_length() -> None:
    def other(mode: Aggregation, length: int) -> float:
        return float(gradient([2, length], mode)[0, 0])

    assert other("seq-mean-token-sum-norm", 3) == other("seq-mean-token-sum-norm", 6)
    assert other("token-mean", 3) != other("token-mean", 6)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=9),
    mode=st.sampled_from(MODES),
    cuts=st.sets(st.integers(1, 8), max_size=4),
)
def test_f6_any_cut_into_micro_batches_gives_the_same_loss_and_gradient(lengths: list[int], mode: Aggregation, cuts: set[int]) -> None:
    width = 6
    mask = torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]
    total = counts(mask, mode)
    loss = torch.randn(mask.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    whole = aggregate(loss, mask, total)
    (expected,) = torch.autograd.grad(whole, loss)

    edges = [0, *sorted(c for c in cuts if c < len(lengths)), len(lengths)]
    parts = []
    for start, end in itertools.pairwise(edges):
        longest = max(max(lengths[start:end]), 1)  # each micro-batch is padded to its own width
        parts.append(aggregate(loss[start:end, :longest], mask[start:end, :longest], total))
    together = torch.stack(parts).sum()
    (found,) = torch.autograd.grad(together, loss)
    torch.testing.assert_close(together, whole)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("mode", MODES)
def test_f7_rc52_whole_batch_masked_gives_zero_loss_and_zero_gradient(mode: Aggregation) -> None:
    mask = torch.zeros(2, 3, dtype=torch.bool)
    per_token = torch.full((2, 3), float("nan"), requires_grad=True)
    loss = aggregate(per_token, mask, counts(mask, mode))
    loss.backward()
    assert loss.item() == 0.0
    assert per_token.grad is not None
    assert bool((per_token.grad == 0).all())


@pytest.mark.parametrize("mode", MODES)
def test_f7_rc52_a_masked_micro_batch_or_rank_leaves_the_others_their_weight(mode: Aggregation) -> None:
    total = counts(MASK, mode)
    alone = aggregate(LOSSES[:2], MASK[:2], total)
    assert aggregate(LOSSES[2:], MASK[2:], total) == 0
    assert aggregate(LOSSES, MASK, total) == alone
    assert aggregate(LOSSES[:0], MASK[:0], total) == 0


@settings(max_examples=30, deadline=None)
@given(mode=st.sampled_from(MODES), extra=st.integers(1, 4), order=st.permutations(range(3)))
def test_order_and_empty_rows_do_not_matter(mode: Aggregation, extra: int, order: list[int]) -> None:
    losses = torch.cat([LOSSES[order], torch.full((extra, 3), float("inf"))])
    mask = torch.cat([MASK[order], torch.zeros(extra, 3, dtype=torch.bool)])
    torch.testing.assert_close(aggregate(losses, mask, counts(mask, mode)), aggregate(LOSSES, MASK, counts(MASK, mode)))
