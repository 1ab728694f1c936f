"""How per-rank and per-update numbers become those of a step."""

from __future__ import annotations

from rlhf_trainer.loops.learner import accumulate, merge_ranks


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
