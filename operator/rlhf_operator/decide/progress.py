"""From the trainer's ``/progress`` to what the status says of it."""

from __future__ import annotations

import math
from datetime import datetime

from rlhf_api.progress import Progress
from rlhf_api.status import BestCheckpoint, CheckpointStatus, ModelStatus, ProgressStatus
from rlhf_operator.decide.case import Case
from rlhf_operator.decide.texts import SHORT_MAX, clean, cut, duration, moment_of, stamp

REWARD, KL, SPEED = "rollout/reward_mean", "rollout/kl", "perf/tokens_per_second"
"""Keys of metrics.jsonl. Other metrics go to Prometheus and the log: a status has a fixed size."""
PATH_MAX = 1024


def record(case: Case) -> None:
    """Take over what the trainer of the running attempt reported."""
    run, head = case.run, case.seen.head
    report = head.progress if head is not None else None
    if run is None or head is None or report is None:
        return
    if report.attempt != case.status.attempt or report.job_uid != case.seen.job.uid:
        return
    at = min(head.progress_at or head.at, case.now)
    step = report.step
    if run.last_step is None or step > run.last_step:
        # The number that an attempt starts with is none of its own.
        grown = run.last_step is not None
        case.set_run(last_step=step, **({"last_step_at": stamp(at)} if grown else {}))
    case.set(
        progress=status_of(report, at),
        checkpoint=checkpoint_of(report, case.status.checkpoint),
        model=model_of(report, case.status.model),
    )
    if report.step > 0 and case.status.first_step_at is None:
        case.set(first_step_at=stamp(at))


def status_of(report: Progress, at: datetime) -> ProgressStatus:
    return ProgressStatus(
        step=report.step,
        total_steps=report.total_steps or None,
        epoch=report.epoch,
        stage=cut(report.stage, SHORT_MAX),
        reward=number(report.metrics.get(REWARD)),
        kl=number(report.metrics.get(KL)),
        tokens_per_second=number(report.metrics.get(SPEED)),
        eta=duration(report.eta) if report.eta is not None and math.isfinite(report.eta) else None,
        updated_at=stamp(at),
    )


def checkpoint_of(report: Progress, stored: CheckpointStatus | None) -> CheckpointStatus | None:
    """The last complete checkpoint. A path that is too long to store is left out rather than cut to another folder's name."""
    new = report.checkpoint
    committed = moment_of(new.committed_at) if new is not None else None
    if new is None or committed is None or len(new.path) > PATH_MAX:
        return stored
    best = best_of(report) or (stored.best if stored is not None else None)
    return CheckpointStatus(step=new.step, path=clean(new.path), committed_at=stamp(committed), best=best)


def best_of(report: Progress) -> BestCheckpoint | None:
    value = number(report.best.value) if report.best is not None else None
    if report.best is None or value is None:
        return None
    return BestCheckpoint(step=report.best.step, metric=cut(report.best.metric, SHORT_MAX), value=value)


def model_of(report: Progress, stored: ModelStatus | None) -> ModelStatus | None:
    """Where the trained model is. An attempt that starts again after the model was written says so again."""
    new = report.model
    if new is None or len(new.path) > PATH_MAX:
        return stored
    return ModelStatus(step=new.step, path=clean(new.path))


def finished(progress: ProgressStatus | None) -> ProgressStatus | None:
    """Progress of a job that succeeded: the last steps may have passed between two polls."""
    if progress is None:
        return None
    return progress.model_copy(update={"step": progress.total_steps or progress.step, "eta": None, "stage": "done"})


def number(value: float | None) -> str | None:
    """Two or three significant digits, without an exponent where that stays short: 0.612, 0.0041, 1.2e-05, 1893."""
    if value is None or not math.isfinite(value):
        return None
    size = abs(value)
    if size == 0 or 100 <= size < 1e15:
        return f"{value:.0f}"
    if size < 1e-4 or size >= 1e15:
        return f"{value:.1e}"
    decimals = 1 if size >= 10 else 3 if size >= 0.1 else 1 - math.floor(math.log10(size))
    return f"{value:.{decimals}f}"
