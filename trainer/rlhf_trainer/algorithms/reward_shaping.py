"""From the weighted reward of a rollout to the scalar that the baseline sees. The order is part of the contract:
overlong penalty, truncation penalty, then the clip if it comes before the baseline.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf_api.spec import OverlongSpec, RewardSpec


def shape(values: Tensor, response_lengths: Tensor, truncated: Tensor, reward: RewardSpec, max_new_tokens: int) -> Tensor:
    """Shaped rewards ``[N]`` fp64.

    values: ``[N]``, NaN where a rollout was dropped (stays NaN). response_lengths: ``[N]`` number of action tokens;
    environment text never counts. truncated: bool ``[N]``.
    """
    shaped = values.double()
    if reward.overlong is not None:
        shaped = shaped - overlong_penalty(response_lengths, reward.overlong, max_new_tokens)
    penalty = reward.truncation.penalty
    if penalty is not None:
        cut = torch.full_like(shaped, penalty) if penalty < 0 else penalty * shaped
        shaped = torch.where(truncated, torch.where(shaped.isnan(), shaped, cut), shaped)
    return clip(shaped, reward) if reward.clip_at == "beforeBaseline" else shaped


def overlong_penalty(response_lengths: Tensor, spec: OverlongSpec, max_new_tokens: int) -> Tensor:
    """Soft length penalty ``[N]`` fp64, >= 0: grows over the last ``bufferTokens`` before the limit (DAPO, arXiv 2503.14476)."""
    over = (response_lengths.double() - (max_new_tokens - spec.buffer_tokens)).clamp(0.0, spec.buffer_tokens)
    return spec.penalty_factor * over / spec.buffer_tokens


def clip(values: Tensor, reward: RewardSpec) -> Tensor:
    """``reward.clip`` applied to ``[N]`` scalars; NaN stays NaN."""
    return values if reward.clip is None else values.clamp(*reward.clip)


def loss_rows(truncated: Tensor, valid: Tensor, reward: RewardSpec) -> Tensor:
    """bool ``[N]``: rollouts that get a loss. Dropped ones do not; nor do truncated ones under ``truncation.mask``."""
    return valid & ~truncated if reward.truncation.mask else valid


def num_helped_by_factor(values: Tensor, truncated: Tensor, reward: RewardSpec) -> int:
    """Truncated rollouts with a negative reward that a penalty factor below 1 makes *better*: worth a warning."""
    penalty = reward.truncation.penalty
    if penalty is None or not 0 <= penalty < 1:
        return 0
    return int(((values < 0) & truncated).sum())
