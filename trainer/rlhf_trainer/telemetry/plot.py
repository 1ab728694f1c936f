"""``reward.png``: how the reward of a run went, with its evaluations."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from rlhf_trainer.checkpoint import durable
from rlhf_trainer.telemetry.metrics import read
from rlhf_trainer.telemetry.summary import evaluations, main_metric

REWARD = "#3b6fb6"
EVALUATION = ("#d1603d", "#3f8f5f", "#8a5fb0", "#b08a2e")
INK = "#333333"
MAX_WINDOW = 50


def moving_average(values: Sequence[float], window: int) -> list[float]:
    """Mean of the last ``window`` values at each position; of those there are at the start."""
    return [sum(values[max(0, end - window) : end]) / min(window, end) for end in range(1, len(values) + 1)]


def reward_curve(metrics_path: Path, png_path: Path, title: str = "") -> bool:
    """Draw reward a step (points), its moving average (line) and evaluations (markers). False when there is nothing to draw."""
    rows = read(metrics_path)
    rewards = [(row["step"], row["rollout/reward_mean"]) for row in rows if row.get("rollout/reward_mean") is not None]
    series: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for dataset, metrics in evaluations(row).items():
            name = main_metric(metrics)
            series.setdefault(f"held out: {dataset} ({name})", []).append((row["step"], metrics[name]))
    if not rewards and not series:
        return False

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    if rewards:
        _draw_rewards(axes, rewards)
    for index, (label, points) in enumerate(series.items()):
        color = EVALUATION[index % len(EVALUATION)]
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, color=color, linewidth=1.4, linestyle="--", marker="D", markersize=6, label=label, zorder=4)
        _label_end(axes, points, color)
    _dress(axes, title)

    image = io.BytesIO()
    FigureCanvasAgg(figure).print_png(image)
    durable.write_bytes(png_path, image.getvalue())
    return True


def _draw_rewards(axes: Axes, rewards: Sequence[tuple[int, float]]) -> None:
    steps, values = zip(*rewards, strict=True)
    window = min(MAX_WINDOW, max(1, len(values) // 10))
    axes.plot(steps, values, color=REWARD, alpha=0.35, linestyle="none", marker="o", markersize=3.5, label="reward, each step", zorder=2)
    average = moving_average(values, window)
    label = f"reward, mean of {window} steps" if window > 1 else "reward"
    axes.plot(steps, average, color=REWARD, linewidth=2.2, label=label, zorder=3)


def _label_end(axes: Axes, points: Sequence[tuple[int, float]], color: str) -> None:
    for step, value in {points[0], points[-1]}:
        text = axes.annotate(f"{value:.2f}", (step, value), xytext=(0, -16), textcoords="offset points", ha="center", zorder=5)
        text.set(color=color, fontsize=9, fontweight="bold", path_effects=[withStroke(linewidth=3, foreground="white")])


def _dress(axes: Axes, title: str) -> None:
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel("mean reward / score", color=INK)
    if title:
        axes.set_title(title, loc="left", color=INK, fontsize=12, fontweight="bold")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.margins(x=0.03, y=0.12)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#bbbbbb")
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="best")
