"""A trainer that is one plain Hugging Face model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from engine_support import perturb
from transformers import AutoModelForCausalLM


class HfWorker:
    """The part of ModelWorker that a sync uses."""

    def __init__(self, folder: str) -> None:
        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def weight_metadata(self, role: str) -> list[tuple[str, str, tuple[int, ...]]]:
        return [(name, "float32", tuple(parameter.shape)) for name, parameter in self.model.named_parameters()]

    def iter_buckets(self, role: str, bucket_bytes: int) -> Iterator[list[tuple[str, torch.Tensor]]]:
        bucket: list[tuple[str, torch.Tensor]] = []
        for name, parameter in self.model.named_parameters():
            bucket.append((name, parameter.detach()))
            if sum(tensor.nbytes for _, tensor in bucket) >= bucket_bytes:
                yield bucket
                bucket = []
        if bucket:
            yield bucket

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(self, *args)

    def train(self, seed: int) -> None:
        """Every parameter moves, as after an optimizer step."""
        perturb(self.model, 0.02, seed)


def shift(worker: Any, size: float) -> None:
    """Scale every weight of a ModelWorker's actor; runs on all ranks of ZeRO-3."""
    import deepspeed

    parameters = list(worker.roles["actor"].model.parameters())
    with deepspeed.zero.GatheredParameters(parameters, modifier_rank=0), torch.no_grad():
        for parameter in parameters:
            parameter.mul_(1 + size)
