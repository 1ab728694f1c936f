"""Reads an exported model back and compares it with the one in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoTokenizer

from rlhf_trainer.errors import JobError

BUCKET_BYTES = 256 << 20


def compare_export(worker: Any, role: str, directory: str) -> int:
    """Every tensor of ``directory`` equals the trained one, bit for bit; configuration and tokenizer load. Returns the tensors compared.

    Called on every rank (ZeRO-3 gathers); rank 0 reads. Raises JobError naming the first tensor that differs or is missing.
    """
    folder = Path(directory)
    first = worker.settings.rank == 0
    places = locations(folder) if first else {}
    compared = 0
    for bucket in worker.iter_buckets(role, BUCKET_BYTES):
        for name, tensor in bucket if first else []:
            if name not in places:
                raise JobError(f"exported model {folder}: tensor {name} is missing")
            with safe_open(places[name], framework="pt") as file:
                if not torch.equal(file.get_tensor(name), tensor.detach().cpu()):
                    raise JobError(f"exported model {folder}: tensor {name} differs from the trained one")
            compared += 1
    if first:
        AutoConfig.from_pretrained(folder)
        AutoTokenizer.from_pretrained(folder)
    return compared


def locations(folder: Path) -> dict[str, str]:
    """Tensor name -> file that holds it."""
    places: dict[str, str] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as file:
            places |= dict.fromkeys(file.keys(), str(path))
    return places
