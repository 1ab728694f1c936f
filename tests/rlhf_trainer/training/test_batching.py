from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.training.batching import plan
from rlhf_trainer.types import TokenRow


def rows_of(groups: list[list[int]]) -> list[TokenRow]:
    rows = []
    for group_id, lengths in enumerate(groups):
        for length in lengths:
            ids = np.zeros(3 + length, np.int32)
            rows.append(TokenRow(len(rows), group_id, ids, 3, np.arange(1, len(ids)) >= 3))
    return rows


GROUPS = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6), max_size=6)


@given(
    groups=GROUPS,
    num_ranks=st.integers(1, 4),
    micro_batch_size=st.integers(1, 5),
    max_tokens=st.none() | st.integers(10, 60),
    share=st.booleans(),
)
def test_every_row_once_within_limits_and_equal_counts(groups, num_ranks, micro_batch_size, max_tokens, share):
    rows = rows_of(groups)
    result = plan(rows, num_ranks, micro_batch_size=micro_batch_size, max_tokens=max_tokens, share_prompt=share)
    assert len(result) == num_ranks
    assert len({len(micro_batches) for micro_batches in result}) == 1
    micro_batches = [micro for rank in result for micro in rank]
    assert sorted(row.row_id for micro in micro_batches for row in micro) == list(range(len(rows)))
    for micro in micro_batches:
        if max_tokens is None:
            assert len(micro) <= micro_batch_size
        elif len(micro) > 1 and not share:
            assert sum(len(row.ids) for row in micro) <= max_tokens


def test_groups_stay_whole_when_the_prompt_is_shared():
    result = plan(rows_of([[4] * 4, [5] * 4, [6] * 4, [7] * 4]), 2, micro_batch_size=8)
    assert [[{row.group_id for row in micro} for micro in rank] for rank in result] == [[{3, 0}], [{2, 1}]]


def test_one_group_still_feeds_every_rank():
    result = plan(rows_of([[4] * 8]), 2, micro_batch_size=8)
    assert [len(rank[0]) for rank in result] == [4, 4]


def test_ranks_get_even_tokens():
    loads = [sum(len(row.ids) for micro in rank for row in micro) for rank in plan(rows_of([[30], [3], [3], [24]]), 2)]
    assert loads == [39, 33]


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_no_rows_give_no_micro_batches(num_ranks):
    assert plan([], num_ranks) == [[] for _ in range(num_ranks)]
