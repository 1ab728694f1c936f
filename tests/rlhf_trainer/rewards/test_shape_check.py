import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.rewards.shape_check import ShapeError, receive, scalars

EIGHT = [0.0, 1.0, 0.5, -2.0, 3.0, 0.25, 1.0, 0.0]


@pytest.mark.parametrize(
    "value",
    [
        EIGHT,
        tuple(EIGHT),
        np.array(EIGHT),
        np.array(EIGHT, dtype=np.float32),
        torch.tensor(EIGHT),
        torch.tensor(EIGHT, dtype=torch.bfloat16, requires_grad=True),
        torch.tensor(EIGHT).reshape(8, 1),
        torch.tensor(EIGHT).reshape(1, 8),
        [torch.tensor(x) for x in EIGHT],
        [[x] for x in EIGHT],
        (x for x in EIGHT),
    ],
    ids=lambda value: type(value).__name__,
)
def test_rc08_exactly_eight_scalars_are_accepted_in_any_container(value):
    assert scalars(receive(value), 8) == EIGHT


def test_rc08_integers_and_truth_values_are_numbers():
    assert scalars(receive([1, 0, True, False, 2, 3, 4, 5]), 8) == [1, 0, 1, 0, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("value", "received"),
    [
        ([1.0], "a list of 1"),
        (1.0, r"a single float \(1.0\)"),
        (torch.tensor(1.0), r"a single Tensor \(1.0\)"),
        ([1.0] * 7, "a list of 7"),
        ([1.0] * 9, "a list of 9"),
        ([], "a list of 0"),
        (torch.ones(2, 4), r"a Tensor of shape \(2, 4\)"),
        ([[1.0], [1.0, 2.0]], "rows of different lengths"),
        ({"a": 1.0}, "a single dict"),
        (None, r"a single NoneType \(None\)"),
        ("12345678", "a single str"),
        ([1.0] * 7 + ["8"], "row 7 is '8' "),
    ],
)
def test_rc08_everything_else_is_refused_with_the_count(value, received):
    with pytest.raises(ShapeError, match="expected 8 numbers.*" + received):
        scalars(receive(value), 8)


def test_one_rollout_needs_a_batch_of_one():
    assert scalars(receive([[2.0]]), 1) == [2.0]
    with pytest.raises(ShapeError):
        scalars(receive(2.0), 1)


def test_none_means_not_applicable():
    assert scalars(receive([1.0, None]), 2) == [1.0, None]


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=20), st.integers(1, 20))
def test_never_more_or_fewer_numbers_than_rollouts(values, expected):
    if len(values) == expected:
        assert scalars(receive(values), expected) == values
    else:
        with pytest.raises(ShapeError):
            scalars(receive(values), expected)
