"""The driver's side of learning: forward passes for experience, then optimizer updates of actor and critic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_api.spec import JobSpec, RlSpec
from rlhf_trainer.algorithms.aggregation import denominators
from rlhf_trainer.algorithms.kl import Controller as KlController
from rlhf_trainer.algorithms.schedule import rate
from rlhf_trainer.loops.experience import Experience, attach_advantages, carries_gradient, needs_old_logprobs, pad
from rlhf_trainer.loops.rl import RlState
from rlhf_trainer.placement.groups import WorkerGroup, by_row
from rlhf_trainer.sync.turns import Turn
from rlhf_trainer.training.batching import plan
from rlhf_trainer.training.losses import gap_sums, merge
from rlhf_trainer.types import Reward, Rollout, TokenRow, token_row

MicroBatches = list[list[list[TokenRow]]]


class Learner:
    """Implements ``loops.rl.Learner`` over worker groups."""

    def __init__(
        self,
        spec: JobSpec,
        groups: Mapping[str, WorkerGroup],
        *,
        total_updates: int,
        share_prompt: bool,
        turn: Callable[[Turn], object],
    ) -> None:
        self.spec = spec
        self.groups = groups
        self.total_updates = total_updates
        self.share_prompt = share_prompt
        self.turn = turn

    def experience(self, rollouts: Sequence[Rollout], rewards: Sequence[Reward], kl: KlController) -> Experience:
        """Log-probs, reference log-probs and values where the algorithm needs them, then advantages."""
        rl = self.spec.rl
        rows = [token_row(rollout, i) for i, rollout in enumerate(rollouts)]
        temperature = rl.rollout.temperature
        self.turn("experience")
        # While the critic warms up no update of the actor measures the engine/trainer gap.
        if needs_old_logprobs(rl, self._updates_of(len(rows))) or rl.value_loss.warmup_steps > 0:
            self._forward(rows, "actor", "logprobs", "old_logprobs", temperature)
        if rl.kl.coef > 0:
            self._forward(rows, "reference", "logprobs", "ref_logprobs", temperature)
        if rl.advantage.estimator == "gae":
            self._forward(rows, "critic", "values", "old_values")
        return attach_advantages(rollouts, rewards, rows, rl, kl.coef)

    def reward_scores(self, rollouts: Sequence[Rollout]) -> list[float]:
        """The reward model's score of each rollout, read at the last id."""
        self.turn("experience")
        rows = [token_row(rollout, i) for i, rollout in enumerate(rollouts)]
        group = self.groups["reward"]
        results = group.scatter("scores", [("reward", micro) for micro in self._split(rows, group.ranks)])
        return [float(score) for (score, *_) in by_row(results, len(rows))]

    def update(self, experience: Experience, state: RlState) -> dict[str, float]:
        """Every optimizer update of one step. Returns sums over the step (``*_max`` maxima) plus ``updates``."""
        rl = self.spec.rl
        self.turn("update")
        actor_frozen = rl.advantage.estimator == "gae" and state.step < rl.value_loss.warmup_steps
        stats: dict[str, float] = {"updates": 0.0}
        for number, chunk in enumerate(self._chunks(experience, state.step), start=state.updates):
            if rl.advantage.estimator == "gae":
                accumulate(stats, self._update_critic(chunk, number), prefix="critic_")
            accumulate(stats, measured_gap(chunk, rl) if actor_frozen else self._update_actor(chunk, number, state.kl.coef))
            stats["updates"] += 1
        if experience.kl_k3_mean is not None:
            stats["kl_k3_mean"] = experience.kl_k3_mean
        elif stats.get("kl_tokens"):
            stats["kl_k3_mean"] = stats["kl_k3_sum"] / stats["kl_tokens"]
        return stats

    def _update_actor(self, chunk: Sequence[TokenRow], number: int, kl_coef: float) -> dict[str, float]:
        rl = self.spec.rl
        counted = denominators([row.mask for row in chunk], rl.policy_loss.aggregation, norm_length(rl))
        # The first row is always computed: the engine/trainer gap is measured at each update, signal or not.
        rows = [row for i, row in enumerate(chunk) if i == 0 or carries_gradient(row, rl)]
        learning_rate = rate(number, self.total_updates, self.spec.training.learning_rate.actor, self.spec.training.schedule)
        group = self.groups["actor"]
        per_rank = [(micro, counted, kl_coef, learning_rate, rl) for micro in self._split(rows, group.ranks)]
        stats = merge_ranks(group.scatter("update_actor", per_rank))
        return stats | {"learning_rate": learning_rate, "rows_computed": float(len(rows))}

    def _update_critic(self, chunk: Sequence[TokenRow], number: int) -> dict[str, float]:
        rl = self.spec.rl
        counted = denominators([row.mask for row in chunk], rl.policy_loss.aggregation, norm_length(rl))
        learning_rate = rate(number, self.total_updates, self.spec.training.learning_rate.critic, self.spec.training.schedule)
        group = self.groups["critic"]
        per_rank = [(micro, counted, learning_rate, rl) for micro in self._split(list(chunk), group.ranks)]
        return merge_ranks(group.scatter("update_critic", per_rank)) | {"learning_rate": learning_rate}

    def _chunks(self, experience: Experience, step: int) -> Iterator[list[TokenRow]]:
        """Rows with loss, ``globalBatchSize`` rollouts an update; later epochs over the batch draw a new order of groups."""
        rl, size = self.spec.rl, self.spec.training.global_batch_size
        rows = experience.rows
        group_ids = list(dict.fromkeys(row.group_id for row in rows))
        for epoch in range(rl.update_epochs):
            if epoch:
                np.random.default_rng((self.spec.training.seed, step, epoch)).shuffle(group_ids)
            position = {group_id: i for i, group_id in enumerate(group_ids)}
            ordered = sorted(rows, key=lambda row: position[row.group_id])
            for start in range(0, len(ordered), size):
                yield [row for row in ordered[start : start + size] if experience.has_loss[row.row_id]]

    def _forward(self, rows: Sequence[TokenRow], role: str, method: str, field: str, *args: Any) -> None:
        group = self.groups[role]
        results = group.scatter(method, [(role, micro, *args) for micro in self._split(rows, group.ranks)])
        for row, (values, *_) in zip(rows, by_row(results, len(rows)), strict=True):
            row.fields[field] = values

    def _split(self, rows: Sequence[TokenRow], ranks: int) -> MicroBatches:
        training = self.spec.training
        return plan(
            list(rows),
            ranks,
            micro_batch_size=training.micro_batch_size,
            max_tokens=training.max_tokens_per_micro_batch,
            share_prompt=self.share_prompt,
        )

    def _updates_of(self, num_rows: int) -> int:
        return self.spec.rl.update_epochs * -(-num_rows // self.spec.training.global_batch_size)


def norm_length(rl: RlSpec) -> int:
    return rl.policy_loss.norm_length or rl.rollout.max_new_tokens


def measured_gap(rows: Sequence[TokenRow], rl: RlSpec) -> dict[str, float]:
    """Engine/trainer mismatch of rows with ``old_logprobs``, in the sums of an update; none for no rows."""
    if not rows:
        return {}
    width = max(len(row.mask) for row in rows)
    mask = pad([row.mask for row in rows], width)
    engine, old = (pad([row.fields[name] for row in rows], width) for name in ("engine_logprobs", "old_logprobs"))
    return {"tokens": float(mask.sum()), **gap_sums(engine, old, mask, rl.correction)}


def merge_ranks(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Per-rank sums of one update -> sums over all ranks; every rank reports the same global gradient norm."""
    return merge(ranks) | {"grad_norm": ranks[0]["grad_norm"]}


def accumulate(stats: dict[str, float], more: Mapping[str, float], prefix: str = "") -> None:
    """Add one update to the step: sums add up (the gradient norm too, its mean is reported), maxima and the rate replace."""
    for key, value in more.items():
        name = prefix + key
        if key.endswith("_max"):
            stats[name] = max(stats.get(name, float("-inf")), value)
        elif key == "learning_rate":
            stats[name] = value
        else:
            stats[name] = stats.get(name, 0.0) + value
