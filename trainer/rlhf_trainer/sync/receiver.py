"""The engine's end: vLLM weight-transfer engines for CPU, and what the per-sync check asks of a worker.

Importing this module registers the backends; vLLM imports it in every process that holds weights, because it is the
module of ``worker_extension_cls`` (a registration in the parent would not reach child processes).

On CPU vLLM 0.32.0 prepacks linear weights and frees the originals, so new weights go through layerwise reload. A tied
``lm_head`` shares the embedding's weight but owns a prepacked copy that layerwise reload leaves stale, with nothing but a
log line: it is packed again by hand after each update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform

from rlhf_trainer.sync.backends import gloo, shm
from rlhf_trainer.sync.buckets import Layout, views
from rlhf_trainer.sync.holding import Witness, faults, locatable


@dataclass
class Bucket(WeightTransferUpdateInfo):
    """One update request: a bucket's layout, and for ``shm`` where it lies."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    offsets: list[int]
    size_bytes: int
    path: str | None = None

    @property
    def layout(self) -> Layout:
        shapes = tuple(tuple(shape) for shape in self.shapes)
        return Layout(tuple(self.names), tuple(self.dtype_names), shapes, tuple(self.offsets), self.size_bytes)


class LayerwiseEngine(WeightTransferEngine[Any, Bucket]):
    """Lifecycle shared by the CPU backends: layerwise reload, then the tied head's re-pack."""

    update_info_cls = Bucket

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Bucket) -> None:
        # Layerwise reload keeps tensors until their layer is complete, maybe in a later bucket: each bucket has a buffer
        # of its own, which lives as long as a view of it does.
        self.model.load_weights(views(self.receive(update_info), update_info.layout))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        if current_platform.is_cpu():
            repack_heads(self.model)

    def receive(self, bucket: Bucket) -> Tensor:
        """The bucket's bytes, uint8 ``[size_bytes]``."""
        raise NotImplementedError

    def shutdown(self) -> None:
        """Nothing to release."""


def repack_heads(model: torch.nn.Module) -> None:
    """Prepack every ``lm_head`` from the weight it holds now."""
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


@dataclass
class ShmInit(WeightTransferInitInfo):
    pass


class ShmEngine(LayerwiseEngine):
    """Buckets in shared memory of this host, mapped in place."""

    init_info_cls = ShmInit

    def init_transfer_engine(self, init_info: ShmInit) -> None:
        """No rendezvous: each bucket names its place."""

    def receive(self, bucket: Bucket) -> Tensor:
        assert bucket.path is not None
        return shm.attach(bucket.path, bucket.size_bytes)


@dataclass
class GlooInit(WeightTransferInitInfo):
    host: str
    port: int
    first_rank: int
    """Rank of the engine's first worker; the sending trainer is rank 0."""
    world_size: int
    timeout_seconds: float


class GlooEngine(LayerwiseEngine):
    """Buckets by broadcast from the trainer's rank 0."""

    init_info_cls = GlooInit
    group: gloo.Group | None = None

    def init_transfer_engine(self, init_info: GlooInit) -> None:
        rank = init_info.first_rank + self.parallel_config.rank
        self.group = gloo.join(init_info.host, init_info.port, rank, init_info.world_size, init_info.timeout_seconds)

    def receive(self, bucket: Bucket) -> Tensor:
        assert self.group is not None
        buffer = torch.empty(bucket.size_bytes, dtype=torch.uint8)
        self.group.broadcast(buffer)
        return buffer

    def shutdown(self) -> None:
        self.group = None


class WorkerExtension:
    """Methods that vLLM adds to its worker, reached by ``collective_rpc``."""

    def rlhf_locatable(self, names: list[str]) -> list[str]:
        """Those of ``names`` (as in the Hugging Face state dict) whose place in this model is known."""
        return locatable(self.model_runner.model, names)  # type: ignore[attr-defined]

    def rlhf_faults(self, witnesses: list[Witness]) -> list[str]:
        """One line for each witness that this worker's model contradicts."""
        return faults(self.model_runner.model, witnesses)  # type: ignore[attr-defined]

    def rlhf_device_uuid(self) -> str | None:
        return str(torch.cuda.get_device_properties(self.device).uuid) if torch.cuda.is_available() else None  # type: ignore[attr-defined]


for _name, _engine in (("shm", ShmEngine), ("gloo", GlooEngine)):
    if _name not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(_name, _engine)
