import math

import pytest

from bench.prometheus_text import buckets, quantile, samples, since, total

TEXT = """\
# HELP work_seconds Time.
# TYPE work_seconds histogram
work_seconds_bucket{le="0.1"} 50.0
work_seconds_bucket{le="1.0"} 90.0
work_seconds_bucket{le="+Inf"} 100.0
work_seconds_count 100.0
other_total{verb="GET",code="200"} 3.0
other_total{verb="GET",code="404"} 4.0
other_total{verb="PUT",code="200"} 5.0
"""


def test_samples_are_summed_over_the_labels_that_are_not_named():
    found = samples(TEXT, "other_")
    assert total(found, "other_total", verb="GET") == 7
    assert total(found, "other_total") == 12
    assert total(found, "work_seconds_count") == 0


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.25, 0.05), (0.5, 0.1), (0.7, 0.55), (0.9, 1.0), (0.99, 1.0)],
)
def test_a_quantile_is_linear_inside_its_bucket_and_stops_at_the_last_bound(share, expected):
    assert quantile(buckets(samples(TEXT, "work_"), "work_seconds"), share) == pytest.approx(expected)


def test_only_what_was_observed_in_between_counts():
    before = {0.1: 50.0, 1.0: 50.0, math.inf: 50.0}
    between = since(before, {0.1: 50.0, 1.0: 60.0, math.inf: 60.0})
    assert between == {0.1: 0, 1.0: 10, math.inf: 10}
    assert quantile(between, 0.5) == pytest.approx(0.55)
    assert math.isnan(quantile(since(before, before), 0.5))


def test_buckets_of_several_series_are_summed():
    text = "".join(f'wait_bucket{{verb="{verb}",code="{code}",le="1"}} 2.0\n' for verb in ("GET", "PUT") for code in (200, 404))
    assert buckets(samples(text, "wait"), "wait", verb="PUT") == {1.0: 4.0}
    assert buckets(samples(text, "wait"), "wait") == {1.0: 8.0}
