"""One place that tells everybody how a job goes: metrics.jsonl, TensorBoard, /progress, /metrics, the terminal, driver.log."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType

from rlhf_api.progress import LAST_WORD, CommittedCheckpoint, Failure, Progress, TrainedModel, Updates
from rlhf_trainer.algorithms.correction import HEALTHY_PROBABILITY_DIFFERENCE
from rlhf_trainer.checkpoint.store import Checkpoint
from rlhf_trainer.errors import JobError
from rlhf_trainer.telemetry import metrics as metric_files
from rlhf_trainer.telemetry import plot
from rlhf_trainer.telemetry.display import Display
from rlhf_trainer.telemetry.log import EventLog
from rlhf_trainer.telemetry.metrics import MetricsLog
from rlhf_trainer.telemetry.phases import Phases
from rlhf_trainer.telemetry.progress_server import Ports, ProgressServer
from rlhf_trainer.telemetry.summary import better, summarize

AFTER_THE_STEP = ("checkpoint", "export")


class Reporter(AbstractContextManager["Reporter"]):
    """Open for the whole life of a driver. ``phase`` times a stage and beats its heart.

    ``last_word``: the final report is also the last line on stdout, for whoever polls and comes too late.
    """

    def __init__(
        self, folder: Path, log: EventLog, job_uid: str, attempt: int, *, tensorboard: bool, title: str, last_word: bool = False
    ) -> None:
        self.folder = folder
        self.log = log
        self.title = title
        self.phase = Phases()
        self.progress = Progress(job_uid=job_uid, attempt=attempt)
        self.metrics = MetricsLog(folder, tensorboard)
        self.display = Display(self.phase)
        self._server: ProgressServer | None = None
        self._last_word = last_word
        self._training = False
        self._gap_noticed = False
        self._stack = ExitStack()

    def __enter__(self) -> Reporter:
        self._stack.enter_context(self.metrics)
        self._stack.enter_context(self.display)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        final = self._server.progress if self._server is not None else self.progress
        if self._server is not None:
            self._server.stop()
        self._stack.close()
        if self._last_word:
            print(f"{LAST_WORD}{final.model_dump_json(by_alias=True)}", flush=True)

    def serve(self, token: str | None, host: str, progress_port: int | None, metrics_port: int | None) -> Ports:
        self._server = ProgressServer(token, self.phase, self.progress, progress_port, metrics_port, host)
        return self._server.start()

    def found(self, checkpoint: Checkpoint) -> None:
        """Where this attempt starts, told before the models are loaded: until then it would look like step 0."""
        self._publish(step=checkpoint.step, checkpoint=committed(checkpoint))

    def resume(self, step: int, checkpoint: Checkpoint | None) -> None:
        """Forget what a lost attempt wrote beyond ``step``."""
        self.metrics.truncate_after(step if checkpoint is not None else -1)
        history = metric_files.read(self.metrics.path)
        best = None
        for row in history:
            self.display.remember(row)
            best = better(best, row)
        self._publish(best=best)
        if checkpoint is not None:
            self._publish(step=step, checkpoint=committed(checkpoint))

    def begin(self, total_steps: int, planned_updates: int, step: int, updates: int, counts: Mapping[str, int]) -> None:
        self._publish(step=step, total_steps=total_steps, updates=Updates(planned=planned_updates, done=updates), counts=dict(counts))
        self.display.begin(total_steps, step)
        self._training = True

    def step(self, step: int, epoch: int, updates: int, metrics: Mapping[str, float], counts: Mapping[str, int]) -> None:
        """One finished step; step 0 is the evaluation before training."""
        row = {"epoch": epoch, **metrics}
        self.metrics.append(step, row)
        self.log.event("step", step=step, **{key: value for key, value in row.items() if not key.startswith("timing_s/")})
        if step:
            self.display.step(step, row)
        else:
            self.display.evaluation(step, row)
        planned = self.progress.updates.planned
        self._publish(
            step=step,
            epoch=epoch,
            updates=Updates(planned=planned, done=updates),
            metrics=metric_files.finite(metrics),
            best=better(self.progress.best, {"step": step, **metric_files.finite(metrics)}),
            eta=self.display.eta_seconds,
            counts={**self.progress.counts, **counts},
        )
        self._watch_gap(step, metrics)
        if any(key.startswith("eval/") for key in metrics):
            self.draw()

    def _watch_gap(self, step: int, metrics: Mapping[str, float]) -> None:
        """An event at each step where engine and trainer differ more than is healthy; said once on the display."""
        gap = metrics.get("rollout/probability_gap_mean", 0.0)
        if gap <= HEALTHY_PROBABILITY_DIFFERENCE:
            return
        self.log.warning("engine and trainer differ", step=step, probability_gap_mean=gap, healthy=HEALTHY_PROBABILITY_DIFFERENCE)
        if not self._gap_noticed:
            self._gap_noticed = True
            self.display.notice(
                f"engine and trainer differ by {gap:.3f} in the mean probability of a sampled token (healthy: up to "
                f"{HEALTHY_PROBABILITY_DIFFERENCE:g}; bf16 alone can exceed it). rl.correction bounds its effect."
            )

    def committed(self, checkpoint: Checkpoint) -> None:
        self._publish(checkpoint=committed(checkpoint))
        self.log.event("checkpoint", step=checkpoint.step, path=checkpoint.path)
        self.draw()

    def exported(self, step: int, path: Path) -> None:
        """The final model is complete at ``path``."""
        self._publish(model=TrainedModel(step=step, path=str(path)))
        self.log.event("model", step=step, path=path)

    def draw(self) -> None:
        """``reward.png``, at evaluations and checkpoints: a picture takes a quarter of a second, some steps less."""
        plot.reward_curve(self.metrics.path, self.folder / "reward.png", self.title)

    def failed(self, error: BaseException, exit_code: int) -> str:
        """Publish and log a failure; returns the stage it happened in, with the step where there is one."""
        stage = self.phase.failed_in or self.phase.current
        message = str(error) if isinstance(error, JobError) else f"{type(error).__name__}: {error}"
        self._publish(failure=Failure(exit_code=exit_code, stage=stage, message=message))
        # A checkpoint is of the step that was just reported; everything else belongs to the one in progress.
        step = self.progress.step + (stage not in AFTER_THE_STEP)
        self.log.failure("failed", error, phase=stage, step=step, exit_code=exit_code)
        return f"{stage} of step {step}" if self._training else stage

    def summary(self, outcome: str, facts: Mapping[str, str]) -> None:
        """The end of a run that did what it should: what came of it, then ``facts``."""
        self.display.summary(outcome, {**summarize(metric_files.read(self.metrics.path)), **facts})

    def bad_end(self, outcome: str, facts: Mapping[str, str]) -> None:
        """Why a run ended early; its numbers would only hide that."""
        self.display.summary(outcome, facts, good=False)

    def _publish(self, **changes: object) -> None:
        self.progress = self.progress.model_copy(update=changes)
        if self._server is not None:
            self._server.update(self.progress)


def committed(checkpoint: Checkpoint) -> CommittedCheckpoint:
    return CommittedCheckpoint(step=checkpoint.step, path=str(checkpoint.path), committed_at=checkpoint.manifest.committed_at)
