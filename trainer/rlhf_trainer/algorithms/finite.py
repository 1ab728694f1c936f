"""Stops a step at the first undefined number that would be trained on.

Masked positions may hold anything; the losses drop them by selection. An undefined value at an unmasked position is a
fault that clamps would hide, so it ends the step with the sample it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlhf_trainer.errors import JobError


class NonFiniteError(JobError):
    """A NaN or an infinity at a position that counts."""


def check(name: str, tensor: Tensor, mask: Tensor, row_ids: Sequence[object] | None = None, *, step: int | None = None) -> None:
    """Raise NonFiniteError for the first non-finite entry of ``tensor`` where ``mask`` is True.

    tensor, mask: ``[N]`` or ``[N, T]``. ``row_ids``: the sample id of each row, default the row's index.
    """
    bad = ~torch.isfinite(tensor) & mask
    if not bool(bad.any()):
        return
    where = bad.nonzero()
    first = where[0].tolist()
    value = float(tensor[tuple(first)])
    row = first[0] if row_ids is None else row_ids[first[0]]
    place = f"row {row}" if len(first) == 1 else f"row {row}, position {first[1]}"
    prefix = "" if step is None else f"step {step}: "
    raise NonFiniteError(
        f"{prefix}{name} is {value} at {place} ({len(where)} such values in the batch). "
        "Rule: every value that is trained on is finite. Look at this sample's reward and log-probs first."
    )
