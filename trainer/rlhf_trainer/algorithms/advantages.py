"""From shaped rewards to per-token advantages: baseline, clip, KL in the reward, recursion, whitening, in this order.

An estimator is a function from the rewards of a group (or of the whole step) to scalars, and how those spread over a
rollout's tokens. Its defaults for whitening and the division by a std are ``rlhf_api``'s: ``compute`` takes a resolved spec.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rlhf_api.resolve import NO_STD_ESTIMATORS
from rlhf_api.spec import AdvantageSpec, KlSpec, RewardSpec
from rlhf_trainer.algorithms import finite
from rlhf_trainer.algorithms.returns import ActionTokens, Traces, discounted_return, gae
from rlhf_trainer.algorithms.reward_shaping import clip
from rlhf_trainer.algorithms.whitening import whiten

STD_EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class AdvantageBatch:
    """All rollouts of one step; row ``i`` is the sample with row id ``i``."""

    rewards: Tensor
    """``[N]``: shaped scalar R; anything where ``valid`` is False. Any float type; statistics are fp64."""
    valid: Tensor
    """bool ``[N]``: False = dropped, in no statistics and without advantage."""
    group_ids: Tensor
    """int64 ``[N]``: rollouts of one prompt draw. Order plays no part."""
    mask: Tensor
    """bool ``[N, T]``: action tokens, shifted. A row without any still counts in its group's statistics."""
    kl: Tensor | None = None
    """``[N, T]``: per-token KL of the old policy against the reference, by the configured estimator."""
    kl_coef: float = 0.0
    """The controller's live coefficient."""
    values: Tensor | None = None
    """``[N, T]``: the critic's values, for ``gae``."""


@dataclass(frozen=True, slots=True)
class Advantages:
    advantages: Tensor
    """``[N, T]`` fp32, 0 at masked positions and in dropped rows."""
    returns: Tensor
    """``[N, T]`` fp32: targets of the critic, before whitening."""
    zero_signal_groups: int
    """Groups of at least two valid rewards that are all equal."""
    too_small_groups: int
    """Group estimators: groups with fewer than two valid rewards; their scalars are 0."""
    shaped: Tensor
    """``[N]`` fp64: the scalar after baseline and clip."""


@dataclass(frozen=True, slots=True)
class GroupRewards:
    values: Tensor
    """``[n]`` fp64: valid rewards of one group, or of the whole step for estimators of scope `batch`."""
    std_norm: bool


@dataclass(frozen=True, slots=True)
class TokenRewards:
    """What a rollout is paid, per token and at its end."""

    outcome: Tensor
    """``[N]`` fp64"""
    penalty: Tensor
    """``[N, T]`` fp64: ``-coef * kl``, 0 without KL in the reward."""
    mask: Tensor
    values: Tensor | None


Baseline = Callable[[GroupRewards], Tensor]
Spread = Callable[[TokenRewards, AdvantageSpec, KlSpec], Traces]


@dataclass(frozen=True, slots=True)
class Estimator:
    baseline: Baseline
    scope: Literal["group", "batch"]
    spread: Spread


ESTIMATORS: dict[str, Estimator] = {}


def advantage(name: str, *, scope: Literal["group", "batch"], spread: Spread) -> Callable[[Baseline], Baseline]:
    """Register ``GroupRewards -> [n]`` under its ``advantage.estimator``."""

    def register(baseline: Baseline) -> Baseline:
        ESTIMATORS[name] = Estimator(baseline, scope, spread)
        return baseline

    return register


def with_critic(tokens: TokenRewards, spec: AdvantageSpec, kl: KlSpec) -> Traces:
    """Outcome at the last action token, GAE."""
    if tokens.values is None:
        raise ValueError("estimator gae needs the critic's values")
    placed = ActionTokens.of(tokens.mask).at_last(tokens.outcome)
    return gae(placed + tokens.penalty, tokens.values, tokens.mask, spec.gamma, spec.lambda_)


def discounted(tokens: TokenRewards, spec: AdvantageSpec, kl: KlSpec) -> Traces:
    """Outcome at the last action token, discounted return."""
    placed = ActionTokens.of(tokens.mask).at_last(tokens.outcome)
    return discounted_return(placed + tokens.penalty, tokens.mask, spec.gamma)


def constant(tokens: TokenRewards, spec: AdvantageSpec, kl: KlSpec) -> Traces:
    """The same outcome for every action token; KL as return-to-go (what OpenRLHF computes) or each token's own."""
    penalty = discounted_return(tokens.penalty, tokens.mask, gamma=1.0).returns if kl.return_to_go else tokens.penalty
    result = torch.where(tokens.mask, tokens.outcome[:, None] + penalty, 0.0)
    return Traces(advantages=result, returns=result)


