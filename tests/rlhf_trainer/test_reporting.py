"""What a driver tells at its end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rlhf_api.exit_codes import ExitCode
from rlhf_api.progress import LAST_WORD, Progress, TrainedModel
from rlhf_trainer.checkpoint.store import Checkpoint
from rlhf_trainer.errors import ConfigError
from rlhf_trainer.reporting import Reporter
from rlhf_trainer.telemetry import log


@pytest.mark.parametrize("last_word", [True, False])
def test_the_last_line_on_a_cluster_is_the_final_report(tmp_path: Path, capsys: pytest.CaptureFixture[str], last_word: bool) -> None:
    events = log.setup(tmp_path, job="example", attempt=3)
    with Reporter(tmp_path, events, "uid-1", 3, tensorboard=False, title="example (grpo)", last_word=last_word) as report:
        report.begin(10, 10, 0, 0, {})
        report.step(1, 0, 1, {"rollout/reward_mean": 0.5}, {})
        report.failed(ConfigError("spec.x: 1"), ExitCode.CONFIG)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(LAST_WORD) is last_word
    if last_word:
        final = Progress.model_validate_json(last.removeprefix(LAST_WORD))
        assert (final.job_uid, final.attempt, final.step, final.metrics) == ("uid-1", 3, 1, {"rollout/reward_mean": 0.5})
        assert final.failure is not None
        assert (final.failure.exit_code, final.failure.message) == (2, "spec.x: 1")


def test_the_final_report_names_the_model_and_the_best_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also the best of an earlier attempt, as far as its steps still count."""
    scores = [(0, 0.1), (10, 0.7), (20, 0.9), (30, 0.5)]
    manifest = SimpleNamespace(committed_at="2026-01-01T00:00:00Z")
    continued = Checkpoint(step=10, path=tmp_path / "step-000010", manifest=manifest)  # type: ignore[arg-type]
    for attempt, rows in ((1, scores[:3]), (2, scores[3:])):
        events = log.setup(tmp_path, job="example", attempt=attempt)
        with Reporter(tmp_path, events, "uid-1", attempt, tensorboard=False, title="example (grpo)", last_word=True) as report:
            report.resume(10 if attempt == 2 else 0, continued if attempt == 2 else None)
            report.begin(30, 30, 0, 0, {})
            for step, score in rows:
                report.step(step, 0, step, {"eval/a/score_mean": score, "eval/a/pass@1": 1 - score, "eval/b/score_mean": 1.0}, {})
            if attempt == 2:
                report.exported(30, tmp_path / "final")
        final = Progress.model_validate_json(capsys.readouterr().out.splitlines()[-1].removeprefix(LAST_WORD))
        assert final.best is not None
        assert (final.best.step, final.best.metric, final.best.value) == ((20, "eval/a/score_mean", 0.9), (10, "eval/a/score_mean", 0.7))[
            attempt - 1
        ]
        assert final.model == (TrainedModel(step=30, path=str(tmp_path / "final")) if attempt == 2 else None)


def test_a_continued_attempt_shows_its_checkpoints_step_from_the_start(tmp_path: Path) -> None:
    events = log.setup(tmp_path, job="example", attempt=2)
    manifest = SimpleNamespace(committed_at="2026-01-01T00:00:00Z")
    with Reporter(tmp_path, events, "uid-1", 2, tensorboard=False, title="example (grpo)") as report:
        report.found(Checkpoint(step=20, path=tmp_path / "step-000020", manifest=manifest))  # type: ignore[arg-type]
        assert (report.progress.step, report.progress.checkpoint and report.progress.checkpoint.step) == (20, 20)
