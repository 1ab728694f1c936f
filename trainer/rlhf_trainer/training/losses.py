"""The losses of one micro-batch: packed model outputs and rows -> a scalar to minimise and named sums for the metrics.

A micro-batch's loss is its local sum over the denominators of the whole optimizer step, so micro-batches and ranks add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_api.spec import CorrectionSpec, RlSpec
from rlhf_trainer.algorithms import correction, finite, kl, policy_losses
from rlhf_trainer.algorithms.aggregation import Denominators, aggregate
from rlhf_trainer.algorithms.value_losses import value_loss
from rlhf_trainer.models.packing import Packed
from rlhf_trainer.types import TokenRow


@dataclass(frozen=True, slots=True)
class MicroLoss:
    loss: Tensor
    """Scalar with gradient."""
    sums: dict[str, float]
    """Add up over micro-batches and ranks, except keys that end in ``_max`` (by maximum)."""


def actor_loss(
    logprobs: Tensor, entropy: Tensor, packed: Packed, rows: Sequence[TokenRow], denominators: Denominators, kl_coef: float, rl: RlSpec
) -> MicroLoss:
    """Policy loss, KL loss and entropy bonus. ``logprobs`` and ``entropy`` are flat ``[P]`` (entropy may be empty).

    Row fields: ``advantages``; ``engine_logprobs``; ``ref_logprobs`` where there is a reference. Without ``old_logprobs`` the
    policy that sampled is the policy of this forward pass (one update a step), so they are its own values, held constant.
    """
    mask = packed.mask
    logp = packed.to_rows(logprobs)
    given = rows[0].fields if rows else {}
    _require_finite(logp, mask, rows, "log-prob of the policy")
    old = packed.field(rows, "old_logprobs") if "old_logprobs" in given else logp.detach()
    _require_finite(old, mask, rows, "old log-prob of the policy")
    advantages = packed.field(rows, "advantages")
    _require_finite(advantages, mask, rows, "advantage")
    engine = packed.field(rows, "engine_logprobs") if "engine_logprobs" in given else None
    if engine is not None:
        _require_finite(engine, mask, rows, "log-prob of the engine")
    weight = correction.weights(old, engine, mask, rl.correction) if rl.correction is not None and engine is not None else None
    policy = policy_losses.policy_loss(logp, old, advantages, mask, rl.policy_loss, weight)
    policy_term = aggregate(policy.per_token, mask, denominators)

    kl_term = None
    tokens = int(mask.sum())
    sums = {
        "tokens": float(tokens),
        "rows": float(mask.any(dim=1).sum()),
        "policy_loss": float(policy_term.detach()),
        "clipped_low": float(policy.clipped_low.sum()),
        "clipped_high": float(policy.clipped_high.sum()),
        "approx_kl_sum": float(torch.where(mask, old - logp, 0.0).sum().detach()),
    }
    if tokens:
        sums["ratio_max"] = float(policy.ratio[mask].max())
    if "ref_logprobs" in given:
        ref = packed.field(rows, "ref_logprobs")
        _require_finite(ref, mask, rows, "log-prob of the reference")
        sums["kl_tokens"] = float(tokens)
        sums["kl_k3_sum"] = float(kl.estimate(old, ref, "k3", mask).sum().detach())
        sums["kl_sum"] = float(kl.estimate(old, ref, rl.kl.estimator, mask).sum().detach())
        if rl.kl.placement == "loss":
            kl_term = aggregate(kl.loss_term(logp, ref, old, rl.kl.estimator, rl.kl.unbiased_gradient, mask), mask, denominators)
            sums["kl_loss"] = float(kl_term.detach())
    entropy_term = None
    if entropy.numel():
        per_token = packed.to_rows(entropy)
        entropy_term = aggregate(per_token, mask, denominators)
        sums["entropy_sum"] = float(torch.where(mask, per_token, 0.0).sum().detach())
    if engine is not None:
        sums |= gap_sums(engine, old.detach(), mask, rl.correction)
    loss = policy_losses.combine(policy_term, kl_term, kl_coef, entropy_term, rl.policy_loss.entropy_coef)
    sums["loss"] = float(loss.detach())
    return MicroLoss(loss, sums)


def critic_loss(values: Tensor, packed: Packed, rows: Sequence[TokenRow], denominators: Denominators, rl: RlSpec) -> MicroLoss:
    """Clipped value loss. ``values`` flat ``[P]``; row fields ``returns`` and ``old_values``."""
    mask = packed.mask
    new = packed.to_rows(values)
    _require_finite(new, mask, rows, "value of the critic")
    returns = packed.field(rows, "returns")
    _require_finite(returns, mask, rows, "return")
    old = packed.field(rows, "old_values")
    _require_finite(old, mask, rows, "old value of the critic")
    per_token = value_loss(new, old, returns, mask, rl.value_loss.clip)
    loss = aggregate(per_token, mask, denominators)
    kept = torch.where(mask, returns, 0.0).double()
    residual = torch.where(mask, returns - new.detach(), 0.0).double()
    return MicroLoss(
        loss,
        {
            "tokens": float(mask.sum()),
            "loss": float(loss.detach()),
            "value_sum": float(torch.where(mask, new, 0.0).sum().detach()),
            "return_sum": float(kept.sum()),
            "return_square_sum": float(kept.square().sum()),
            "residual_sum": float(residual.sum()),
            "residual_square_sum": float(residual.square().sum()),
        },
    )


def gap_sums(engine: Tensor, old: Tensor, mask: Tensor, spec: CorrectionSpec | None) -> dict[str, float]:
    """Engine/trainer mismatch in the form that adds up over micro-batches; nats a token, and probabilities."""
    gap = correction.gap(engine, old, mask, spec)
    tokens = float(mask.sum())
    sums = {
        "gap_sum": gap.mean * tokens,
        "gap_abs_sum": float(torch.where(mask, engine - old, 0.0).abs().double().sum()),
        "gap_k3_sum": gap.k3 * tokens,
        "gap_max": gap.max_abs,
        "prob_difference_sum": gap.mean_prob_difference * tokens,
        "prob_difference_max": gap.max_prob_difference,
    }
    if spec is not None:
        sums["corrected"] = gap.filtered_share * tokens
    return sums


def merge(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sums of micro-batches -> sums of the whole; keys that end in ``_max`` by maximum."""
    total: dict[str, float] = {}
    for part in parts:
        for key, value in part.items():
            total[key] = max(total.get(key, value), value) if key.endswith("_max") else total.get(key, 0.0) + value
    return total


def _require_finite(values: Tensor, mask: Tensor, rows: Sequence[TokenRow], what: str) -> None:
    """NaN or infinity at an action token stops the step; at masked positions it is nobody's business."""
    finite.check(what, values, mask, [f"{row.row_id} (group {row.group_id})" for row in rows])
