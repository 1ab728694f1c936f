"""The mismatch between the engine's and the trainer's log-probs: always measured, corrected on request."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_api.spec import CorrectionSpec
from rlhf_trainer.algorithms.kl import estimate

HEALTHY_PROBABILITY_DIFFERENCE = 0.005
"""Above this mean |probability difference| an event is due; the level that verl's documents call healthy."""


def weights(old_logp: Tensor, engine_logp: Tensor, mask: Tensor, spec: CorrectionSpec) -> Tensor:
    """Detached factor of the per-token policy loss, ``w = pi_old / pi_engine`` at action tokens, ``[N, T]``, 1 elsewhere.

    ``clip`` bounds it to ``[low, high]`` (truncated importance sampling); ``mask`` drops tokens out of it (IcePop). The
    denominators of the aggregation stay as they are.
    """
    weight = _ratio(old_logp, engine_logp, mask)
    bounded = weight.clamp(spec.low, spec.high) if spec.mode == "clip" else torch.where(_outside(weight, spec), 0.0, weight)
    return torch.where(mask, bounded, 1.0)


def _ratio(old_logp: Tensor, engine_logp: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, old_logp - engine_logp, 0.0).detach().exp()


def _outside(weight: Tensor, spec: CorrectionSpec) -> Tensor:
    return (weight < spec.low) | (weight > spec.high)


@dataclass(frozen=True, slots=True)
class Gap:
    """Engine against trainer over a batch's action tokens; all 0 when there are none."""

    mean: float
    """Mean of log pi_engine - log pi_old, in nats."""
    max_abs: float
    """Largest |log pi_engine - log pi_old|."""
    k3: float
    """Mean k3 of KL(engine, trainer)."""
    mean_prob_difference: float
    max_prob_difference: float
    filtered_share: float
    """Share of action tokens whose weight the correction bounds or drops; 0 without one."""

    @property
    def healthy(self) -> bool:
        return self.mean_prob_difference <= HEALTHY_PROBABILITY_DIFFERENCE


def gap(engine_logp: Tensor, old_logp: Tensor, mask: Tensor, spec: CorrectionSpec | None = None) -> Gap:
    """Measure the mismatch. engine_logp, old_logp: ``[N, T]``; sums in fp64."""
    if int(mask.sum()) == 0:
        return Gap(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    engine, old = engine_logp[mask].double(), old_logp[mask].double()
    everywhere = torch.ones_like(engine, dtype=torch.bool)
    difference = engine - old
    probability = (engine.exp() - old.exp()).abs()
    filtered = 0.0 if spec is None else float(_outside(_ratio(old, engine, everywhere), spec).double().mean())
    return Gap(
        mean=float(difference.mean()),
        max_abs=float(difference.abs().max()),
        k3=float(estimate(engine, old, "k3", everywhere).mean()),
        mean_prob_difference=float(probability.mean()),
        max_prob_difference=float(probability.max()),
        filtered_share=filtered,
    )
