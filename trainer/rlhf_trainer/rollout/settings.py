"""What an engine needs to start, and how large its KV cache must be. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# CPU attention of vLLM 0.32.0 takes multiples of 32; its default of 128 never shares a short prompt.
CPU_BLOCK_TOKENS = 32


@dataclass(frozen=True)
class EngineSettings:
    """One vLLM engine. Picklable: it travels to the engine's process."""

    model: str
    """Folder or hub id."""
    max_length: int
    """Prompt plus response, tokens (``data.maxLength``)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["cpu", "gpu"] = "cpu"
    name: str = "engine 0"
    """For messages."""
    revision: str | None = None
    trust_remote_code: bool = False
    load_weights: bool = True
    """False: allocate weights without reading them; the first sync fills them (also ``init: random``)."""
    max_concurrency: int = 256
    """Sequences sampled at a time."""
    tensor_parallel: int = 1
    executor: Literal["auto", "uni", "mp", "ray"] = "auto"
    """auto: in this process for one device, child processes for several."""
    gpu_memory_utilization: float = 0.95
    sleep: bool = False
    """Prepare for `sleep` and `wake` (GPU)."""
    enforce_eager: bool = False
    prefix_caching: bool = True
    weight_sync: Literal["shm", "gloo", "nccl", "ipc"] = "shm"
    kv_cache_bytes: int | None = None
    """CPU: memory for keys and values; None = enough for ``max_concurrency`` full sequences, within a third of free memory."""
    num_threads: int | None = None
    """CPU: OpenMP threads; None leaves OMP_NUM_THREADS as it is."""
    seed: int = 0
    visible_devices: str | None = None
    """CUDA_VISIBLE_DEVICES of the engine's process; None leaves it as Ray set it."""
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of vLLM's engine (``placement.rollout.engineArgs``)."""


def head_size(config: Mapping[str, Any]) -> int:
    """Dimensions of one attention head."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def kv_bytes_per_token(config: Mapping[str, Any], dtype_bytes: int) -> int:
    """Keys and values of one token over all layers. ``config``: the model's config.json."""
    key_value_heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    return int(2 * config["num_hidden_layers"] * key_value_heads * head_size(config) * dtype_bytes)


def kv_cache_bytes(config: Mapping[str, Any], *, dtype_bytes: int, max_length: int, concurrency: int, limit: int) -> int:
    """Room for ``concurrency`` sequences of ``max_length``, at most ``limit`` bytes but never less than one sequence.

    vLLM keeps one block aside and shares prompts in whole blocks, hence the block more a sequence and the two in all.
    """
    blocks = math.ceil(max_length / CPU_BLOCK_TOKENS) + 1
    block_bytes = kv_bytes_per_token(config, dtype_bytes) * CPU_BLOCK_TOKENS
    smallest = (blocks + 2) * block_bytes
    return max(smallest, min((concurrency * blocks + 2) * block_bytes, limit))
