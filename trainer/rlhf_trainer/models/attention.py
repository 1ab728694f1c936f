"""Which attention kernel a model runs with."""

from __future__ import annotations

from transformers.utils import is_flash_attn_2_available

from rlhf_trainer.errors import ConfigError


def choose(attention: str, device: str) -> str:
    """``training.attention`` -> transformers' ``attn_implementation`` on ``device`` ("cpu", "cuda", "cuda:1")."""
    on_gpu = device.startswith("cuda")
    if attention == "auto":
        return "flash_attention_2" if on_gpu and is_flash_attn_2_available() else "sdpa"
    if attention == "flash_attention_2" and not on_gpu:
        raise ConfigError("spec.training.attention: flash_attention_2 needs a GPU, and this worker runs on the CPU. Nearest: sdpa, or auto")
    if attention == "flash_attention_2" and not is_flash_attn_2_available():
        raise ConfigError("spec.training.attention: flash_attention_2 needs the package flash-attn, which is not installed. Nearest: sdpa")
    return attention


def can_share_prompt(attention: str) -> bool:
    """Whether ``attention`` (as chosen) takes the block mask of a shared prompt; varlen kernels take only segment lengths."""
    return attention in ("sdpa", "eager")
