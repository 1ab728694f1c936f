"""From ``rl.rollout`` to the parameters of single requests. Pure.

Every request has a seed of its own, a hash of (job seed, group, sample), so what is sampled depends neither on the number
of engines nor on order or batch; on CPU in fp32 that makes rollouts repeatable bit for bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlhf_api.spec import RolloutSpec
from rlhf_trainer.errors import DataError
from rlhf_trainer.types import FloatArray, IntArray, PromptGroup

Tag = tuple[int, int]
"""(group_id, sample_index) of a request; results are matched by it, never by order."""

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one request is sampled; names and meaning as in vLLM's SamplingParams. Temperature 0 is greedy."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    tag: Tag
    ids: tuple[int, ...]
    """Prompt ids."""
    sampling: Sampling


@dataclass(slots=True)
class GenerateResult:
    tag: Tag
    ids: IntArray
    """Sampled ids ``[T]``, exactly as sampled; an end-of-sequence id is there only if it was sampled."""
    logprobs: FloatArray
    """Log-prob of each sampled id ``[T]`` after temperature and filters."""
    finish_reason: FinishReason
    text: str
    """``ids`` decoded with special tokens."""
    weight_version: int


def request_seed(job_seed: int, group_id: int, sample_index: int) -> int:
    """Stable 31-bit seed of one request (the widest that every sampler of vLLM takes)."""
    digest = hashlib.blake2b(f"{job_seed}:{group_id}:{sample_index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % (2**31 - 1)


def budget(max_new_tokens: int, max_length: int, used: int) -> int:
    """Tokens a request may ask for so that it never exceeds the window."""
    return min(max_new_tokens, max_length - used)


def requests(
    group: PromptGroup, spec: RolloutSpec, *, samples: int, seed: int, max_length: int, eos_ids: Sequence[int] = ()
) -> list[GenerateRequest]:
    """The ``samples`` requests of one group. Temperature 0 is greedy and needs no seed."""
    ids = group.prompt.ids
    room = budget(spec.max_new_tokens, max_length, len(ids))
    if room < 1:
        raise DataError(
            f"data set {group.prompt.dataset}, row {group.prompt.row}: a prompt of {len(ids)} tokens leaves no room in "
            f"data.maxLength {max_length}"
        )
    greedy = spec.temperature == 0
    return [
        GenerateRequest(
            tag=(group.group_id, index),
            ids=tuple(ids),
            sampling=Sampling(
                max_tokens=room,
                temperature=spec.temperature,
                top_p=spec.top_p,
                top_k=spec.top_k,
                min_p=spec.min_p,
                seed=None if greedy else request_seed(seed, group.group_id, index),
                stop=tuple(spec.stop),
                stop_token_ids=tuple(dict.fromkeys((*spec.stop_token_ids, *eos_ids))),
            ),
        )
        for index in range(samples)
    ]
