"""What leaves the loop: evaluation samples and scores, checkpoints, one report a step."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_api.spec import EvaluationSpec, JobSpec
from rlhf_trainer.algorithms.passk import pass_at_k
from rlhf_trainer.loops.rl import RlState
from rlhf_trainer.loops.rollouts import EngineRollouts
from rlhf_trainer.loops.step_metrics import mean
from rlhf_trainer.types import PromptGroup, Reward, Rollout


class Evaluator:
    """Held-out prompts through the engines and the same rewards; samples go to ``eval/step-NNNNNN.jsonl``."""

    def __init__(
        self,
        evaluation: EvaluationSpec,
        prompts: Mapping[str, Sequence[PromptGroup]],
        rollouts: EngineRollouts,
        score: Callable[[Sequence[Rollout]], list[Reward]],
        folder: Path,
    ) -> None:
        self.evaluation = evaluation
        self.prompts = prompts
        self.rollouts = rollouts
        self.score = score
        self.folder = folder

    def run(self, step: int) -> dict[str, float]:
        """``eval/<dataset>/score_mean``, ``response_length_mean``, ``truncated_share`` and ``pass@k``."""
        metrics: dict[str, float] = {}
        lines: list[dict[str, Any]] = []
        for name, groups in self.prompts.items():
            rollouts = self.rollouts.evaluate(groups, self.evaluation, version=step)
            rewards = self.score(rollouts)
            scores = [reward.score for reward in rewards]
            metrics |= evaluation_metrics(name, rollouts, scores, self.evaluation)
            lines += [sample(rollout, score, name) for rollout, score in zip(rollouts, scores, strict=True)]
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self.folder / f"step-{step:06d}.jsonl"
        partial = target.with_suffix(".tmp")
        partial.write_text("".join(json.dumps(line, default=str) + "\n" for line in lines))
        partial.replace(target)
        return metrics


def evaluation_metrics(
    name: str, rollouts: Sequence[Rollout], scores: Sequence[float | None], evaluation: EvaluationSpec
) -> dict[str, float]:
    """Means over scored samples, and the unbiased pass@k over prompts, where an unscored sample is no pass."""
    by_prompt: dict[int, list[bool]] = {}
    for rollout, score in zip(rollouts, scores, strict=True):
        by_prompt.setdefault(rollout.group_id, []).append(score is not None and score >= evaluation.pass_score)
    known = [score for score in scores if score is not None]
    metrics = {
        f"eval/{name}/response_length_mean": mean([rollout.response_length for rollout in rollouts]),
        f"eval/{name}/truncated_share": mean([rollout.truncated for rollout in rollouts]),
    }
    if len(known) < len(scores):
        metrics[f"eval/{name}/unscored"] = float(len(scores) - len(known))
    if known:
        metrics[f"eval/{name}/score_mean"] = mean(known)
    for k in evaluation.pass_at:
        metrics[f"eval/{name}/pass@{k}"] = mean([pass_at_k(len(hits), sum(hits), k) for hits in by_prompt.values()])
    return metrics


def sample(rollout: Rollout, score: float | None, dataset: str) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "row": rollout.prompt.row,
        "prompt": rollout.prompt.text,
        "response": rollout.response_text,
        "label": rollout.prompt.label,
        "score": score,
        "finish_reason": rollout.finish_reason,
    }


def every(steps: int | None) -> Callable[[int], bool]:
    """Predicate of step numbers: multiples of ``steps``; none when absent."""
    return lambda step: steps is not None and step % steps == 0


def evaluates_at(spec: JobSpec, total_steps: int) -> Callable[[int], bool]:
    """Before the first step, after the last, and every ``evaluation.everySteps`` between."""
    if spec.evaluation is None:
        return lambda step: False
    between = every(spec.evaluation.every_steps)
    return lambda step: step in (0, total_steps) or between(step)


class RlOutputs:
    """Implements ``loops.rl.Outputs``."""

    def __init__(
        self,
        evaluator: Evaluator | None,
        save: Callable[[RlState], None],
        report: Callable[[RlState, Mapping[str, float]], None],
    ) -> None:
        self.evaluator = evaluator
        self.save = save
        self.report = report

    def evaluate(self, state: RlState) -> dict[str, float]:
        return self.evaluator.run(state.step) if self.evaluator else {}
