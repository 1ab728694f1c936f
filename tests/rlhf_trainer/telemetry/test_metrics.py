import errno
import json
import math

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlhf_trainer.errors import JobError
from rlhf_trainer.telemetry import metrics
from rlhf_trainer.telemetry.metrics import MetricsLog


def rows(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def fill(folder, steps, tensorboard=False) -> None:
    with MetricsLog(folder, tensorboard) as log:
        for step in steps:
            log.append(step, {"rollout/reward_mean": step / 10})


def test_one_object_a_step(tmp_path):
    with MetricsLog(tmp_path, tensorboard=False) as log:
        log.append(0, {"eval/a/score_mean": 0.5})
        log.append(1, {"epoch": 0, "rollout/reward_mean": np.float32(0.25), "rollout/empty_rows": np.int64(3)})
    assert rows(tmp_path) == [
        {"step": 0, "eval/a/score_mean": 0.5},
        {"step": 1, "epoch": 0, "rollout/reward_mean": 0.25, "rollout/empty_rows": 3},
    ]


def test_values_that_are_not_finite_are_null(tmp_path):
    with MetricsLog(tmp_path, tensorboard=False) as log:
        log.append(1, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": None})
    assert rows(tmp_path) == [{"step": 1, "a": None, "b": None, "c": None, "d": None}]


def test_resume_drops_rows_beyond_the_checkpoint(tmp_path):
    fill(tmp_path, range(1, 6))
    MetricsLog(tmp_path, tensorboard=False).truncate_after(3)
    fill(tmp_path, [4])
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4]


def test_start_without_checkpoint_drops_everything(tmp_path):
    fill(tmp_path, range(3))
    MetricsLog(tmp_path, tensorboard=False).truncate_after(-1)
    assert rows(tmp_path) == []


def test_torn_last_line_is_ignored_and_removed(tmp_path):
    fill(tmp_path, [1, 2])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "rollout/rew')
    assert [row["step"] for row in metrics.read(tmp_path / "metrics.jsonl")] == [1, 2]
    MetricsLog(tmp_path, tensorboard=False).truncate_after(3)
    fill(tmp_path, [3])
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3]


def test_truncating_what_is_not_there_is_fine(tmp_path):
    MetricsLog(tmp_path, tensorboard=True).truncate_after(7)
    assert metrics.read(tmp_path / "metrics.jsonl") == []


def test_tensorboard_hides_what_a_lost_attempt_wrote(tmp_path):
    fill(tmp_path, range(1, 6), tensorboard=True)
    log = MetricsLog(tmp_path, tensorboard=True)
    log.truncate_after(3)
    log.append(4, {"rollout/reward_mean": -1.0, "nan": math.nan})
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    points = [(event.step, round(event.value, 3)) for event in events.Scalars("rollout/reward_mean")]
    assert points == [(1, 0.1), (2, 0.2), (3, 0.3), (4, -1.0)]
    assert events.Tags()["scalars"] == ["rollout/reward_mean"]


def test_full_disk_is_named(tmp_path, monkeypatch):
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(metrics.os, "fsync", full)
    with pytest.raises(JobError, match=r"metrics\.jsonl: the disk is full"):
        MetricsLog(tmp_path, tensorboard=False).append(1, {})
