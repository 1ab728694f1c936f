"""Rows of a micro-batch -> the tensors of one forward pass, and results back to rows.

Packed form: several *units* follow each other in one row of the batch, each attending only to itself, with positions that
restart. A unit is a rollout, or with ``share_prompt`` a whole group: the prompt once, then every answer, each attending to the
prompt and to itself, its positions continuing the prompt's. Ids after a rollout's last predicted position are never computed:
the last id of an answer predicts nothing.

Per-token results exist at predicted positions only, in the order of ``predict_index``; ``rows_of`` and ``columns`` place them in
``[n, t]`` with the action tokens of row i in columns ``0 .. count_i - 1``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf_trainer.models.attention import can_share_prompt
from rlhf_trainer.types import FloatArray, TokenRow

# sdpa with a block mask computes the whole square, so its cost grows with the square of a row.
ROW_TOKENS_CPU = 512
ROW_TOKENS_GPU = 4096


@dataclass(slots=True)
class Packed:
    """One micro-batch. R rows of L tokens, P predictions, n rollouts with at most t action tokens."""

    input_ids: Tensor
    """int64 [R, L]"""
    position_ids: Tensor
    """int64 [R, L]"""
    attention_mask: Tensor | None
    """Block mask [R, 1, L, L] (bool for sdpa, additive for eager); padded form: [n, L]; None for varlen kernels."""
    predict_index: Tensor
    """int64 [P], index into the flattened R * L: position t, which predicts id t + 1."""
    targets: Tensor
    """int64 [P], the predicted ids."""
    rows_of: Tensor
    """int64 [P]"""
    columns: Tensor
    """int64 [P]"""
    mask: Tensor
    """bool [n, t]; a dummy batch (no action token at all) has n = 1, t = 1 and False."""

    def inputs(self) -> dict[str, Tensor | None]:
        return {
            "input_ids": self.input_ids,
            "position_ids": self.position_ids,
            "attention_mask": self.attention_mask,
            "predict_index": self.predict_index,
        }

    def to_rows(self, flat: Tensor) -> Tensor:
        """``[P]`` -> ``[n, t]``, zero elsewhere; differentiable. A dummy's value stands at a masked position: its gradient is zero."""
        out = flat.new_zeros(self.mask.shape)
        return out.index_put((self.rows_of, self.columns), flat)

    def field(self, rows: Sequence[TokenRow], name: str) -> Tensor:
        """``TokenRow.fields[name]`` at action tokens, fp32 ``[n, t]``."""
        out = np.zeros(tuple(self.mask.shape), dtype=np.float32)
        for i, row in enumerate(rows):
            values = row.fields[name][row.mask]
            out[i, : len(values)] = values
        return torch.from_numpy(out).to(self.mask.device)

    def scatter(self, rows: Sequence[TokenRow], flat: Tensor) -> list[FloatArray]:
        """``[P]`` -> one shifted fp32 array ``[L - 1]`` a row, zero outside the action mask."""
        dense = self.to_rows(flat.detach().float()).cpu().numpy()
        result: list[FloatArray] = []
        for i, row in enumerate(rows):
            values = np.zeros(len(row.mask), dtype=np.float32)
            values[row.mask] = dense[i, : int(row.mask.sum())]
            result.append(values)
        return result


@dataclass(slots=True)
class _Unit:
    """Tokens that are packed together. Lists are parallel over answers."""

    prompt: NDArray[np.int32]
    answers: list[NDArray[np.int32]]
    row_indices: list[int]

    @property
    def tokens(self) -> int:
        return len(self.prompt) + sum(len(answer) for answer in self.answers)


