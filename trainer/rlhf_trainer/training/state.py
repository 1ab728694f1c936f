"""What a role saves and how it comes back: DeepSpeed's shards, random states, and a layout that is checked before anything loads.

DeepSpeed's own "latest" pointer is never read, and after a load the update count and a checksum of the weights must be those that
were saved: its loader has taken another checkpoint than the one asked for.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf_trainer.errors import ConfigError, JobError
from rlhf_trainer.sync.check import bit_sums
from rlhf_trainer.training.deepspeed_engine import TrainingEngine, whole

TAG = "state"
LAYOUT_FILE = "layout.json"


@dataclass(frozen=True, slots=True)
class Layout:
    """How a role's state was cut into files."""

    role: str
    world_size: int
    zero_stage: int
    dtype: str
    updates: int
    """Optimizer updates done."""


def rng_state() -> dict[str, Any]:
    """Random states of this process: torch, CUDA, numpy, Python."""
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "numpy": np.random.get_state(),
        "python": random.getstate(),
    }


def set_rng_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])


def save_engine(engine: TrainingEngine, directory: Path, layout: Layout) -> None:
    """Write the whole training state of one role; called on every rank, returns when all have written."""
    engine.engine.save_checkpoint(str(directory), tag=TAG, client_state={"updates": layout.updates}, save_latest=False)
    torch.save({"rng": rng_state(), "weights": _checksum(engine)}, directory / f"rank-{dist.get_rank():05d}.pt")
    if dist.get_rank() == 0:
        (directory / LAYOUT_FILE).write_text(json.dumps(asdict(layout), indent=2) + "\n")
    dist.barrier()


def read_layout(directory: Path) -> Layout:
    return Layout(**json.loads((directory / LAYOUT_FILE).read_text()))


def check_layout(saved: Layout, wanted: Layout, directory: Path) -> None:
    """Refuse a resume on another number of ranks, ZeRO stage or type, naming both layouts."""
    for name, field in (
        ("world_size", f"spec.placement.{wanted.role} (nodes x gpusPerNode)"),
        ("zero_stage", "spec.training.deepspeed.zeroStage"),
        ("dtype", "spec.training.precision"),
    ):
        was, asked = getattr(saved, name), getattr(wanted, name)
        if was != asked:
            raise ConfigError(
                f"{field}: the checkpoint {directory} of the {saved.role} was saved with {_words(saved)}; "
                f"this run asks for {_words(wanted)}. Rule: a resume keeps ranks, ZeRO stage and type. "
                f"Nearest: {was}, or start anew from the exported model"
            )


def load_engine(engine: TrainingEngine, directory: Path, wanted: Layout) -> Layout:
    """Bring back what ``save_engine`` wrote and prove it; returns the saved layout."""
    saved = read_layout(directory)
    check_layout(saved, wanted, directory)
    path, client_state = engine.engine.load_checkpoint(str(directory), tag=TAG, load_lr_scheduler_states=False)
    if path is None:
        raise JobError(f"{directory}: DeepSpeed found no state {TAG!r}")
    if client_state["updates"] != saved.updates:
        raise JobError(f"{directory}: loaded the state after {client_state['updates']} updates, the checkpoint is of {saved.updates}")
    own = torch.load(directory / f"rank-{dist.get_rank():05d}.pt", weights_only=False)
    loaded = _checksum(engine)
    if loaded != own["weights"]:
        raise JobError(f"{directory}: the loaded weights are not those that were saved (checksum {loaded}, saved {own['weights']})")
    set_rng_state(own["rng"])
    return saved


def export(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, directory: Path) -> None:
    """Write a Hugging Face folder; called on every rank, written by rank 0. A tied output layer is written once, as its embedding."""
    tensors: dict[str, torch.Tensor] = {}
    first = dist.get_rank() == 0
    for name, parameter in model.named_parameters():
        with whole([parameter]):
            if first:
                tensors[name] = parameter.detach().cpu().clone()
    if first:
        tensors |= {name: buffer.detach().cpu().clone() for name, buffer in model.named_buffers() if name in model.state_dict()}
        model.config.use_cache = True
        model.save_pretrained(directory, state_dict=tensors)
        model.config.use_cache = False
        if tokenizer is not None:
            tokenizer.save_pretrained(directory)
    dist.barrier()


def _words(layout: Layout) -> str:
    return f"{layout.world_size} ranks, ZeRO stage {layout.zero_stage}, {layout.dtype}"


def _checksum(engine: TrainingEngine) -> int:
    """Sum of the bit patterns of this rank's weights: an integer sum has no rounding, so the number of threads doesn't matter."""
    shards = [getattr(parameter, "ds_tensor", parameter) for parameter in engine.module.parameters()]
    return sum(int(bit_sums(shard.detach().flatten()[None]).item()) for shard in shards)
