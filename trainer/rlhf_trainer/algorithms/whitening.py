"""Whitening of advantages over every action token of a step, before it is cut into optimizer updates."""

from __future__ import annotations

import torch
from torch import Tensor

MIN_VARIANCE = 1e-8


def whiten(advantages: Tensor, mask: Tensor, *, scale: bool = True) -> Tensor:
    """``(A - mean) / sqrt(max(var, 1e-8))`` over the action tokens; biased variance, two passes, fp64 sums.

    advantages: ``[N, T]``; mask: bool ``[N, T]``. Masked entries become 0; without action tokens all are 0.
    ``scale=False`` (``stdNorm: false``) subtracts the mean only.
    """
    count = mask.sum()
    if int(count) == 0:
        return torch.zeros_like(advantages)
    selected = torch.where(mask, advantages, 0.0).double()
    centred = torch.where(mask, selected - selected.sum() / count, 0.0)
    if scale:
        variance = centred.square().sum() / count
        centred = centred * variance.clamp(min=MIN_VARIANCE).rsqrt()
    return centred.to(advantages.dtype)
