"""What two scrapes of a Prometheus endpoint say of the time between them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True)
class Sample:
    name: str
    labels: Mapping[str, str]
    value: float


def samples(text: str, prefix: str) -> list[Sample]:
    """Those whose name begins with ``prefix``; the others are not parsed, for the API server's text has megabytes."""
    wanted = "\n".join(line for line in text.splitlines() if line.startswith(prefix)) + "\n"
    return [Sample(each.name, each.labels, each.value) for family in text_string_to_metric_families(wanted) for each in family.samples]


def total(found: list[Sample], name: str, **labels: str) -> float:
    """Sum over all samples that carry these labels; 0 where there is none."""
    return sum(each.value for each in found if each.name == name and labels.items() <= each.labels.items())


def buckets(found: list[Sample], histogram: str, **labels: str) -> dict[float, float]:
    """Upper bound -> number of observations up to it, summed over all series that carry these labels."""
    counts: dict[float, float] = {}
    for each in found:
        if each.name == f"{histogram}_bucket" and labels.items() <= each.labels.items():
            bound = float(each.labels["le"])
            counts[bound] = counts.get(bound, 0.0) + each.value
    return counts


def since(before: Mapping[float, float], after: Mapping[float, float]) -> dict[float, float]:
    return {bound: count - before.get(bound, 0.0) for bound, count in after.items()}


def quantile(observed: Mapping[float, float], share: float) -> float:
    """As Prometheus computes it: linear inside a bucket; the highest finite bound where it lies above. NaN of nothing."""
    counts = sorted(observed.items())
    if not counts or counts[-1][1] <= 0:
        return math.nan
    rank = share * counts[-1][1]
    for (low, below), (high, upto) in _neighbours(counts):
        if upto >= rank and upto > below:
            return low if math.isinf(high) else low + (high - low) * (rank - below) / (upto - below)
    return math.nan


def _neighbours(counts: list[tuple[float, float]]) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    return zip([(0.0, 0.0), *counts], counts, strict=False)