def pack(
    rows: Sequence[TokenRow],
    *,
    attention: str = "sdpa",
    packing: bool = True,
    share_prompt: bool = True,
    read: Literal["actions", "last"] = "actions",
    row_tokens: int | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Packed:
    """``read="actions"``: one prediction an action token. ``"last"``: one a row, at its last id (target 0).

    ``packing=False`` gives one right-padded row a rollout. ``dtype`` is that of the additive mask of eager attention. Rows
    without a prediction are left out of the forward pass; without any row the batch is a dummy of two ids, so that every rank
    runs the same modules.
    """
    predicted = [_predicted(row, read) for row in rows]
    live = [i for i, positions in enumerate(predicted) if len(positions)]
    if not live:
        dummy = TokenRow(row_id=-1, group_id=-1, ids=np.zeros(2, np.int32), prompt_length=1, mask=np.array([True]))
        packed = pack([dummy], attention=attention, packing=packing, share_prompt=False, device=device, dtype=dtype)
        packed.mask = torch.zeros(max(len(rows), 1), 1, dtype=torch.bool, device=device)
        return packed
    varlen = packing and not can_share_prompt(attention)
    share = share_prompt and packing and not varlen
    units = _units(rows, live, {i: int(predicted[i][-1]) + 1 for i in live}, share)
    if not packing:
        bins = [[unit] for unit in units]
    elif varlen:
        bins = [units]
    else:
        bins = _bins(units, row_tokens or (ROW_TOKENS_GPU if device.startswith("cuda") else ROW_TOKENS_CPU))

    length = max(sum(unit.tokens for unit in content) for content in bins)
    ids = np.zeros((len(bins), length), np.int64)
    positions = np.zeros((len(bins), length), np.int64)
    segments = np.full((len(bins), length), -1, np.int64)
    parents = np.full((len(bins), length), -1, np.int64)
    predict: list[NDArray[np.int64]] = []
    targets: list[NDArray[np.int64]] = []
    rows_of: list[NDArray[np.int64]] = []
    columns: list[NDArray[np.int64]] = []
    segment = 0
    for r, content in enumerate(bins):
        at = 0
        for unit in content:
            start, prompt_length = at, len(unit.prompt)
            own = slice(at, at + prompt_length)
            ids[r, own], positions[r, own], segments[r, own], parents[r, own] = unit.prompt, np.arange(prompt_length), segment, segment
            at += prompt_length
            prompt_segment, segment = segment, segment + 1
            for i, answer in zip(unit.row_indices, unit.answers, strict=True):
                own = slice(at, at + len(answer))
                ids[r, own], segments[r, own], parents[r, own] = answer, segment, prompt_segment
                positions[r, own] = prompt_length + np.arange(len(answer))
                where = predicted[i]
                # Position t of the rollout: in the prompt, or t - prompt_length into this answer.
                predict.append(r * length + np.where(where < prompt_length, start + where, at + where - prompt_length))
                targets.append(rows[i].ids[where + 1].astype(np.int64) if read == "actions" else np.zeros(1, np.int64))
                rows_of.append(np.full(len(where), i, np.int64))
                columns.append(np.arange(len(where)))
                at += len(answer)
                segment += 1

    counts = torch.tensor([len(where) for where in predicted])
    mask = torch.arange(int(counts.max()))[None, :] < counts[:, None]
    on = torch.from_numpy
    if varlen:
        attention_mask = None
    elif packing:
        attention_mask = _block_mask(on(segments), on(parents), attention, dtype)
    else:
        attention_mask = on(segments >= 0)
    return Packed(
        input_ids=on(ids).to(device),
        position_ids=on(positions).to(device),
        attention_mask=None if attention_mask is None else attention_mask.to(device),
        predict_index=on(np.concatenate(predict)).to(device),
        targets=on(np.concatenate(targets)).to(device),
        rows_of=on(np.concatenate(rows_of)).to(device),
        columns=on(np.concatenate(columns)).to(device),
        mask=mask.to(device),
    )


def _predicted(row: TokenRow, read: Literal["actions", "last"]) -> NDArray[np.int64]:
    return np.flatnonzero(row.mask) if read == "actions" else np.array([len(row.ids) - 1])


def _units(rows: Sequence[TokenRow], live: Sequence[int], ends: dict[int, int], share: bool) -> list[_Unit]:
    units: list[_Unit] = []
    by_prompt: dict[tuple[int, bytes], _Unit] = {}
    for i in live:
        row = rows[i]
        prompt, answer = row.ids[: row.prompt_length], row.ids[row.prompt_length : ends[i]]
        key = (row.group_id, prompt.tobytes())
        if share and key in by_prompt:
            by_prompt[key].answers.append(answer)
            by_prompt[key].row_indices.append(i)
            continue
        by_prompt[key] = _Unit(prompt, [answer], [i])
        units.append(by_prompt[key])
    return units


def _bins(units: Sequence[_Unit], row_tokens: int) -> list[list[_Unit]]:
    """First fit, longest first; a unit longer than ``row_tokens`` gets a row of its own."""
    bins: list[list[_Unit]] = []
    room: list[int] = []
    for unit in sorted(units, key=lambda unit: -unit.tokens):
        for b, free in enumerate(room):
            if unit.tokens <= free:
                bins[b].append(unit)
                room[b] -= unit.tokens
                break
        else:
            bins.append([unit])
            room.append(row_tokens - unit.tokens)
    return bins


def _block_mask(segments: Tensor, parents: Tensor, attention: str, dtype: torch.dtype) -> Tensor:
    """[R, L] -> [R, 1, L, L]: token i sees earlier tokens (and itself) of its own segment and of its prompt."""
    own = segments[:, :, None] == segments[:, None, :]
    prompt = parents[:, :, None] == segments[:, None, :]
    allowed = ((own | prompt) & torch.ones(segments.shape[1], segments.shape[1], dtype=torch.bool).tril())[:, None]
    if attention == "eager":
        return torch.zeros(allowed.shape, dtype=dtype).masked_fill_(~allowed, torch.finfo(dtype).min)
    return allowed
