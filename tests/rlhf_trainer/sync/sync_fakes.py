"""Stand-ins at both ends of a sync that run without vLLM and DeepSpeed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from engine_support import perturb
from transformers import AutoModelForCausalLM

from rlhf_trainer.sync.buckets import Layout, views


class HfWorker:
    """A rank that holds the whole model, with the part of ModelWorker that a sync uses."""

    def __init__(self, folder: str) -> None:
        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def weight_metadata(self, role: str) -> list[tuple[str, str, tuple[int, ...]]]:
        return [(name, str(p.dtype).removeprefix("torch."), tuple(p.shape)) for name, p in self.model.named_parameters()]

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


class TensorEngine:
    """An engine that keeps what it receives in a dict."""

    def __init__(self, fails_at: str = "", hangs_at: str = "") -> None:
        self.fails_at, self.hangs_at = fails_at, hangs_at
        self.calls: list[str] = []
        self.held: dict[str, torch.Tensor] = {}
        self.version = -1

    def _enter(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails_at:
            raise OSError("device lost")
        if name == self.hangs_at:
            time.sleep(60)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(self, *args)

    def workers(self, method: str, argument: Any) -> list[Any]:
        if method == "rlhf_locatable":
            return [[name for name in argument if name != "lm_head.weight"]]
        return [[]]

    def init_sync(self, info: dict[str, Any]) -> None:
        self._enter("init")

    def start_update(self) -> None:
        self._enter("start")

    def update_weights(self, info: dict[str, Any]) -> None:
        from rlhf_trainer.sync.backends import shm

        self._enter("update")
        plan = Layout(
            tuple(info["names"]), tuple(info["dtype_names"]), tuple(map(tuple, info["shapes"])), tuple(info["offsets"]), info["size_bytes"]
        )
        self.held |= dict(views(shm.attach(info["path"], info["size_bytes"]), plan))

    def finish_update(self, version: int) -> None:
        self._enter("finish")
        self.version = version

    def recorded(self) -> tuple[list[str], dict[str, torch.Tensor], int]:
        return self.calls, {name: tensor.clone() for name, tensor in self.held.items()}, self.version
