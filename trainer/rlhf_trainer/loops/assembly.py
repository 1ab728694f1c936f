"""Puts the collaborators of the loop together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_api.spec import RLHFJob
from rlhf_trainer.checkpoint.store import CheckpointStore
from rlhf_trainer.cluster import Cluster
from rlhf_trainer.data.loader import PromptLoader
from rlhf_trainer.data.prepare import prepare
from rlhf_trainer.loops import rl
from rlhf_trainer.loops.experience import Experience
from rlhf_trainer.loops.learner import Learner
from rlhf_trainer.loops.outputs import Evaluator, RlOutputs, evaluates_at, every
from rlhf_trainer.loops.rollouts import EngineRollouts
from rlhf_trainer.loops.step_metrics import rollout_metrics, throughput, update_metrics
from rlhf_trainer.models import attention
from rlhf_trainer.reporting import Reporter
from rlhf_trainer.rewards.pipeline import RewardPipeline
from rlhf_trainer.sync.turns import Turn
from rlhf_trainer.types import PromptGroup, Reward, Rollout

ROLLOUT_TIMEOUT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Assembled:
    loop: rl.RlParts
    rewards: RewardPipeline
    metrics_of: Callable[..., dict[str, float]]


class CheckedWeights:
    """Implements ``loops.rl.Weights``: a push, and its numbers."""

    def __init__(self, cluster: Cluster, turn: Callable[[Turn], object]) -> None:
        self.cluster = cluster
        self.turn = turn

    def push(self, version: int) -> dict[str, float]:
        self.turn("sync")
        return self.cluster.sync.push(version).metrics()


@contextmanager
def assemble(
    job: RLHFJob,
    base_dir: Path,
    tokenizer: Any,
    cluster: Cluster,
    loader: PromptLoader,
    store: CheckpointStore,
    report: Reporter,
    stop: Callable[[], bool],
    horizon: tuple[int, int],
) -> Iterator[Assembled]:
    """``horizon``: total steps and total updates. Reward processes live while the context is open."""
    spec = job.spec
    total_steps, total_updates = horizon
    turn = cluster.turns().take
    share_prompt = (
        spec.training.share_prompt
        and spec.training.packing
        and attention.can_share_prompt(attention.choose(spec.training.attention, "cpu" if cluster.device == "cpu" else "cuda:0"))
    )
    learner = Learner(spec, cluster.groups, total_updates=total_updates, share_prompt=share_prompt, turn=turn)
    scorer = learner.reward_scores if "reward" in cluster.groups else None
    rewards = RewardPipeline(spec.rl.reward, base_dir, scorer, label_key=spec.data.label_key)
    rollouts = EngineRollouts(spec, cluster.engines, timeout_seconds=ROLLOUT_TIMEOUT_SECONDS, turn=turn)

    def evaluation_score(batch: Any) -> list[Reward]:
        return rewards.score(batch, update_statistics=False)

    evaluator = None
    if spec.evaluation is not None:
        held_out = prepare(job, base_dir, tokenizer, spec.evaluation.datasets, field="spec.evaluation.datasets").prompts
        groups = {name: [PromptGroup(i, prompt) for i, prompt in enumerate(prompts)] for name, prompts in held_out.items()}
        evaluator = Evaluator(spec.evaluation, groups, rollouts, evaluation_score, store.job_dir / "eval")

    def save(state: rl.RlState) -> None:
        def write(folder: Path) -> dict[str, Any]:
            turn("checkpoint")
            cluster.save(folder)
            return {
                "step": state.step,
                "updates": state.updates,
                "kl": state.kl.state_dict(),
                "prompts": loader.state_dict(),
                "rewards": rewards.state_dict(),
            }

        report.committed(store.save(state.step, write, loader.fingerprint()))

    reward_failures: list[int] = []

    def tell(state: rl.RlState, metrics: Mapping[str, float]) -> None:
        # A superseded driver must not write beside its successor.
        store.ensure_claim()
        failed = sum(rewards.last_batch.get(kind, 0) for kind in ("errors", "timeouts"))
        if failed and not reward_failures:
            reward_failures.append(state.step)
            report.display.notice(
                f"step {state.step}: {failed} rewards failed and follow onError; "
                "reward/errors and reward/timeouts count them, driver.log says why"
            )
        report.step(state.step, loader.epoch, state.updates, metrics, rewards.counts)

    def metrics_of(
        before: rl.RlState, experience: Experience, stats: Mapping[str, float], sync: Mapping[str, float], evaluation: Mapping[str, float]
    ) -> dict[str, float]:
        timing = report.phase.drain()
        return {
            **rollout_metrics(experience.rollouts, experience.rewards, spec.data.max_length),
            **update_metrics(stats, experience),
            **{f"reward/{name}": float(count) for name, count in rewards.last_batch.items()},
            "rollout/weight_version": float(before.step),
            "kl/coef": before.kl.coef,
            **sync,
            **evaluation,
            **throughput(timing, token_counts(experience.rollouts)),
            **{f"perf/peak_memory_gb/{process}": peak / 1e9 for process, peak in cluster.peak_memory().items()},
            **timing,
        }

    loop = rl.RlParts(
        phase=report.phase,
        prompts=loader,
        rollouts=rollouts,
        rewards=rewards,
        learner=learner,
        weights=CheckedWeights(cluster, turn),
        outputs=RlOutputs(evaluator, save, tell),
        prompts_per_step=spec.rl.rollout.prompts_per_step,
        evaluates_at=evaluates_at(spec, total_steps),
        saves_at=every(spec.checkpoint.every_steps),
        stop_requested=stop,
    )
    try:
        rewards.start()
        yield Assembled(loop, rewards, metrics_of)
    finally:
        rewards.close()


def token_counts(rollouts: list[Rollout]) -> dict[str, int]:
    return {"all": sum(len(rollout.ids) for rollout in rollouts), "sampled": sum(rollout.response_length for rollout in rollouts)}
