"""Which floating-point type a model runs in."""

from __future__ import annotations

import torch


def native_bf16(device: str) -> bool:
    """Whether ``device`` multiplies bf16 natively. On a CPU that only emulates it, bf16 is 5 to 10 times slower than fp32."""
    if device.startswith("cuda"):
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def choose(precision: str, device: str) -> torch.dtype:
    """``training.precision`` (auto, bf16, fp32) -> dtype of weights and activations."""
    if precision == "auto":
        return torch.bfloat16 if native_bf16(device) else torch.float32
    return {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]


def name(dtype: torch.dtype) -> str:
    """``bf16`` or ``fp32``, as in the manifest."""
    return {torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]
