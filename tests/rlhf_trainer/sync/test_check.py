"""Witnesses against layers that show their weight, hide it, or hold a slice of it."""

from __future__ import annotations

import pytest
import torch

from rlhf_trainer.sync.buckets import fill, layout, views
from rlhf_trainer.sync.check import bit_sums, compare_outputs, compare_values, probe_input, rotation, witness

ALL = slice(0, 24)


def weight(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(24, 40, generator=torch.Generator().manual_seed(0)).to(dtype)


def through_layer(held: torch.Tensor, expected, rows: slice = ALL, columns: slice | None = None) -> str | None:
    """As a layer that only gives outputs would answer: fp32 sums, one rounding."""
    probe = probe_input(expected, 40, held.dtype, columns)
    return compare_outputs((probe.float() @ held.float().T).to(held.dtype), expected, rows, columns)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_weight_passes(dtype: torch.dtype) -> None:
    expected = witness("w", weight(dtype), version=5)
    assert compare_values(weight(dtype), expected, ALL, None) is None
    assert through_layer(weight(dtype), expected) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fault", ["one bit", "swapped rows", "stale", "nan"])
def test_visible_values_are_compared_exactly(dtype: torch.dtype, fault: str) -> None:
    expected, held = witness("w", weight(dtype), version=5), weight(dtype)
    if fault == "one bit":
        held[3, 7] = torch.nextafter(held[3, 7].float(), torch.tensor(9.0)).to(dtype) if dtype == torch.float32 else held[3, 7] * 1.01
    elif fault == "swapped rows":
        held[[3, 4]] = held[[4, 3]]
    elif fault == "stale":
        held = held * 0.99
    else:
        held[3, 7] = float("nan")
    assert "rows differ" in str(compare_values(held, expected, ALL, None))


@pytest.mark.parametrize(("row", "column"), [(0, 0), (23, 39), (11, 20)])
def test_hidden_values_are_found_wrong_through_the_layer(row: int, column: int) -> None:
    expected, held = witness("w", weight(), version=5), weight()
    held[row, column] += 1e-3
    assert "outputs are off" in str(through_layer(held, expected))


def test_a_small_step_is_seen_through_columns_although_the_sum_hides_it() -> None:
    expected, held = witness("w", weight(torch.bfloat16), version=5), weight(torch.bfloat16)
    column = expected.columns[0]
    held[2, column] = torch.nextafter(held[2, column], torch.tensor(9.0, dtype=torch.bfloat16))
    assert through_layer(held, expected) is not None


def test_merged_and_sharded_parts_are_compared_where_they_lie() -> None:
    expected = witness("w", weight(), version=5)
    assert compare_values(weight()[6:12], expected, slice(6, 12), None) is None
    assert compare_values(weight()[6:12], expected, slice(0, 6), None) is not None
    assert through_layer(weight()[6:12], expected, slice(6, 12)) is None
    for columns in (slice(0, 20), slice(20, 40)):
        assert compare_values(weight()[:, columns], expected, ALL, columns) is None
        assert through_layer(weight()[:, columns], expected, ALL, columns) is None
    touched = weight()
    touched[:, list(expected.columns)] += 0.5
    assert any(compare_values(touched[:, columns], expected, ALL, columns) for columns in (slice(0, 20), slice(20, 40)))


def test_another_dtype_is_named() -> None:
    expected = witness("w", weight(), version=5)
    assert compare_values(weight(torch.bfloat16), expected, ALL, None) == "held as torch.bfloat16, sent as torch.float32"


def test_a_vector_is_rows_of_one_column() -> None:
    bias = torch.arange(24.0)
    expected = witness("b", bias, version=1)
    assert compare_values(bias[:, None], expected, ALL, None) is None
    assert compare_values(bias[:, None] + 1, expected, ALL, None) is not None


def test_bit_sums_do_not_depend_on_memory_order() -> None:
    assert torch.equal(bit_sums(weight().T.contiguous().T), bit_sums(weight()))


def test_rotation_visits_every_tensor() -> None:
    names = [f"t{i}" for i in range(10)]
    seen = {name for version in range(3) for name in rotation(names, version, 4)}
    assert seen == set(names)
    assert rotation(names[:2], 7, 4) == ["t0", "t1"]
    assert rotation([], 7, 4) == []


def test_columns_and_signs_change_with_the_version() -> None:
    assert witness("w", weight(), 1).columns != witness("w", weight(), 2).columns


def test_buckets_hold_mixed_tensors_without_loss() -> None:
    tensors = [
        ("a", torch.randn(3, 5)),
        ("b", torch.randn(7).to(torch.bfloat16)),
        ("c", torch.tensor(2.5)),
        ("d", torch.randn(4, 6).T),
        ("e", torch.empty(0, 4)),
    ]
    plan = layout(tensors)
    buffer = torch.zeros(plan.size_bytes, dtype=torch.uint8)
    fill(buffer, tensors, plan)
    for (name, found), (wanted_name, wanted) in zip(views(buffer, plan), tensors, strict=True):
        assert name == wanted_name
        assert torch.equal(found, wanted)
    assert all(offset % 64 == 0 for offset in plan.offsets)
