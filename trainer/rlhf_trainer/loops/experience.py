"""From rollouts and rewards to rows the workers can train on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rlhf_api.spec import RlSpec
from rlhf_trainer.algorithms import advantages as adv
from rlhf_trainer.algorithms import kl as kl_terms
from rlhf_trainer.algorithms import reward_shaping
from rlhf_trainer.types import BoolArray, FloatArray, Reward, Rollout, TokenRow


@dataclass(slots=True)
class Experience:
    """One step's batch. Lists run over rollouts, in the same order."""

    rollouts: list[Rollout]
    rewards: list[Reward]
    rows: list[TokenRow]
    shaped: FloatArray
    """Reward of each rollout after length and truncation shaping ``[N]``; NaN where dropped."""
    has_loss: BoolArray
    """[N]; False for dropped, masked and empty rollouts."""
    zero_signal_groups: int
    too_small_groups: int
    kl_k3_mean: float | None
    """Mean k3 of old policy and reference over the action tokens; None where the old log-probs come with the update."""


def needs_old_logprobs(rl: RlSpec, updates: int) -> bool:
    """Whether ``pi_old`` must be computed before the update.

    With one update a step the weights at the update *are* the old weights, so the update's own forward gives the same
    numbers; KL in the reward needs them earlier.
    """
    return updates > 1 or (rl.kl.coef > 0 and rl.kl.placement == "reward")


def pad(arrays: Sequence[FloatArray | BoolArray], width: int) -> torch.Tensor:
    """Rows of different length -> ``[N, width]``, zero (False) on the right."""
    first = arrays[0]
    out = np.zeros((len(arrays), width), dtype=first.dtype)
    for i, array in enumerate(arrays):
        out[i, : len(array)] = array
    return torch.from_numpy(out)


def attach_advantages(
    rollouts: Sequence[Rollout], rewards: Sequence[Reward], rows: Sequence[TokenRow], rl: RlSpec, kl_coef: float
) -> Experience:
    """Reward pipeline, baseline, recursion and whitening over the whole step; writes ``advantages`` and ``returns`` into the rows."""
    valid = torch.tensor([reward.value is not None for reward in rewards])
    values = torch.tensor([reward.value if reward.value is not None else 0.0 for reward in rewards], dtype=torch.float64)
    truncated = torch.tensor([rollout.truncated for rollout in rollouts])
    lengths = torch.tensor([rollout.response_length for rollout in rollouts])
    width = max(len(row.mask) for row in rows)
    mask = pad([row.mask for row in rows], width)

    def padded(name: str) -> torch.Tensor | None:
        return pad([row.fields[name] for row in rows], width) if name in rows[0].fields else None

    old, ref = padded("old_logprobs"), padded("ref_logprobs")
    per_token_kl = None
    if rl.kl.placement == "reward" and kl_coef > 0 and old is not None and ref is not None:
        per_token_kl = kl_terms.estimate(old, ref, rl.kl.estimator, mask)
    shaped = reward_shaping.shape(values, lengths, truncated, rl.reward, rl.rollout.max_new_tokens)
    result = adv.compute(
        adv.AdvantageBatch(
            rewards=shaped,
            valid=valid,
            group_ids=torch.tensor([rollout.group_id for rollout in rollouts]),
            mask=mask,
            kl=per_token_kl,
            kl_coef=kl_coef,
            values=padded("old_values"),
        ),
        rl.advantage,
        rl.reward,
        rl.kl,
    )
    for i, row in enumerate(rows):
        length = len(row.mask)
        row.fields["advantages"] = result.advantages[i, :length].float().numpy()
        row.fields["returns"] = result.returns[i, :length].float().numpy()
    has_loss = reward_shaping.loss_rows(truncated, valid, rl.reward).numpy() & (lengths > 0).numpy()
    return Experience(
        rollouts=list(rollouts),
        rewards=list(rewards),
        rows=list(rows),
        shaped=torch.where(valid, shaped, torch.nan).float().numpy(),
        has_loss=has_loss,
        zero_signal_groups=result.zero_signal_groups,
        too_small_groups=result.too_small_groups,
        kl_k3_mean=kl_terms.mean_k3(old, ref, mask) if old is not None and ref is not None else None,
    )


def carries_gradient(row: TokenRow, rl: RlSpec) -> bool:
    """False where every term of the actor's loss has zero gradient, so that its forward and backward can be left out.

    Denominators still count the row, so the gradient of the step is unchanged.
    """
    if rl.kl.placement == "loss" and rl.kl.coef > 0:
        return True
    return bool(rl.policy_loss.entropy_coef) or bool(np.any(row.fields["advantages"][row.mask] != 0))