@advantage("gae", scope="batch", spread=with_critic)
@advantage("reinforce", scope="batch", spread=discounted)
def as_given(group: GroupRewards) -> Tensor:
    """PPO (arXiv 1707.06347) and REINFORCE++ (arXiv 2501.03262): no baseline but the critic or whitening."""
    return group.values


@advantage("reinforce_baseline", scope="group", spread=constant)
def reinforce_baseline(group: GroupRewards) -> Tensor:
    """REINFORCE++-baseline, arXiv 2501.03262: the group's mean, then whitening over the step."""
    return group.values - group.values.mean()


@advantage("rloo", scope="group", spread=constant)
def rloo(group: GroupRewards) -> Tensor:
    """Leave-one-out baseline, arXiv 2402.14740."""
    r = group.values
    return r - (r.sum() - r) / (len(r) - 1)


@advantage("group_norm", scope="group", spread=constant)
@advantage("dr_grpo", scope="group", spread=constant)
def group_norm(group: GroupRewards) -> Tensor:
    """GRPO, arXiv 2402.03300: mean and unbiased std of the group; Dr.GRPO, arXiv 2503.20783: the mean alone."""
    centred = group.values - group.values.mean()
    return centred / (group.values.std(correction=1) + STD_EPSILON) if group.std_norm else centred


def compute(batch: AdvantageBatch, spec: AdvantageSpec, reward: RewardSpec, kl: KlSpec) -> Advantages:
    """Advantages and returns of one step's rollouts. ``spec`` is resolved: ``whiten`` and ``std_norm`` are filled in.

    Raises NonFiniteError for a NaN or infinite reward of a valid row, or a value or KL at one of its action tokens.
    """
    mask = batch.mask & batch.valid[:, None]
    finite.check("reward", batch.rewards, batch.valid)
    if spec.whiten is None or (spec.std_norm is None and spec.estimator not in NO_STD_ESTIMATORS):
        raise ValueError(f"advantage.whiten {spec.whiten} and stdNorm {spec.std_norm}: not resolved; see rlhf_api.resolve.derive")
    estimator = ESTIMATORS[spec.estimator]
    # For rloo it has no meaning; whitening asked for by hand then scales.
    std_norm = spec.std_norm is not False
    rewards = torch.where(batch.valid, batch.rewards, 0.0).double()

    scalars = torch.zeros_like(rewards)
    members = _members(batch)
    equal = [len(rows) > 1 and bool((rewards[rows] == rewards[rows[0]]).all()) for rows in members]
    if estimator.scope == "batch":
        scalars[batch.valid] = estimator.baseline(GroupRewards(rewards[batch.valid], std_norm))
    else:
        for rows, no_signal in zip(members, equal, strict=True):
            # Equal rewards are exactly 0 by rule: what a std of rounding noise would make of them is not a signal.
            if len(rows) > 1 and not no_signal:
                scalars[rows] = estimator.baseline(GroupRewards(rewards[rows], std_norm))
    if reward.clip_at == "afterBaseline":
        scalars = clip(scalars, reward)

    if batch.values is not None:
        finite.check("critic value", batch.values, mask)
    tokens = TokenRewards(outcome=scalars, penalty=_kl_penalty(batch, mask, kl), mask=mask, values=batch.values)
    traces = estimator.spread(tokens, spec, kl)
    advantages = whiten(traces.advantages, mask, scale=std_norm) if spec.whiten == "batch" else traces.advantages
    return Advantages(
        advantages=advantages.float(),
        returns=traces.returns.float(),
        zero_signal_groups=sum(equal),
        too_small_groups=sum(len(rows) < 2 for rows in members) if estimator.scope == "group" else 0,
        shaped=scalars,
    )


def _members(batch: AdvantageBatch) -> list[Tensor]:
    """Row indices of each group's valid rollouts; empty for a group that lost them all."""
    groups = torch.unique(batch.group_ids)
    return [((batch.group_ids == group) & batch.valid).nonzero()[:, 0] for group in groups]


def _kl_penalty(batch: AdvantageBatch, mask: Tensor, kl: KlSpec) -> Tensor:
    if kl.placement != "reward" or batch.kl_coef == 0:
        return torch.zeros(mask.shape, dtype=torch.float64, device=mask.device)
    if batch.kl is None:
        raise ValueError("kl.placement reward with a coefficient above 0 needs the per-token KL")
    finite.check("KL to the reference", batch.kl, mask)
    return -batch.kl_coef * torch.where(mask, batch.kl, 0.0).double()
