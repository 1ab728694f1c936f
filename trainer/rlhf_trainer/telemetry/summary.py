"""From metrics to words: formats, the pace of a run, and what a whole run came to. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_api.progress import BestEvaluation

Metrics = Mapping[str, Any]

PACE_STEPS = 20
PREFERRED_EVALUATION = ("score_mean", "score", "pass@1", "reward_mean")


def number(value: float) -> str:
    """Two or three significant digits, without an exponent where that stays short: 0.612, 0.0041, 1.2e-05, 1893."""
    size = abs(value)
    if not math.isfinite(value):
        return str(value)
    if size == 0 or size >= 100:
        return f"{value:.0f}"
    if size < 1e-4:
        return f"{value:.1e}"
    decimals = 1 if size >= 10 else 3 if size >= 0.1 else 1 - math.floor(math.log10(size))
    return f"{value:.{decimals}f}"


def percent(share: float) -> str:
    """0.031 -> 3%; a share that is small but not nothing is <1%."""
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def duration(seconds: float) -> str:
    """8.3s, 6m12s, 2h11m, 3d04h."""
    if 0 < seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02d}h"


class Pace:
    """Seconds a step, as the mean of the last 20, and from that the time to the end."""

    def __init__(self, total_steps: int) -> None:
        self.total_steps = total_steps
        self._recent: deque[float] = deque(maxlen=PACE_STEPS)
        self._step = 0

    def add(self, step: int, seconds: float) -> None:
        """``step`` steps are done, the last one took ``seconds``."""
        self._step = step
        self._recent.append(seconds)

    @property
    def seconds_per_step(self) -> float | None:
        return sum(self._recent) / len(self._recent) if self._recent else None

    @property
    def eta_seconds(self) -> float | None:
        """None before the first step."""
        each = self.seconds_per_step
        return None if each is None else max(self.total_steps - self._step, 0) * each


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    plain: str
    """Label on a plain line."""
    keys: tuple[str, ...]
    text: str
    """The value, as it is shown."""
    rank: int
    """Columns of the highest rank are left out first on a narrow terminal."""


def columns(metrics: Metrics) -> list[Column]:
    """What is known of a step, in the order in which it is shown."""
    table = (
        ("reward", "reward", "rollout/reward_mean", number, 0),
        ("score", "score", "rollout/score_mean", number, 3),
        ("KL", "kl", "rollout/kl", number, 1),
        ("entropy", "entropy", "actor/entropy", number, 2),
        ("length", "length", "rollout/response_length_mean", number, 1),
        ("trunc", "truncated", "rollout/truncated_share", percent, 2),
        ("gap", "gap", "rollout/logprob_gap_abs_mean", number, 2),
    )
    found = [Column(title, plain, (key,), show(metrics[key]), rank) for title, plain, key, show, rank in table if _known(metrics, key)]
    rates = ("perf/rollout_tokens_per_second", "perf/train_tokens_per_second")
    if any(_known(metrics, key) for key in rates):
        text = "/".join(number(metrics[key]) if _known(metrics, key) else "-" for key in rates)
        found.append(Column("tok/s gen/train", "tok/s gen/train", rates, text, 3))
    return found


def evaluations(metrics: Metrics) -> dict[str, dict[str, float]]:
    """Data set -> metric -> value, from the keys ``eval/<dataset>/<metric>``."""
    found: dict[str, dict[str, float]] = {}
    for key in metrics:
        if key.startswith("eval/") and key.count("/") >= 2 and _known(metrics, key):
            _, dataset, metric = key.split("/", 2)
            found.setdefault(dataset, {})[metric] = float(metrics[key])
    return found


def main_metric(metrics: Mapping[str, float]) -> str:
    """The one to plot and to compare: the score, else the first."""
    return next((name for name in PREFERRED_EVALUATION if name in metrics), next(iter(metrics)))


def better(best: BestEvaluation | None, row: Metrics) -> BestEvaluation | None:
    """``best``, or the evaluation of ``row`` (one of metrics.jsonl) where that is better: the first data set counts, by its main metric."""
    found = evaluations(row)
    if not found:
        return best
    dataset, metrics = next(iter(found.items()))
    name = main_metric(metrics)
    key = f"eval/{dataset}/{name}"
    if best is not None and (key != best.metric or metrics[name] <= best.value):
        return best
    return BestEvaluation(step=row["step"], metric=key, value=metrics[name])


def summarize(rows: Sequence[Metrics]) -> dict[str, str]:
    """Label -> text for the end of a run, from the rows of metrics.jsonl (also those of earlier attempts)."""
    facts: dict[str, str] = {}
    rewards = [row["rollout/reward_mean"] for row in rows if _known(row, "rollout/reward_mean")]
    if rewards:
        window = max(1, len(rewards) // 10)
        first, last = sum(rewards[:window]) / window, sum(rewards[-window:]) / window
        over = "first and last step" if window == 1 else f"mean of the first and last {window} steps"
        facts["reward"] = f"{number(first)} → {number(last)}  ({over})"
    histories: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in rows:
        for dataset, metrics in evaluations(row).items():
            name = main_metric(metrics)
            histories.setdefault((dataset, name), []).append((row["step"], metrics[name]))
    for (dataset, name), points in histories.items():
        best_step, best = max(points, key=lambda point: (point[1], -point[0]))
        facts[f"eval {dataset}"] = f"{name} {number(points[0][1])} → {number(points[-1][1])}  (best {number(best)} at step {best_step})"
    for label, key in (("KL", "rollout/kl"), ("entropy", "actor/entropy"), ("log-prob gap", "rollout/logprob_gap_abs_mean")):
        values = [row[key] for row in rows if _known(row, key)]
        if values:
            facts[label] = f"{number(values[0])} → {number(values[-1])}" if label != "log-prob gap" else f"at most {number(max(values))}"
    phases: dict[str, float] = {}
    for row in rows:
        for key in row:
            if key.startswith("timing_s/") and _known(row, key):
                phases[key.removeprefix("timing_s/")] = phases.get(key.removeprefix("timing_s/"), 0.0) + row[key]
    total = sum(phases.values())
    if total > 0:
        largest = sorted(phases.items(), key=lambda item: -item[1])[:5]
        facts["time"] = ", ".join(f"{name} {percent(seconds / total)}" for name, seconds in largest)
    return facts


def _known(metrics: Metrics, key: str) -> bool:
    return metrics.get(key) is not None
