"""Divergence from the reference model: per-token estimators, the loss term, and the controller of its weight."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlhf_api.spec import KlEstimator, KlSpec
from rlhf_trainer.errors import ConfigError

BOUND = 10.0
"""Per-token results are clamped to +-BOUND; k3 bounds the log-ratio below at -BOUND before ``exp``."""
MAX_IMPORTANCE = 10.0


def estimate(logp: Tensor, ref_logp: Tensor, estimator: KlEstimator, mask: Tensor) -> Tensor:
    """Per-token estimate of KL(pi, ref) from samples of pi, ``[N, T]``, 0 at masked positions.

    With ``d = logp - ref_logp``: k1 ``d``, k2 ``d^2 / 2``, k3 ``exp(-d) - 1 + d``; http://joschu.net/blog/kl-approx.html.
    """
    d = torch.where(mask, logp - ref_logp, 0.0)
    if estimator == "k1":
        value = d
    elif estimator == "k2":
        value = d.square() / 2
    else:
        bounded = d.clamp(min=-BOUND)
        value = torch.expm1(-bounded) + bounded
    return value.clamp(-BOUND, BOUND)


def loss_term(logp: Tensor, ref_logp: Tensor, old_logp: Tensor, estimator: KlEstimator, unbiased: bool, mask: Tensor) -> Tensor:
    """Per-token KL for ``placement: loss``, ``[N, T]``; the caller aggregates it and multiplies with the coefficient.

    ``unbiased`` keeps the value and takes the gradient of ``w d^2 / 2`` with ``w = min(pi / pi_old, 10)`` held constant:
    the importance-weighted gradient of the reverse KL, the same for every estimator.
    """
    if estimator == "k1" and not unbiased:
        raise ConfigError(
            "spec.rl.kl.estimator: k1 with placement loss has no gradient in expectation. Nearest: k3, or unbiasedGradient: true."
        )
    value = estimate(logp, ref_logp, estimator, mask)
    if not unbiased:
        return value
    d = torch.where(mask, logp - ref_logp, 0.0)
    log_importance = torch.where(mask, logp - old_logp, 0.0).detach()
    # exp is bounded before it is taken: an overflow times a zero gradient would be NaN.
    weight = log_importance.clamp(max=math.log(MAX_IMPORTANCE)).exp()
    path = weight * d.square() / 2
    return value.detach() + (path - path.detach())


def mean_k3(logp: Tensor, ref_logp: Tensor, mask: Tensor) -> float:
    """Mean k3 over the action tokens, what the adaptive controller listens to; 0.0 without action tokens."""
    count = int(mask.sum())
    return float(estimate(logp, ref_logp, "k3", mask).double().sum()) / count if count else 0.0


@dataclass(frozen=True, slots=True)
class FixedKl:
    """A coefficient that never moves."""

    coef: float

    def update(self, mean_k3: float, num_rollouts: int) -> FixedKl:
        return self

    def state_dict(self) -> dict[str, float]:
        return {"coef": self.coef}

    @classmethod
    def from_state(cls, state: Mapping[str, float]) -> FixedKl:
        return cls(coef=state["coef"])


@dataclass(frozen=True, slots=True)
class AdaptiveKl:
    """Moves the coefficient until the mean k3 of old policy and reference nears ``target`` (arXiv 1909.08593).

    ``e = clip(KL / target - 1, +-0.2)``; ``coef <- coef (1 + e min(N / horizon, 1))`` once a step, ``N`` rollouts in it.
    Without the ``min`` a step of more than ``5 horizon`` rollouts would turn the coefficient negative.
    """

    coef: float
    target: float
    horizon: float

    def __post_init__(self) -> None:
        for name, value in (("coef", self.coef), ("target", self.target), ("horizon", self.horizon)):
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"spec.rl.kl.{name}: {value} with an adaptive coefficient. Rule: a finite number above 0.")

    def update(self, mean_k3: float, num_rollouts: int) -> AdaptiveKl:
        """The controller after a step whose ``num_rollouts`` rollouts had ``mean_k3`` nats a token."""
        if not math.isfinite(mean_k3):
            raise ValueError(f"mean k3 is {mean_k3}; the adaptive KL coefficient needs a finite value")
        error = min(max(mean_k3 / self.target - 1.0, -0.2), 0.2)
        return replace(self, coef=self.coef * (1.0 + error * min(num_rollouts / self.horizon, 1.0)))

    def state_dict(self) -> dict[str, float]:
        return {"coef": self.coef, "target": self.target, "horizon": self.horizon}

    @classmethod
    def from_state(cls, state: Mapping[str, float]) -> AdaptiveKl:
        return cls(coef=state["coef"], target=state["target"], horizon=state["horizon"])


Controller = FixedKl | AdaptiveKl


def controller(spec: KlSpec, state: Mapping[str, float] | None = None) -> Controller:
    """The controller that ``spec`` asks for; with the ``state`` of a checkpoint it continues from there."""
    if spec.target is None:
        return FixedKl(spec.coef) if state is None else FixedKl.from_state(state)
    return AdaptiveKl(spec.coef, spec.target, spec.horizon) if state is None else AdaptiveKl.from_state(state)
