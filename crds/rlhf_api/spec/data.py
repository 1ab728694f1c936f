"""``spec.data``: prompts, labels and how they become token ids."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_api.base import Strict


class DatasetSpec(Strict):
    path: str = Field(min_length=1, max_length=1024)
    """JSONL or Parquet file, a folder made by `datasets`, or a hub id."""

    name: str | None = Field(None, min_length=1, max_length=63, pattern=r"^[A-Za-z0-9._-]+$")
    """Name in metrics. Default: the file's name without suffix."""

    split: str = Field("train", min_length=1, max_length=128)
    """Split of a `datasets` folder or hub id; files have one split."""

    config: str | None = Field(None, min_length=1, max_length=128)
    """Configuration (subset) of a hub id that has several, such as `main` of `openai/gsm8k`. Absent = its only one."""

    weight: float = Field(1.0, gt=0.0, le=1000.0)
    """Share of this set relative to its size: 1 = each row once an epoch, 0.5 = half of the rows, 2 = each row twice."""


class DataSpec(Strict):
    datasets: list[DatasetSpec] = Field(min_length=1, max_length=64)
    """Training prompts."""

    prompt_key: str = Field("prompt", min_length=1, max_length=128)
    """Column of the prompt: text, or a list of chat messages."""

    label_key: str | None = Field(None, min_length=1, max_length=128)
    """Column given to the reward function as label. Absent = labels are null."""

    prompt_template: str | None = Field(None, min_length=1, max_length=65_536)
    """Text with `{}` where the prompt goes; applied before the chat template."""

    apply_chat_template: bool = False
    """Render the prompt with the tokenizer's chat template."""

    chat_template: str | None = Field(None, min_length=1, max_length=65_536)
    """Jinja chat template instead of the tokenizer's. Needs applyChatTemplate."""

    max_length: int = Field(2048, ge=2, le=10_000_000)
    """Limit of prompt plus response, in tokens."""

    max_samples: int | None = Field(None, ge=1, le=1_000_000_000)
    """Use only the first rows of each set. Absent = all."""

    min_response_tokens: int = Field(1, ge=1, le=1_000_000)
    """A prompt must leave at least this many tokens for the response."""

    overlong_prompts: Literal["filter", "truncate"] = "filter"
    """Prompts that leave too little room: filter (counted), or cut from the left."""

    shuffle: bool = True
    """A new order each epoch, drawn from training.seed."""
