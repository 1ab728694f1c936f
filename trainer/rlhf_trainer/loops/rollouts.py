"""The driver's side of sampling, for training and for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rlhf_api.spec import EvaluationSpec, JobSpec
from rlhf_trainer.rollout.collect import collect
from rlhf_trainer.sync.turns import Turn
from rlhf_trainer.types import PromptGroup, Rollout

EVALUATION_GROUPS = 1 << 40
"""Group ids of evaluation start here, apart from those of training, since they seed the sampling."""


class EngineRollouts:
    """Implements ``loops.rl.Rollouts`` over vLLM engines."""

    def __init__(self, spec: JobSpec, engines: Sequence[Any], *, timeout_seconds: float, turn: Callable[[Turn], object]) -> None:
        self.spec = spec
        self.engines = engines
        self.timeout_seconds = timeout_seconds
        self.turn = turn

    def sample(self, groups: Sequence[PromptGroup], *, version: int) -> list[Rollout]:
        rollout = self.spec.rl.rollout
        return self._collect(list(groups), rollout, rollout.samples_per_prompt, version)

    def evaluate(self, groups: Sequence[PromptGroup], evaluation: EvaluationSpec, *, version: int) -> list[Rollout]:
        """Greedy or sampled at the evaluation's own temperature."""
        rollout = self.spec.rl.rollout.model_copy(update={"temperature": evaluation.temperature})
        shifted = [replace(group, group_id=EVALUATION_GROUPS + group.group_id) for group in groups]
        return self._collect(shifted, rollout, evaluation.samples_per_prompt, version)

    def _collect(self, groups: list[PromptGroup], rollout: Any, samples: int, version: int) -> list[Rollout]:
        self.turn("rollout")
        return collect(
            self.engines,
            groups,
            rollout,
            samples=samples,
            seed=self.spec.training.seed,
            version=version,
            max_length=self.spec.data.max_length,
            timeout_seconds=self.timeout_seconds,
        )
