"""The critic's loss and how well it explains the returns."""

from __future__ import annotations

import torch
from torch import Tensor


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, clip: float | None) -> Tensor:
    """Per-token ``0.5 max((V_clip - G)^2, (V - G)^2)`` with ``V_clip = V_old + clamp(V - V_old, +-clip)``, ``[N, T]``.

    ``clip`` None = ``0.5 (V - G)^2``. values carry the gradient; masked positions are 0 whatever they hold.
    """
    new = torch.where(mask, values, 0.0)
    target = torch.where(mask, returns, 0.0).to(new.dtype)
    squared = (new - target).square()
    if clip is not None:
        old = torch.where(mask, old_values, 0.0).to(new.dtype)
        clipped = old + (new - old).clamp(-clip, clip)
        squared = torch.maximum((clipped - target).square(), squared)
    return 0.5 * squared


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """``1 - Var(G - V) / Var(G)`` over the action tokens (fp64); 0.0 where the returns do not vary."""
    kept = returns[mask].double()
    if kept.numel() == 0:
        return 0.0
    spread = kept.var(correction=0)
    if float(spread) == 0.0:
        return 0.0
    return float(1.0 - (kept - values[mask].double()).var(correction=0) / spread)
