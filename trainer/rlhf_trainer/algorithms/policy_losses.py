"""Per-token policy losses, one registered function a type, and the total that is minimised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_api.spec import PolicyLossSpec

MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """All ``[N, T]``; at masked positions 0, False and a ratio of 1."""

    per_token: Tensor
    clipped_low: Tensor
    """bool: the lower bound decides the loss."""
    clipped_high: Tensor
    """bool: the upper bound, or dual clip's, decides the loss."""
    ratio: Tensor
    """pi / pi_old, detached."""


LossFunction = Callable[[Tensor, Tensor, Tensor, PolicyLossSpec], PolicyLoss]
_LOSSES: dict[str, LossFunction] = {}


def policy(name: str) -> Callable[[LossFunction], LossFunction]:
    """Register a loss ``(log_ratio, advantages, mask, spec) -> PolicyLoss`` under its ``policyLoss.type``."""

    def register(function: LossFunction) -> LossFunction:
        _LOSSES[name] = function
        return function

    return register


def policy_loss(
    logp: Tensor, old_logp: Tensor, advantages: Tensor, mask: Tensor, spec: PolicyLossSpec, weight: Tensor | None = None
) -> PolicyLoss:
    """The configured loss, before aggregation.

    logp (with gradient), old_logp, advantages: ``[N, T]``; mask: bool ``[N, T]``. ``weight``: the trainer/engine correction,
    multiplied in detached and after clipping. Undefined values at masked positions are dropped before any ``exp``.
    """
    log_ratio = torch.where(mask, logp - old_logp, 0.0)
    kept = torch.where(mask, advantages, 0.0).to(logp.dtype)
    loss = _LOSSES[spec.type](log_ratio, kept, mask, spec)
    if weight is None:
        return loss
    scale = torch.where(mask, weight.detach(), 0.0).to(logp.dtype)
    return PolicyLoss(loss.per_token * scale, loss.clipped_low, loss.clipped_high, loss.ratio)


@policy("ppo")
def ppo(log_ratio: Tensor, advantages: Tensor, mask: Tensor, spec: PolicyLossSpec) -> PolicyLoss:
    """``-min(r A, clip(r, 1 - clipLow, 1 + clipHigh) A)``, arXiv 1707.06347; dual clip for A < 0, arXiv 1912.09729."""
    low, high = 1.0 - spec.clip_low, 1.0 + spec.clip_high
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    clipped_low = mask & (advantages < 0) & (ratio < low)
    clipped_high = mask & (advantages > 0) & (ratio > high)
    if spec.dual_clip is not None:
        floor = spec.dual_clip * advantages
        floored = mask & (advantages < 0) & (gain < floor)
        gain = torch.where(floored, floor, gain)
        clipped_high = clipped_high | floored
    return PolicyLoss(per_token=-gain, clipped_low=clipped_low, clipped_high=clipped_high, ratio=ratio.detach())


def combine(policy: Tensor, kl: Tensor | None, kl_coef: float, entropy: Tensor | None, entropy_coef: float | None) -> Tensor:
    """``policy + kl_coef kl - entropy_coef entropy``, all already aggregated scalars.

    None = not part of this run: no KL loss, entropy not computed. A coefficient of 0 leaves its term out altogether, so a
    term that is only logged adds nothing to the backward pass.
    """
    total = policy
    if kl is not None and kl_coef != 0:
        total = total + kl_coef * kl
    if entropy is not None and entropy_coef:
        total = total - entropy_coef * entropy
    return total
