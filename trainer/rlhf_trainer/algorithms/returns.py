"""Recursions over the action tokens of a row: environment and padding positions are not there at all.

The action tokens of each row are moved to the front, the recursion walks those, and the results are put back. Tokens
that the policy did not write can therefore neither discount nor carry anything, whatever values they hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ActionTokens:
    """Where the action tokens of each row are. ``K`` = most action tokens in a row."""

    mask: Tensor
    """bool ``[N, T]``"""
    order: Tensor
    """int64 ``[N, K]``: position of the row's k-th action token; past its last one, of masked positions."""
    present: Tensor
    """bool ``[N, K]``: False past the row's last action token."""

    @classmethod
    def of(cls, mask: Tensor) -> ActionTokens:
        counts = mask.sum(dim=1)
        most = int(counts.max()) if mask.numel() else 0
        order = torch.argsort((~mask).to(torch.int8), dim=1, stable=True)[:, :most]
        present = torch.arange(most, device=mask.device)[None, :] < counts[:, None]
        return cls(mask=mask, order=order, present=present)

    def take(self, per_token: Tensor) -> Tensor:
        """``[N, T]`` -> ``[N, K]`` fp64, action tokens first, 0 past the last one."""
        return torch.where(self.present, per_token.gather(1, self.order), 0.0).double()

    def put(self, per_action: Tensor) -> Tensor:
        """``[N, K]`` -> ``[N, T]``, 0 at masked positions."""
        empty = torch.zeros(self.mask.shape, dtype=per_action.dtype, device=per_action.device)
        return empty.scatter(1, self.order, torch.where(self.present, per_action, 0.0))

    def at_last(self, per_row: Tensor) -> Tensor:
        """``[N]`` -> ``[N, T]`` with the row's value at its last action token; nowhere in a row without one."""
        last = self.present & ~torch.nn.functional.pad(self.present[:, 1:], (0, 1))
        return self.put(torch.where(last, per_row[:, None], 0.0))


@dataclass(frozen=True, slots=True)
class Traces:
    """Per-token results ``[N, T]``, 0 at masked positions."""

    advantages: Tensor
    returns: Tensor


def discounted_return(rewards: Tensor, mask: Tensor, gamma: float) -> Traces:
    """``G_t = r_t + gamma G_next``; advantage = return. rewards: ``[N, T]``; computed in fp64."""
    tokens = ActionTokens.of(mask)
    steps = tokens.take(rewards)
    out = torch.empty_like(steps)
    following = steps.new_zeros(steps.shape[0])
    for k in range(steps.shape[1] - 1, -1, -1):
        following = steps[:, k] + gamma * following
        out[:, k] = following
    result = tokens.put(out)
    return Traces(advantages=result, returns=result)


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lambda_: float) -> Traces:
    """Generalised advantage estimation (arXiv 1506.02438), "next" being the next action token.

    ``delta_t = r_t + gamma V_next - V_t``, ``A_t = delta_t + gamma lambda A_next``, ``return_t = A_t + V_t``. The value
    after the last action token is 0, also for truncated rollouts. rewards, values: ``[N, T]``; computed in fp64.
    """
    tokens = ActionTokens.of(mask)
    steps = tokens.take(rewards)
    baseline = tokens.take(values)
    out = torch.empty_like(steps)
    next_value = next_advantage = steps.new_zeros(steps.shape[0])
    for k in range(steps.shape[1] - 1, -1, -1):
        delta = steps[:, k] + gamma * next_value - baseline[:, k]
        next_advantage = delta + gamma * lambda_ * next_advantage
        out[:, k] = next_advantage
        next_value = baseline[:, k]
    return Traces(advantages=tokens.put(out), returns=tokens.put(out + baseline))
