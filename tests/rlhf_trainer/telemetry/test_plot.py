import json

import pytest
from matplotlib.image import imread

from rlhf_trainer.telemetry.plot import moving_average, reward_curve


def test_moving_average_uses_what_there_is_at_the_start():
    assert moving_average([1.0, 3.0, 5.0, 7.0], 2) == [1.0, 2.0, 4.0, 6.0]
    assert moving_average([1.0, 2.0], 1) == [1.0, 2.0]


def test_curve_is_a_picture(tmp_path):
    rows = [{"step": 0, "eval/a/score_mean": 0.4}]
    rows += [{"step": step, "rollout/reward_mean": step / 20} for step in range(1, 21)]
    rows.append({"step": 21, "rollout/reward_mean": None, "eval/a/score_mean": 0.9})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert reward_curve(tmp_path / "metrics.jsonl", tmp_path / "reward.png", "job: grpo")
    height, width, _ = imread(tmp_path / "reward.png").shape
    assert (width, height) == (1200, 675)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "reward.png"]


@pytest.mark.parametrize("text", [None, "", '{"step": 1, "other": 2}\n'])
def test_nothing_to_draw_draws_nothing(tmp_path, text):
    if text is not None:
        (tmp_path / "metrics.jsonl").write_text(text)
    assert not reward_curve(tmp_path / "metrics.jsonl", tmp_path / "reward.png")
    assert not (tmp_path / "reward.png").exists()
