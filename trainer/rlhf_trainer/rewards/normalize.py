"""Running mean and standard deviation of one reward source, in fp64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SMALLEST_STD = 1e-8


@dataclass(frozen=True, slots=True)
class RunningMoments:
    """Welford's moments, merged batch by batch (Chan et al. 1979)."""

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0
    """Sum of squared distances from the mean."""

    @property
    def std(self) -> float:
        """Of the population; 0 before two values were seen."""
        return math.sqrt(self.m2 / self.count) if self.count > 1 else 0.0

    def update(self, values: Sequence[float]) -> RunningMoments:
        if not values:
            return self
        size = len(values)
        mean = math.fsum(values) / size
        m2 = math.fsum((value - mean) ** 2 for value in values)
        total = self.count + size
        delta = mean - self.mean
        return RunningMoments(total, self.mean + delta * size / total, self.m2 + m2 + delta * delta * self.count * size / total)

    def normalized(self, value: float) -> float:
        """``(value - mean) / std``; without spread only the mean is taken off, without statistics nothing."""
        spread = self.std if self.std > SMALLEST_STD else 1.0
        return (value - self.mean) / spread if self.count else value
