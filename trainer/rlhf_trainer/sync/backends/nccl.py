"""NCCL broadcast to vLLM's own ``nccl`` engine. Not run on a GPU yet: see docs/gpu-status.md.

Read in vLLM 0.32.0, distributed/weight_transfer/nccl_engine.py: with ``packed`` both ends cut a request's parameters into
the same chunks of ``packed_buffer_size_bytes``, so one request is one bucket here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from torch import Tensor


def engine_init(host: str, port: int, first_rank: int, world_size: int, bucket_bytes: int) -> dict[str, Any]:
    """Fields of vLLM's NCCLWeightTransferInitInfo."""
    return {
        "master_address": host,
        "master_port": port,
        "rank_offset": first_rank,
        "world_size": world_size,
        "packed": True,
        "packed_buffer_size_bytes": bucket_bytes,
    }


class Transport:
    concurrent = True

    def __init__(self, host: str, port: int, world_size: int, bucket_bytes: int) -> None:
        from vllm.distributed.weight_transfer.nccl_common import trainer_init

        self._group = trainer_init({"master_address": host, "master_port": port, "world_size": world_size})
        self._bucket_bytes = bucket_bytes
        self._staged: deque[list[tuple[str, Tensor]]] = deque()

    def stage(self, tensors: Sequence[tuple[str, Tensor]]) -> dict[str, Any]:
        # The worker frees gathered tensors when it goes on to the next bucket, and that may be before this one is sent.
        self._staged.append([(name, tensor.detach().clone()) for name, tensor in tensors])
        return {
            "names": [name for name, _ in tensors],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in tensors],
            "shapes": [list(tensor.shape) for _, tensor in tensors],
        }

    def transmit(self) -> None:
        from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

        packed_nccl_broadcast_producer(
            iterator=iter(self._staged[0]),
            group=self._group,
            src=0,
            post_iter_func=lambda item: item[1],
            buffer_size_bytes=self._bucket_bytes,
        )

    def release(self) -> None:
        self._staged.popleft()

    def reset(self) -> None:
        self._staged.clear()
