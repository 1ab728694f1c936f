"""Stand-ins at both ends of a sync that run without vLLM, DeepSpeed and transformers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from rlhf_trainer.sync.backends import shm
from rlhf_trainer.sync.buckets import Layout, views


class TensorWorker:
    """A rank that holds some tensors, with the part of ModelWorker that a sync uses."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        shapes = {
            "model.embed_tokens.weight": (128, 64),
            "a.weight": (64, 64),
            "a.bias": (64,),
            "b.weight": (64, 256),
            "norm.weight": (64,),
        }
        self.tensors = {name: torch.randn(shape) for name, shape in shapes.items()}

    def weight_metadata(self, role: str) -> list[tuple[str, str, tuple[int, ...]]]:
        return [(name, "float32", tuple(tensor.shape)) for name, tensor in self.tensors.items()]

    def iter_buckets(self, role: str, bucket_bytes: int) -> Iterator[list[tuple[str, torch.Tensor]]]:
        yield from ([item] for item in self.tensors.items())

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(self, *args)

    def train(self) -> dict[str, torch.Tensor]:
        for tensor in self.tensors.values():
            tensor.add_(1.0)
        return self.tensors


class TensorEngine:
    """An engine that keeps what it receives in a dict."""

    def __init__(self) -> None:
        self.reset()

    def reset(self, fails_at: str = "", hangs_at: str = "") -> None:
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


def layout_of(info: dict[str, Any]) -> Layout:
    shapes = tuple(tuple(shape) for shape in info["shapes"])
    return Layout(tuple(info["names"]), tuple(info["dtype_names"]), shapes, tuple(info["offsets"]), info["size_bytes"])
