"""pass@k; fault F14: it is neither the maximum nor inflated by n."""

from __future__ import annotations

import math

import pytest

from rlhf_trainer.algorithms.passk import pass_at_k


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"), [(4, 1, 1, 0.25), (4, 1, 2, 0.5), (4, 2, 2, 0.833333), (8, 3, 4, 0.928571), (4, 0, 4, 0.0), (4, 2, 3, 1.0)]
)
def test_golden(n: int, c: int, k: int, expected: float) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-6)


def test_f14_closed_form() -> None:
    for n in range(1, 13):
        for c in range(n + 1):
            for k in range(1, n + 1):
                assert pass_at_k(n, c, k) == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_undefined_is_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="Rule"):
        pass_at_k(n, c, k)
