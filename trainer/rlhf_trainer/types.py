"""What travels between the parts of the engine.

Per-token arrays come in two alignments. *Full*: one entry a token id, ``[L]``. *Shifted*: entry ``t`` speaks about
id ``t + 1``, ``[L - 1]``; log-probs, values, advantages, returns and KL are shifted (``numerics`` contract: position
``t`` predicts id ``t + 1``). ``TokenRow.mask`` is the shifted action mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of a data set, ready for the engine."""

    dataset: str
    row: int
    """0-based row number in its source, for messages."""
    text: str
    ids: tuple[int, ...]
    label: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The row's other columns."""


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """One draw of a prompt; all its samples carry ``group_id``, which is unique in the job."""

    group_id: int
    prompt: Prompt


@dataclass(slots=True)
class Rollout:
    """One sampled response, token in, token out: ``ids`` are exactly what the engine was given and sampled."""

    group_id: int
    sample_index: int
    prompt: Prompt
    ids: IntArray
    """Prompt and response, full alignment ``[L]``."""
    action_mask: BoolArray
    """True at sampled ids, full alignment ``[L]``; built from spans, never from ids."""
    engine_logprobs: FloatArray
    """The engine's processed log-prob of each sampled id, full alignment ``[L]``; 0 elsewhere."""
    weight_version: IntArray
    """Version of the weights that sampled each id, full alignment ``[L]``; -1 elsewhere."""
    finish_reason: Literal["stop", "length", "abort"]
    truncated: bool
    response_text: str
    """The response decoded with special tokens."""

    @property
    def response_length(self) -> int:
        """Number of action tokens; environment text never counts."""
        return int(self.action_mask.sum())

    @property
    def query_text(self) -> str:
        return self.prompt.text + self.response_text


@dataclass(slots=True)
class Reward:
    """The outcome of all reward sources for one rollout."""

    value: float | None
    """Weighted sum before shaping; None = dropped from loss and statistics (``onError: drop``)."""
    score: float | None
    """0..1 by convention; default = value. For evaluation."""
    parts: dict[str, float | None] = field(default_factory=dict)
    """Each source's own value before its weight; None = not applicable."""
    extra_logs: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class TokenRow:
    """A rollout as the training workers see it."""

    row_id: int
    """Index in the step's batch; results come back in this order."""
    group_id: int
    ids: IntArray
    """[L]"""
    prompt_length: int
    """Ids before the first action token, shared by all rows of the group."""
    mask: BoolArray
    """Action mask, shifted ``[L - 1]``."""
    fields: dict[str, FloatArray] = field(default_factory=dict)
    """Shifted per-token inputs ``[L - 1]``: old_logprobs, ref_logprobs, engine_logprobs, advantages, returns, old_values."""


def token_row(rollout: Rollout, row_id: int) -> TokenRow:
    """Rollout -> TokenRow with ``engine_logprobs`` filled in."""
    shifted = rollout.action_mask[1:]
    return TokenRow(
        row_id=row_id,
        group_id=rollout.group_id,
        ids=rollout.ids,
        prompt_length=len(rollout.prompt.ids),
        mask=shifted,
        fields={"engine_logprobs": np.where(shifted, rollout.engine_logprobs[1:], np.float32(0))},
    )
