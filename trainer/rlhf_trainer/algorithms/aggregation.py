"""From per-token losses to one number, with the counts of the whole optimizer step as denominators.

The denominators are known before the first micro-batch, so a micro-batch contributes its local sum over them, and the
contributions of any cut into micro-batches and ranks add up to the same loss and gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf_api.spec import Aggregation


@dataclass(frozen=True, slots=True)
class Denominators:
    """Counts over all micro-batches of all ranks of one optimizer step."""

    aggregation: Aggregation
    tokens: int
    """Action tokens T."""
    rows: int
    """Rows with at least one action token, N_S."""
    norm_length: int | None = None
    """Constant C of ``seq-mean-token-sum-norm``, in tokens."""


def denominators(masks: Sequence[NDArray[np.bool_]], aggregation: Aggregation, norm_length: int | None = None) -> Denominators:
    """Counts of one optimizer step. masks: the shifted action mask of each row that gets a loss, ``[L - 1]`` each.

    >>> denominators([np.array([True, True, False]), np.array([False])], "token-mean")
    Denominators(aggregation='token-mean', tokens=2, rows=1, norm_length=None)
    """
    if aggregation == "seq-mean-token-sum-norm" and norm_length is None:
        raise ValueError("seq-mean-token-sum-norm needs norm_length (spec.rl.policyLoss.normLength)")
    lengths = [int(mask.sum()) for mask in masks]
    return Denominators(aggregation, tokens=sum(lengths), rows=sum(length > 0 for length in lengths), norm_length=norm_length)


def aggregate(per_token: Tensor, mask: Tensor, denominators: Denominators) -> Tensor:
    """This micro-batch's share of the step's loss: local sum over the global denominator, a scalar.

    per_token, mask: ``[n, t]``, whole rows. Without action tokens it is 0 with a zero gradient, still part of the graph, so
    that every rank makes the same collective calls.
    """
    kept = torch.where(mask, per_token, 0.0)
    if denominators.aggregation == "token-mean":
        return kept.sum() / max(denominators.tokens, 1)
    if denominators.aggregation == "token-sum":
        return kept.sum()
    if denominators.aggregation == "seq-mean-token-mean":
        return (kept.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).sum() / max(denominators.rows, 1)
    if denominators.norm_length is None:
        raise ValueError("seq-mean-token-sum-norm needs norm_length")
    return kept.sum() / (max(denominators.rows, 1) * denominators.norm_length)
