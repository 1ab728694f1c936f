"""Presets of ``rl.algorithm``: data, each with its paper. A preset only says what a field is when the manifest does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

PresetValue = str | int | float


@dataclass(frozen=True, slots=True)
class Preset:
    name: str
    paper: str
    summary: str
    fields: Mapping[str, PresetValue]
    """Dotted camelCase path below ``spec.rl`` -> value."""

    def tree(self) -> dict[str, Any]:
        """``fields`` as nested mappings, the shape of ``spec.rl`` in a manifest."""
        tree: dict[str, Any] = {}
        for path, value in self.fields.items():
            *parents, leaf = path.split(".")
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[leaf] = value
        return tree


def _preset(name: str, paper: str, summary: str, estimator: str, kl: tuple[float, str, str], aggregation: str, samples: int) -> Preset:
    coef, kl_estimator, placement = kl
    fields: dict[str, PresetValue] = {
        "advantage.estimator": estimator,
        "policyLoss.aggregation": aggregation,
        "kl.coef": coef,
        "kl.estimator": kl_estimator,
        "kl.placement": placement,
        "rollout.samplesPerPrompt": samples,
    }
    return Preset(name, paper, summary, MappingProxyType(fields))


_KL_REWARD = (0.01, "k1", "reward")

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        preset.name: preset
        for preset in (
            _preset("ppo", "arXiv 1707.06347, 2203.02155", "PPO with a critic", "gae", _KL_REWARD, "token-mean", 1),
            _preset(
                "grpo",
                "arXiv 2402.03300",
                "rewards normalised by their group, KL as a loss",
                "group_norm",
                (0.01, "k3", "loss"),
                "token-mean",
                8,
            ),
            _preset("reinforce++", "arXiv 2501.03262", "whitened returns, no critic", "reinforce", _KL_REWARD, "token-mean", 1),
            _preset(
                "reinforce++-baseline",
                "arXiv 2501.03262",
                "group mean as baseline, whitened over the batch",
                "reinforce_baseline",
                (0.01, "k2", "loss"),
                "token-mean",
                8,
            ),
            _preset("rloo", "arXiv 2402.14740", "leave-one-out baseline", "rloo", _KL_REWARD, "token-mean", 8),
            _preset(
                "dr-grpo",
                "arXiv 2503.20783",
                "GRPO without its length and difficulty biases, no KL",
                "dr_grpo",
                (0.0, "k3", "loss"),
                "seq-mean-token-sum-norm",
                8,
            ),
        )
    }
)
