"""pass@k: the chance that at least one of k samples is right, estimated from n samples."""

from __future__ import annotations

import math


def pass_at_k(n: int, c: int, k: int) -> float:
    """``1 - C(n - c, k) / C(n, k)`` for ``n`` samples of which ``c`` are right, as a product (arXiv 2107.03374).

    >>> round(pass_at_k(8, 3, 4), 6)
    0.928571
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {n} samples. Rule: 1 <= k <= n. Nearest: pass@{min(max(k, 1), n)}.")
    if not 0 <= c <= n:
        raise ValueError(f"{c} right samples of {n}. Rule: between 0 and n.")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))
