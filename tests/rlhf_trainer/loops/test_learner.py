"""How per-rank and per-update numbers become those of a step."""

from __future__ import annotations

import numpy as np
import pytest

from rlhf_api.spec import RlSpec
from rlhf_trainer.loops.learner import accumulate, measured_gap, merge_ranks
from rlhf_trainer.types import TokenRow


def test_ranks_add_up_but_share_one_gradient_norm() -> None:
    ranks = [
        {"loss": 0.25, "tokens": 3.0, "ratio_max": 1.1, "grad_norm": 2.0},
        {"loss": 0.5, "tokens": 5.0, "ratio_max": 1.4, "grad_norm": 2.0},
    ]
    assert merge_ranks(ranks) == {"loss": 0.75, "tokens": 8.0, "ratio_max": 1.4, "grad_norm": 2.0}


def test_updates_of_a_step_add_up_and_the_last_rate_stands() -> None:
    stats: dict[str, float] = {}
    accumulate(stats, {"loss": 1.0, "ratio_max": 1.2, "learning_rate": 0.1})
    accumulate(stats, {"loss": 2.0, "ratio_max": 1.1, "learning_rate": 0.2})
    assert stats == {"loss": 3.0, "ratio_max": 1.2, "learning_rate": 0.2}
    accumulate(stats, {"loss": 4.0}, prefix="critic_")
    assert stats["critic_loss"] == 4.0


def test_the_gap_is_measured_without_an_update_of_the_actor() -> None:
    rows = []
    for i, (engine, old) in enumerate([([0.0, -1.0, -2.0], [0.0, -1.5, -2.0]), ([0.0, -0.5], [0.0, -0.25])]):
        mask = np.array([False] + [True] * (len(engine) - 1))
        fields = {"engine_logprobs": np.array(engine, np.float32), "old_logprobs": np.array(old, np.float32)}
        rows.append(TokenRow(i, i, np.arange(len(engine) + 1, dtype=np.int32), 2, mask, fields))
    sums = measured_gap(rows, RlSpec(algorithm="ppo"))
    assert sums["tokens"] == 3.0
    assert sums["gap_abs_sum"] == pytest.approx(0.75)
    assert sums["gap_max"] == pytest.approx(0.5)
    assert measured_gap([], RlSpec(algorithm="ppo")) == {}
