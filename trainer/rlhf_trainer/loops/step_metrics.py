"""One step's numbers under the metric keys of the contract. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlhf_trainer.loops.experience import Experience
from rlhf_trainer.types import Reward, Rollout


def rollout_metrics(rollouts: Sequence[Rollout], rewards: Sequence[Reward], max_length: int) -> dict[str, float]:
    """Rewards, lengths and truncation of a batch. Means run over rollouts; dropped rollouts have no reward.

    A mean over no values is absent: 0.0 would be a reward that nobody gave.
    """
    values = np.array([reward.value for reward in rewards if reward.value is not None], dtype=np.float64)
    scores = np.array([reward.score for reward in rewards if reward.score is not None], dtype=np.float64)
    lengths = np.array([rollout.response_length for rollout in rollouts])
    metrics = known_means({"rollout/reward_mean": values, "rollout/score_mean": scores})
    if len(values):
        metrics["rollout/reward_std"] = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    metrics |= {
        "rollout/response_length_mean": mean(lengths),
        "rollout/truncated_share": mean([rollout.truncated for rollout in rollouts]),
        "rollout/length_clip_share": mean([len(rollout.ids) >= max_length for rollout in rollouts]),
        "rollout/empty_rows": float((lengths == 0).sum()),
        "rollout/dropped": float(len(rewards) - len(values)),
    }
    for name in dict.fromkeys(name for reward in rewards for name in reward.parts):
        metrics |= known_means({f"reward/{name}": [part for reward in rewards if (part := reward.parts.get(name)) is not None]})
    for name in dict.fromkeys(name for reward in rewards for name in reward.extra_logs):
        metrics[f"reward/extra/{name}"] = mean([reward.extra_logs[name] for reward in rewards if name in reward.extra_logs])
    return metrics


def update_metrics(stats: Mapping[str, float], experience: Experience) -> dict[str, float]:
    """Sums of the optimizer updates -> per-token means. Terms that were not computed are absent."""
    updates = max(stats["updates"], 1.0)
    metrics: dict[str, float] = {
        "rollout/zero_signal_groups": float(experience.zero_signal_groups),
        "groups/too_small": float(experience.too_small_groups),
        **known_means({"reward/shaped_mean": experience.shaped[~np.isnan(experience.shaped)]}),
    }
    tokens = stats.get("tokens", 0.0)
    if "loss" in stats:
        metrics |= {
            "actor/loss": stats["loss"] / updates,
            "actor/grad_norm": stats["grad_norm"] / updates,
            "actor/learning_rate": stats["learning_rate"],
            "actor/rows_computed": stats["rows_computed"],
        }
    if tokens and "clipped_low" in stats:
        metrics |= {
            "actor/clip_share": (stats["clipped_low"] + stats["clipped_high"]) / tokens,
            "actor/clip_low_share": stats["clipped_low"] / tokens,
            "actor/clip_high_share": stats["clipped_high"] / tokens,
            "actor/approx_kl": stats["approx_kl_sum"] / tokens,
            "actor/ratio_max": stats["ratio_max"],
        }
    if tokens:
        metrics |= {
            "rollout/logprob_gap_mean": stats["gap_sum"] / tokens,
            "rollout/logprob_gap_abs_mean": stats["gap_abs_sum"] / tokens,
            "rollout/logprob_gap_max": stats["gap_max"],
            "rollout/logprob_gap_k3": stats["gap_k3_sum"] / tokens,
            "rollout/probability_gap_mean": stats["prob_difference_sum"] / tokens,
            "rollout/probability_gap_max": stats["prob_difference_max"],
        }
        if "corrected" in stats:
            metrics["rollout/corrected_share"] = stats["corrected"] / tokens
        if "entropy_sum" in stats:
            metrics["actor/entropy"] = stats["entropy_sum"] / tokens
    if "kl_k3_mean" in stats:
        metrics["rollout/kl"] = stats["kl_k3_mean"]
    if "critic_loss" in stats:
        metrics |= {
            "critic/loss": stats["critic_loss"] / updates,
            "critic/grad_norm": stats["critic_grad_norm"] / updates,
            "critic/learning_rate": stats["critic_learning_rate"],
            "critic/explained_variance": explained_variance(stats),
        }
    return metrics


def explained_variance(stats: Mapping[str, float]) -> float:
    """``1 - Var(return - value) / Var(return)`` over the step's action tokens; 0 where returns do not vary."""
    count = stats["critic_tokens"]
    if not count:
        return 0.0
    variance = stats["critic_return_square_sum"] / count - (stats["critic_return_sum"] / count) ** 2
    residual = stats["critic_residual_square_sum"] / count - (stats["critic_residual_sum"] / count) ** 2
    return 1.0 - residual / variance if variance > 1e-12 else 0.0


def throughput(timing: Mapping[str, float], tokens: Mapping[str, int]) -> dict[str, float]:
    """Tokens a second: ``rollout`` counts sampled ids in the rollout phase, ``train`` all ids in experience and update."""
    seconds = sum(timing.values())
    rollout = timing.get("timing_s/rollout", 0.0)
    train = timing.get("timing_s/experience", 0.0) + timing.get("timing_s/update", 0.0)
    return {
        "perf/tokens_per_second": tokens["all"] / seconds if seconds else 0.0,
        "perf/rollout_tokens_per_second": tokens["sampled"] / rollout if rollout else 0.0,
        "perf/train_tokens_per_second": tokens["all"] / train if train else 0.0,
    }


def known_means(values: Mapping[str, Sequence[float] | np.ndarray]) -> dict[str, float]:
    return {name: mean(known) for name, known in values.items() if len(known)}


def mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else 0.0
