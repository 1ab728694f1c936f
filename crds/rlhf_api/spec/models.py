"""``spec.models``: which weights each role starts from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_api.base import Strict


class ModelSpec(Strict):
    path: str = Field(min_length=1, max_length=1024)
    """Folder (relative to the manifest, or a path on a volume) or Hugging Face hub id."""

    init: Literal["pretrained", "random"] = "pretrained"
    """`random`: only configuration and tokenizer are read, weights are drawn from `seed`."""

    seed: int = Field(0, ge=0, le=2**31 - 1)
    """Seed of a random initialisation."""

    revision: str | None = Field(None, max_length=128)
    """Hub revision; absent = the default branch."""

    trust_remote_code: bool = False
    """Run Python code that the model's repository ships."""


class ValueModelSpec(ModelSpec):
    head_name: str = Field("score", min_length=1, max_length=64)
    """Name of the scalar head in the checkpoint; a head that is not there starts at zero."""


class ReferenceSpec(ModelSpec):
    path: str = Field("", max_length=1024)
    """Folder or hub id. Default: the actor's start."""


class CriticSpec(ValueModelSpec):
    path: str = Field("", max_length=1024)
    """Folder or hub id. Default: the reward model's start, else the actor's."""


class ModelsSpec(Strict):
    actor: ModelSpec
    """The model this job trains."""

    reference: ReferenceSpec | None = None
    """The model the KL term refers to. Default: the actor's start. Not loaded when kl.coef is 0."""

    critic: CriticSpec | None = None
    """Value model of `gae`. Default: the reward model's path, else the actor's."""

    reward: ValueModelSpec | None = None
    """Reward model with a scalar head."""
