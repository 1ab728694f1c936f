"""All reward sources of a job over one batch of rollouts: typed outcomes, weights, and what ``onError`` says.

Steps 1 and 2 of the reward pipeline: outcome of each source, then the weighted sum of those that apply. A reward that
no source gave is never a silent 0.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rlhf_api.spec import FunctionSpec, RewardSourceSpec, RewardSpec
from rlhf_api.violations import Violation
from rlhf_trainer.data.sources import nearest
from rlhf_trainer.errors import ConfigError, DataError
from rlhf_trainer.rewards import outcomes
from rlhf_trainer.rewards.function_host import FunctionHost, RewardError
from rlhf_trainer.rewards.normalize import RunningMoments
from rlhf_trainer.rewards.outcomes import Outcome
from rlhf_trainer.types import Reward, Rollout

log = logging.getLogger(__name__)

ModelScorer = Callable[[Sequence[Rollout]], Sequence[float]]
OnError = Literal["fail", "zero", "drop"]
STRICTEST: tuple[OnError, ...] = ("fail", "drop", "zero")
MODEL_SOURCE = "model"
BATCH_FACTS = ("errors", "timeouts", "zeroed", "dropped", "unscored")


@dataclass(frozen=True, slots=True)
class _Source:
    name: str
    field: str
    spec: RewardSourceSpec
    host: FunctionHost | None
    """None: the reward model."""

    @property
    def on_error(self) -> OnError:
        return self.spec.function.on_error if self.spec.function is not None else "fail"


class RewardPipeline:
    """``model_scorer`` gives the reward model's score of each rollout, in order; needed when a source names the model."""

    def __init__(self, reward: RewardSpec, base_dir: Path, model_scorer: ModelScorer | None, *, label_key: str | None = None) -> None:
        """``label_key``: name under which a function may ask for the labels, besides ``labels``."""
        if not reward.sources:
            raise ConfigError(Violation("spec.rl.reward.sources", [], "a job needs a source of rewards", "a function or model source"))
        self._model_scorer = model_scorer
        self._label_key = label_key
        names = source_names(reward)
        self._sources = [
            _Source(name, field, spec, host_of(spec.function, base_dir, field) if spec.function is not None else None)
            for index, (name, spec) in enumerate(zip(names, reward.sources, strict=True))
            for field in [f"spec.rl.reward.sources[{index}]"]
        ]
        if model_scorer is None and any(source.host is None for source in self._sources):
            raise ConfigError(Violation("spec.rl.reward.sources", MODEL_SOURCE, "there is no reward model to score with", "models.reward"))
        self._moments = {source.name: RunningMoments() for source in self._sources if source.spec.normalize}
        self.counts: Counter[str] = Counter()
        """Training rollouts since the job began: errors, timeouts and not_applicable by source; zeroed, dropped, unscored."""
        self.last_batch: Mapping[str, int] = dict.fromkeys(BATCH_FACTS, 0)
        """``BATCH_FACTS`` of the last call of ``score`` that was for training."""

    def start(self) -> None:
        """Start the processes and import the reward files. Raises ``DataError``."""
        for source in self._sources:
            if source.host is not None:
                try:
                    source.host.start()
                except RewardError as error:
                    raise failure(source.field, error) from error

    def close(self) -> None:
        for source in self._sources:
            if source.host is not None:
                source.host.close()

    def score(self, rollouts: Sequence[Rollout], *, update_statistics: bool = True) -> list[Reward]:
        """One ``Reward`` a rollout, in order. ``update_statistics`` False: evaluation leaves moments, counts and ``last_batch`` alone."""
        tally: Counter[str] = Counter()
        rewards = self._rewards(rollouts, tally, update_statistics) if rollouts else []
        if update_statistics:
            self.counts += tally
            self.last_batch = {name: tally[name] for name in BATCH_FACTS}
        return rewards

    def _rewards(self, rollouts: Sequence[Rollout], tally: Counter[str], update_statistics: bool) -> list[Reward]:
        """Adds what happened to ``tally``."""
        results = {source.name: self._outcomes(source, rollouts, tally) for source in self._sources}
        if update_statistics:
            for name, moments in self._moments.items():
                self._moments[name] = moments.update([o.value for o in results[name] if o.value is not None])
        by_row = [{name: rows[row] for name, rows in results.items()} for row in range(len(rollouts))]
        return [self._combine(by_source, rollout, tally) for by_source, rollout in zip(by_row, rollouts, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        return {"moments": {name: asdict(moments) for name, moments in self._moments.items()}, "counts": dict(self.counts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._moments = {name: RunningMoments(**moments) for name, moments in state["moments"].items()}
        self.counts = Counter(state["counts"])

    def _outcomes(self, source: _Source, rollouts: Sequence[Rollout], tally: Counter[str]) -> list[Outcome]:
        if source.host is None:
            return self._model_outcomes(source, rollouts)
        fails = source.on_error == "fail"
        columns = columns_of(rollouts, self._label_key)
        try:
            found = outcomes.evaluate(source.host, columns, fails, [describe_row(rollout) for rollout in rollouts])
        except RewardError as error:
            raise failure(source.field, error) from error
        bad = next((outcome.problem for outcome in found if outcome.problem is not None), None)
        if bad is not None and fails:
            raise failure(source.field, bad) from bad
        tally += outcomes.count(found)
        if bad is not None:
            log.warning("%s: %d of %d rollouts failed, onError: %s. First: %s", source.name, _bad(found), len(found), source.on_error, bad)
        return found

    def _model_outcomes(self, source: _Source, rollouts: Sequence[Rollout]) -> list[Outcome]:
        assert self._model_scorer is not None
        scores = [float(score) for score in self._model_scorer(rollouts)]
        if len(scores) != len(rollouts):
            raise DataError(f"{source.field}: the reward model gave {len(scores)} scores for {len(rollouts)} rollouts")
        for score, rollout in zip(scores, rollouts, strict=True):
            if not math.isfinite(score):
                raise DataError(f"{source.field}: the reward model gave {score} for {describe_row(rollout)}")
        return [Outcome("ok", score) for score in scores]

    def _combine(self, by_source: Mapping[str, Outcome], rollout: Rollout, tally: Counter[str]) -> Reward:
        parts: dict[str, float | None] = {}
        logs: dict[str, float] = {}
        weighted: list[float] = []
        raw: list[float] = []
        explicit: list[tuple[float, float]] = []
        is_dropped = is_zeroed = False
        for source in self._sources:
            outcome = by_source[source.name]
            parts[source.name] = outcome.value
            prefix = f"{source.name}/" if len(self._sources) > 1 else ""
            logs.update({f"{prefix}{key}": value for key, value in outcome.extra_logs.items()})
            weight = source.spec.weight
            if outcome.problem is not None:
                is_dropped = is_dropped or source.on_error == "drop"
                is_zeroed = is_zeroed or source.on_error == "zero"
                weighted.append(0.0)
                raw.append(0.0)
            elif outcome.value is not None:
                moments = self._moments.get(source.name)
                weighted.append(weight * (moments.normalized(outcome.value) if moments is not None else outcome.value))
                raw.append(weight * outcome.value)
                if outcome.score is not None:
                    explicit.append((abs(weight), outcome.score))
        if not weighted:
            tally["unscored"] += 1
            is_dropped = self._unscored(rollout) == "drop"
            is_zeroed = not is_dropped
            weighted, raw = [0.0], [0.0]
        if is_dropped:
            tally["dropped"] += 1
            return Reward(None, None, parts, logs)
        if is_zeroed:
            tally["zeroed"] += 1
        return Reward(math.fsum(weighted), _score(explicit, math.fsum(raw)), parts, logs)

    def _unscored(self, rollout: Rollout) -> OnError:
        """No source applies: the strictest ``onError`` among the sources decides."""
        decided = {source.on_error for source in self._sources}
        on_error = next(choice for choice in STRICTEST if choice in decided)
        if on_error == "fail":
            names = ", ".join(source.name for source in self._sources)
            rule = f"no source scores {describe_row(rollout)} (asked: {names}; each returned None)"
            raise DataError(Violation("spec.rl.reward.sources", names, rule, "a number for each rollout, or onError: zero or drop"))
        return on_error


def _score(explicit: Sequence[tuple[float, float]], default: float) -> float:
    """Mean of the scores that functions gave, by absolute weight; the weighted sum of raw rewards when none did."""
    total = math.fsum(weight for weight, _ in explicit)
    return math.fsum(weight * score for weight, score in explicit) / total if total else default


def _bad(found: Sequence[Outcome]) -> int:
    return sum(outcome.problem is not None for outcome in found)


def failure(field: str, error: RewardError) -> DataError:
    evidence = f"\n{error.evidence.rstrip()}" if error.evidence else ""
    return DataError(f"{field}.function: {error}{evidence}")


def source_names(reward: RewardSpec) -> list[str]:
    """Metric names: the file without suffix, with the function's name and a number where needed; ``model``."""
    specs = reward.sources
    stems = [Path(spec.function.file).stem if spec.function is not None else MODEL_SOURCE for spec in specs]
    names = [
        f"{stem}.{spec.function.name}" if spec.function is not None and stems.count(stem) > 1 else stem
        for stem, spec in zip(stems, specs, strict=True)
    ]
    return [f"{name}-{index}" if name in names[:index] else name for index, name in enumerate(names)]


def host_of(function: FunctionSpec, base_dir: Path, field: str) -> FunctionHost:
    path = base_dir / Path(function.file).expanduser()
    if not path.is_file():
        names = sorted(entry.name for entry in path.parent.glob("*.py"))
        listing = ", ".join(names[:8]) or "no Python files"
        rule = f"{path.resolve()} does not exist; its folder has {listing}"
        raise DataError(Violation(f"{field}.function.file", function.file, rule, nearest(path.name, names)))
    return FunctionHost(path, function.name, function.timeout_seconds, base_dir)


def columns_of(rollouts: Sequence[Rollout], label_key: str | None) -> dict[str, list[Any]]:
    """Everything a function may ask for by name, one entry a rollout, in plain Python."""
    prompts = [rollout.prompt for rollout in rollouts]
    keys = dict.fromkeys(key for prompt in prompts for key in prompt.metadata)
    columns: dict[str, list[Any]] = {key: [prompt.metadata.get(key) for prompt in prompts] for key in keys}
    labels = [prompt.label for prompt in prompts]
    if label_key is not None:
        columns[label_key] = labels
    return columns | {
        "queries": [rollout.query_text for rollout in rollouts],
        "prompts": [prompt.text for prompt in prompts],
        "labels": labels,
        "completions": [rollout.response_text for rollout in rollouts],
        "metadata": [dict(prompt.metadata) for prompt in prompts],
        "response_ids": [rollout.ids[rollout.action_mask].tolist() for rollout in rollouts],
        "finish_reasons": [rollout.finish_reason for rollout in rollouts],
        "truncated": [rollout.truncated for rollout in rollouts],
    }


def describe_row(rollout: Rollout) -> str:
    prompt = rollout.prompt
    return f"row {prompt.row} of {prompt.dataset} (counted from 0), sample {rollout.sample_index} of group {rollout.group_id}"
