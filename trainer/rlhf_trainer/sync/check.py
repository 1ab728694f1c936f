"""Does the engine hold what the trainer sent? Pure.

The trainer describes a tensor by a ``Witness``; the engine compares it with what it *uses*. Three descriptions, because an
engine may hold a weight in another form (merged with neighbours, sharded, or prepacked with the original freed):

- sums of bit patterns of each row: exact and complete, where the engine's values can be read;
- some columns as they are: exact also through a prepacked layer, since ``W @ e_j`` is column j without rounding;
- ``W @ s`` for a vector of signs: complete, but only as exact as the layer's arithmetic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

NUM_COLUMNS = 4
SAMPLE_TENSORS = 4
TIED_HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
CHUNK_ROWS = 8192
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Witness:
    """A tensor of ``R`` rows (first axis) and ``K`` columns (the rest, flattened; a vector has one)."""

    name: str
    """As in the Hugging Face state dict."""
    row_sums: Tensor
    """[R] int64"""
    columns: tuple[int, ...]
    column_values: Tensor
    """[R, C] in the tensor's dtype"""
    sign_seed: int
    projection: Tensor
    """[R] fp32, W @ signs"""
    scale: Tensor
    """[R] fp32, sum of absolute values, for the tolerance of ``projection``"""


def rotation(names: Sequence[str], version: int, count: int) -> list[str]:
    """``count`` of ``names``, other ones at each version, all of them once in ``len / count`` versions."""
    count = min(count, len(names))
    start = version * count
    return sorted({names[(start + i) % len(names)] for i in range(count)}) if names else []


def signs(seed: int, length: int) -> Tensor:
    """[length] of +1 and -1, fp32: exactly representable in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, (length,), generator=generator).float() * 2 - 1


def bit_sums(rows: Tensor) -> Tensor:
    """[R, K] -> [R] int64: sums of the bit patterns, equal only for (all but certainly) equal values, in any order."""
    return rows.contiguous().view(_BITS[rows.element_size()]).sum(dim=1, dtype=torch.int64)


@torch.no_grad()
def witness(name: str, tensor: Tensor, version: int) -> Witness:
    """Describe ``tensor`` at ``version``; columns and signs differ from version to version."""
    rows = as_rows(tensor.detach())
    seed = int.from_bytes(hashlib.blake2b(f"{name}:{version}".encode(), digest_size=4).digest(), "big")
    generator = torch.Generator().manual_seed(seed)
    columns = tuple(sorted(torch.randint(0, rows.shape[1], (NUM_COLUMNS,), generator=generator).unique().tolist()))
    vector = signs(seed, rows.shape[1]).to(rows.device)
    projection, scale = torch.empty(len(rows)), torch.empty(len(rows))
    for start in range(0, len(rows), CHUNK_ROWS):
        part = rows[start : start + CHUNK_ROWS].float()
        projection[start : start + CHUNK_ROWS] = (part @ vector).cpu()
        scale[start : start + CHUNK_ROWS] = part.abs().sum(dim=1).cpu()
    return Witness(name, bit_sums(rows).cpu(), columns, rows[:, list(columns)].cpu(), seed, projection, scale)


def as_rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(len(tensor), -1) if tensor.dim() else tensor.reshape(1, 1)


def compare_values(held: Tensor, expected: Witness, rows: slice, columns: slice | None) -> str | None:
    """Against values the engine can show. ``held`` is ``[r, k]``: those ``rows`` (and ``columns``, None = all) of the tensor."""
    if held.dtype != expected.column_values.dtype:
        return f"held as {held.dtype}, sent as {expected.column_values.dtype}"
    if columns is None:
        wrong = (bit_sums(held).cpu() != expected.row_sums[rows]).sum().item()
        return f"{wrong} of {len(held)} rows differ" if wrong else None
    here = [(i, column) for i, column in enumerate(expected.columns) if columns.start <= column < columns.stop]
    picked = held[:, [column - columns.start for _, column in here]].cpu()
    return _exact(picked, expected.column_values[rows][:, [i for i, _ in here]])


def probe_input(expected: Witness, length: int, dtype: torch.dtype, columns: slice | None = None) -> Tensor:
    """[1 + C, k]: the signs, then one row a column of the witness. For a layer that hides its weight."""
    rows = [signs(expected.sign_seed, length)]
    for column in expected.columns:
        one = torch.zeros(length)
        one[column] = 1.0
        rows.append(one)
    probe = torch.stack(rows)
    return (probe if columns is None else probe[:, columns]).to(dtype)


def compare_outputs(outputs: Tensor, expected: Witness, rows: slice, columns: slice | None) -> str | None:
    """Against what the layer gives for ``probe_input``: ``outputs`` is ``[1 + C, r]``, of those ``rows``."""
    outputs, wanted = outputs.cpu(), expected.column_values[rows]
    if outputs.dtype != wanted.dtype:
        return f"held as {outputs.dtype}, sent as {wanted.dtype}"
    if columns is not None:
        here = [i for i, column in enumerate(expected.columns) if columns.start <= column < columns.stop]
        return _exact(outputs[1:].T[:, here], wanted[:, here])
    projection = expected.projection[rows]
    # The output is rounded once to its dtype; products are summed in fp32, in another order than ours.
    bound = torch.finfo(outputs.dtype).eps * projection.abs() + 8 * torch.finfo(torch.float32).eps * expected.scale[rows]
    error = (outputs[0].float() - projection).abs()
    wrong = (~(error <= bound)).sum().item()
    if wrong:
        return f"{wrong} of {len(error)} outputs are off, by up to {error.max().item():.2e}"
    return _exact(outputs[1:].T, wanted)


def _exact(found: Tensor, wanted: Tensor) -> str | None:
    wrong = (found != wanted).any(dim=1).sum().item()
    if not wrong:
        return None
    return f"{wrong} of {len(found)} rows differ, by up to {(found.float() - wanted.float()).abs().max().item():.2e}"
