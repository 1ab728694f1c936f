"""Horizon and shape of the learning rate; case RC-40."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.spec import ScheduleSpec
from rlhf_trainer.algorithms.schedule import rate, total_steps, total_updates, warmup_updates


def rates(total: int, peak: float = 1.0, **fields: Any) -> list[float]:
    return [rate(u, total, peak, ScheduleSpec(**fields)) for u in range(total)]


def horizon(prompts: int, **fields: Any) -> int:
    case: dict[str, Any] = {
        "prompts_per_step": 8, "samples_per_prompt": 4, "global_batch_size": 8, "epochs": 1, "update_epochs": 1, **fields
    }  # fmt: skip
    return total_updates(prompts, **case)


def test_golden_cosine() -> None:
    found = rates(8, warmup_ratio=0.25, min_ratio=0.1)
    assert found == pytest.approx([0.5, 1, 0.9397, 0.775, 0.55, 0.325, 0.1603, 0.1], abs=5e-5)
    assert found[2:] == pytest.approx([0.1 + 0.45 * (1 + math.cos(math.pi * k / 6)) for k in range(1, 7)])


def test_linear_and_constant() -> None:
    assert rates(5, 2.0, type="linear", warmup_ratio=0.2, min_ratio=0.5) == pytest.approx([2, 1.75, 1.5, 1.25, 1])
    assert rates(4, 2.0, type="constant", warmup_ratio=0.5) == [1, 2, 2, 2]


@pytest.mark.parametrize(
    ("ratio", "total", "expected"), [(0.03, 8, 1), (0.03, 100, 3), (0.07, 100, 7), (0.0, 8, 0), (1.0, 8, 8), (0.03, 101, 4)]
)
def test_warm_up_ends_at_the_stated_share(ratio: float, total: int, expected: int) -> None:
    assert warmup_updates(total, ScheduleSpec(warmup_ratio=ratio)) == expected


def test_rc40_horizon_counts_samples_and_epochs() -> None:
    assert horizon(8, epochs=2) == 8
    assert horizon(8, epochs=2, update_epochs=3) == 24
    assert total_steps(8, 8, 2) == 2


def test_rc40_partial_last_batch_is_an_update() -> None:
    # 8 * 4 rollouts in batches of 12: two full and one partial.
    assert horizon(8, global_batch_size=12) == 3
    # 10 prompts: a step of 8 with 4 updates, one of 2 with a single update, in each epoch.
    assert horizon(10) == 5
    assert horizon(10, epochs=2) == 10
    assert total_steps(10, 8, 2) == 4


@pytest.mark.parametrize(("max_steps", "expected"), [(1, 4), (2, 5), (3, 9), (4, 10), (100, 10)])
def test_horizon_ends_at_max_steps(max_steps: int, expected: int) -> None:
    assert horizon(10, epochs=2, max_steps=max_steps) == expected


@given(prompts=st.integers(0, 40), p=st.integers(1, 9), n=st.integers(1, 4), batch=st.integers(1, 20), epochs=st.integers(1, 3))
def test_horizon_equals_the_updates_that_are_made(prompts: int, p: int, n: int, batch: int, epochs: int) -> None:
    made = 0
    for _ in range(epochs):
        left = prompts
        while left:
            drawn = min(p, left)
            made += math.ceil(drawn * n / batch)
            left -= drawn
    assert total_updates(
        prompts, prompts_per_step=p, samples_per_prompt=n, global_batch_size=batch, epochs=epochs, update_epochs=1
    ) == made  # fmt: skip


@pytest.mark.parametrize("kind", ["cosine", "linear"])
@given(total=st.integers(2, 300), warmup=st.floats(0, 0.9))
def test_rc40_minimum_is_reached_at_the_last_update_and_not_before(kind: str, total: int, warmup: float) -> None:
    spec: dict[str, Any] = {"type": kind, "warmup_ratio": warmup, "min_ratio": 0.1}
    found = rates(total, **spec)
    peak = max(warmup_updates(total, ScheduleSpec(**spec)), 1) - 1
    if peak < total - 1:
        assert found[-1] == pytest.approx(0.1)
        assert min(found[peak:-1]) > found[-1]
        assert found[peak:] == sorted(found[peak:], reverse=True)
    assert found[:peak] == sorted(found[:peak])
    assert all(0 < r <= 1 for r in found)


def test_rc40_resume_continues_the_curve_and_extra_updates_keep_the_minimum() -> None:
    spec = ScheduleSpec(warmup_ratio=0.25)
    assert [rate(u, 8, 1.0, spec) for u in range(5, 8)] == rates(8, warmup_ratio=0.25)[5:]
    assert rate(11, 8, 1.0, spec) == pytest.approx(0.1)
