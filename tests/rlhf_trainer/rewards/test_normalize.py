import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.rewards.normalize import RunningMoments

NUMBERS = st.lists(st.floats(-1e3, 1e3), min_size=0, max_size=10)


@given(st.lists(NUMBERS, min_size=1, max_size=5))
def test_batches_add_up_to_the_moments_of_all_values(batches):
    moments = RunningMoments()
    for batch in batches:
        moments = moments.update(batch)
    values = np.array([value for batch in batches for value in batch])
    assert moments.count == len(values)
    if len(values) > 1:
        assert moments.mean == pytest.approx(values.mean(), abs=1e-9)
        assert moments.std == pytest.approx(values.std(), abs=1e-6)


def test_normalized_by_hand():
    moments = RunningMoments().update([1.0, 3.0])
    assert [moments.normalized(value) for value in (1.0, 2.0, 5.0)] == [-1.0, 0.0, 3.0]


def test_without_spread_or_values_nothing_is_divided():
    assert RunningMoments().normalized(4.0) == 4.0
    assert RunningMoments().update([2.0, 2.0]).normalized(3.0) == 1.0
