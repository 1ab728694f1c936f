"""CUDA IPC to vLLM's own ``ipc`` engine, for engines on the trainer's GPUs. Not run on a GPU yet: see docs/gpu-status.md.

Read in vLLM 0.32.0, distributed/weight_transfer/ipc_engine.py: with ``packed`` a request carries one buffer and each
worker opens the handle of its own GPU, so every trainer rank stages the bucket and the coordinator joins their handles.
The engine clones what it reads, so a buffer may go once the request has returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Transport:
    concurrent = False

    def __init__(self) -> None:
        self._uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        self._staged: deque[Tensor] = deque()

    def stage(self, tensors: Sequence[tuple[str, Tensor]]) -> dict[str, Any]:
        from torch.multiprocessing.reductions import reduce_tensor

        flat = [tensor.detach().cuda().contiguous().view(-1).view(torch.uint8) for _, tensor in tensors]
        packed = torch.cat(flat)
        torch.cuda.current_stream().synchronize()
        self._staged.append(packed)
        _, handle = reduce_tensor(packed)
        return {
            "names": [name for name, _ in tensors],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in tensors],
            "shapes": [list(tensor.shape) for _, tensor in tensors],
            "tensor_sizes": [part.numel() for part in flat],
            "ipc_handles": {self._uuid: handle},
        }

    def transmit(self) -> None:
        """Nothing to send: the engines read the trainer's memory."""

    def release(self) -> None:
        self._staged.popleft()
        torch.cuda.ipc_collect()

    def reset(self) -> None:
        self._staged.clear()
