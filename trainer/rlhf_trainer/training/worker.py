"""One training process: a rank that hosts one or more roles on its device.

Every method is called on all ranks of the group at once, since each may hold collectives. A plain class: the driver wraps it as a
Ray actor, tests call it as it is.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from rlhf_api.spec import RLHFJob, RlSpec
from rlhf_trainer.algorithms.aggregation import Denominators
from rlhf_trainer.gpus import check_gpu
from rlhf_trainer.models import attention, load, precision
from rlhf_trainer.models.heads import PolicyModel, ValueModel
from rlhf_trainer.models.packing import Packed, pack
from rlhf_trainer.training import losses, state
from rlhf_trainer.training.deepspeed_engine import TrainingEngine, check_sleep, frozen, init_distributed, whole
from rlhf_trainer.types import FloatArray, TokenRow

TRAINED_ROLES = ("actor", "critic")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What one rank needs to know; picklable."""

    job: RLHFJob
    base_dir: str
    """Folder that relative paths of the manifest resolve against."""
    roles: tuple[str, ...]
    rank: int
    world_size: int
    local_rank: int = 0
    device: str = "cpu"
    """"cpu" or "cuda:N"."""
    collective_timeout_seconds: float = 1800.0
    offloads: bool = False
    """Whether ``offload`` and ``onload`` will be called: refused at ``load`` where DeepSpeed cannot."""


@dataclass(slots=True)
class Role:
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    module: nn.Module
    """What ``forward`` is called on: a DeepSpeed engine, or the plain module of a frozen role."""
    training: TrainingEngine | None = None
    updates: int = 0
    offloaded: bool = False


class ModelWorker:
    def __init__(self, settings: WorkerSettings) -> None:
        spec = settings.job.spec
        self.settings = settings
        self.training = spec.training
        self.device = settings.device
        self.dtype = precision.choose(spec.training.precision, settings.device)
        self.attention = "sdpa"
        self.roles: dict[str, Role] = {}

    def setup(self, master_address: str, master_port: int) -> None:
        """Join the process group of this worker's ranks."""
        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_error()
        own = self.settings
        # Not in the constructor: Ray calls whatever fails there a lost process, and this is the user's to mend.
        check_gpu(self.device)
        self.attention = attention.choose(self.training.attention, self.device)
        init_distributed(own.rank, own.world_size, own.local_rank, master_address, master_port, own.device, own.collective_timeout_seconds)

    def load(self, role: str, total_updates: int = 0, resume_dir: str | None = None) -> None:
        """Load a role's model. A trained role continues from ``resume_dir`` (written by ``save``) when given."""
        spec = self.settings.job.spec
        base_dir = Path(self.settings.base_dir)
        if self.settings.offloads:
            check_sleep(self.training, self.dtype)
        torch.manual_seed(self.training.seed + self.settings.rank)
        model_spec = getattr(spec.models, role) or spec.models.actor
        if role in ("actor", "reference"):
            model = load.load_actor(model_spec, base_dir, self.dtype, self.attention)
            module: nn.Module = PolicyModel(model)
        else:
            model = load.load_value(model_spec, base_dir, self.dtype, self.attention, needs_head=role == "reward")
            module = ValueModel(model)
        tokenizer = load.load_tokenizer(model_spec, base_dir)
        if role not in TRAINED_ROLES:
            self.roles[role] = Role(model, tokenizer, frozen(module, self.training, self.dtype, self.device))
            return
        if self.training.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        engine = TrainingEngine(module, self.training, self.dtype, self.device)
        loaded = Role(model, tokenizer, engine.engine, training=engine)
        if resume_dir is not None:
            loaded.updates = state.load_engine(engine, Path(resume_dir), self._layout(role, 0)).updates
        self.roles[role] = loaded

    def logprobs(
        self, role: str, micro_batches: Sequence[list[TokenRow]], temperature: float, want_entropy: bool = False
    ) -> list[tuple[int, FloatArray, FloatArray | None]]:
        """``(row_id, logprobs [L - 1], entropy [L - 1] | None)``, shifted, zero outside the action mask."""
        module = self._eval(role)
        results: list[tuple[int, FloatArray, FloatArray | None]] = []
        with torch.no_grad():
            for rows in micro_batches:
                packed = self._pack(rows)
                logp, entropy = module(**packed.inputs(), targets=packed.targets, temperature=temperature, want_entropy=want_entropy)
                entropies = packed.scatter(rows, entropy) if want_entropy else [None] * len(rows)
                logps = packed.scatter(rows, logp)
                results += [(row.row_id, a, b) for row, a, b in zip(rows, logps, entropies, strict=True)]
        return results

    def values(self, role: str, micro_batches: Sequence[list[TokenRow]]) -> list[tuple[int, FloatArray]]:
        """``(row_id, values [L - 1])``, shifted, zero outside the action mask."""
        module = self._eval(role)
        results: list[tuple[int, FloatArray]] = []
        with torch.no_grad():
            for rows in micro_batches:
                packed = self._pack(rows)
                per_row = packed.scatter(rows, module(**packed.inputs()))
                results += [(row.row_id, values) for row, values in zip(rows, per_row, strict=True)]
        return results

    def scores(self, role: str, micro_batches: Sequence[list[TokenRow]]) -> list[tuple[int, float]]:
        """``(row_id, score)`` read at the last id. A response without an end gets an EOS appended for reading only."""
        module = self._eval(role)
        tokenizer = self.roles[role].tokenizer
        eos = tokenizer.eos_token_id if tokenizer is not None else None
        results: list[tuple[int, float]] = []
        with torch.no_grad():
            for rows in micro_batches:
                packed = self._pack([_ended(row, eos) for row in rows], read="last")
                flat = module(**packed.inputs()).cpu()
                by_row = dict(zip(packed.rows_of.tolist(), flat.tolist(), strict=True)) if rows else {}
                results += [(row.row_id, by_row[i]) for i, row in enumerate(rows)]
        return results

    def update_actor(
        self, micro_batches: Sequence[list[TokenRow]], denominators: Denominators, kl_coef: float, learning_rate: float, rl: RlSpec
    ) -> dict[str, float]:
        """One optimizer step of the actor; returns this rank's sums and the global ``grad_norm``."""
        entropy_coef = rl.policy_loss.entropy_coef

        def micro_loss(module: nn.Module, packed: Packed, rows: list[TokenRow]) -> losses.MicroLoss:
            logp, entropy = module(
                **packed.inputs(),
                targets=packed.targets,
                temperature=rl.rollout.temperature,
                want_entropy=entropy_coef is not None,
                entropy_gradient=bool(entropy_coef),
            )
            return losses.actor_loss(logp, entropy, packed, rows, denominators, kl_coef, rl)

        return self._update("actor", micro_batches, denominators, learning_rate, micro_loss)

    def update_critic(
        self, micro_batches: Sequence[list[TokenRow]], denominators: Denominators, learning_rate: float, rl: RlSpec
    ) -> dict[str, float]:
        """One optimizer step of the critic."""

        def micro_loss(module: nn.Module, packed: Packed, rows: list[TokenRow]) -> losses.MicroLoss:
            return losses.critic_loss(module(**packed.inputs()), packed, rows, denominators, rl)

        return self._update("critic", micro_batches, denominators, learning_rate, micro_loss)

    def _update(
        self,
        name: str,
        micro_batches: Sequence[list[TokenRow]],
        denominators: Denominators,
        learning_rate: float,
        micro_loss: Callable[[nn.Module, Packed, list[TokenRow]], losses.MicroLoss],
    ) -> dict[str, float]:
        role = self._role(name)
        assert role.training is not None
        if denominators.tokens == 0 or not micro_batches:
            # Known on every rank alike: no collective runs, and neither weights nor moments move.
            return {"tokens": 0.0, "loss": 0.0, "grad_norm": 0.0}
        role.module.train()
        parts = []
        for i, rows in enumerate(micro_batches):
            result = micro_loss(role.module, self._pack(rows), rows)
            role.training.backward(result.loss, last=i == len(micro_batches) - 1)
            parts.append(result.sums)
        norm = role.training.step(learning_rate)
        role.updates += 1
        return losses.merge(parts) | {"grad_norm": norm}

    def weight_metadata(self, role: str) -> list[tuple[str, str, tuple[int, ...]]]:
        """``(name, dtype, shape)`` of each tensor that ``iter_buckets`` will give, in its order."""
        return [
            (name, str(parameter.dtype).removeprefix("torch."), tuple(getattr(parameter, "ds_shape", parameter.shape)))
            for name, parameter in self._role(role).model.named_parameters()
        ]

    def iter_buckets(self, role: str, bucket_bytes: int) -> Iterator[list[tuple[str, Tensor]]]:
        """Whole weights under their Hugging Face names, in buckets of at most ``bucket_bytes`` (a larger tensor is alone).

        A tied output layer comes once, as its embedding. The tensors are valid until the next bucket is asked for; every rank must
        walk through all buckets.
        """
        bucket: list[tuple[str, nn.Parameter]] = []
        size = 0
        for name, parameter in self._role(role).model.named_parameters():
            bytes_here = getattr(parameter, "ds_numel", parameter.numel()) * parameter.element_size()
            if bucket and size + bytes_here > bucket_bytes:
                yield from _gathered(bucket)
                bucket, size = [], 0
            bucket.append((name, parameter))
            size += bytes_here
        yield from _gathered(bucket)

    def save(self, role: str, directory: str) -> None:
        """Everything a trained role needs to continue. A frozen role has nothing to save."""
        own = self._role(role)
        if own.training is not None:
            state.save_engine(own.training, Path(directory), self._layout(role, own.updates))

    def export_hf(self, role: str, directory: str) -> None:
        own = self._role(role)
        state.export(own.model, own.tokenizer, Path(directory))

    def offload(self, role: str) -> str:
        """Give the device's memory back until ``onload``. Returns what happened, in words; called twice it does nothing."""
        own = self.roles[role]
        if self.device == "cpu":
            return "nothing to move: the role lives in host memory"
        if own.offloaded:
            return "offloaded already"
        if own.training is not None:
            own.training.offload()
        elif self.training.deepspeed.zero_stage == 3:
            return "sharded inference weights stay on the device"
        else:
            own.module.to("cpu")
        torch.cuda.empty_cache()
        own.offloaded = True
        return "offloaded"

    def onload(self, role: str) -> str:
        own = self.roles[role]
        if not own.offloaded:
            return "on its device already"
        if own.training is not None:
            own.training.onload()
        else:
            own.module.to(self.device)
        own.offloaded = False
        return "on its device"

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """``function(self, *args)``: how weight sync and tests reach into this process."""
        return function(self, *args)

    def rng_state(self) -> dict[str, Any]:
        return state.rng_state()

    def set_rng_state(self, saved: dict[str, Any]) -> None:
        state.set_rng_state(saved)

    def peak_memory_bytes(self) -> dict[str, int]:
        """Peak resident memory of the process and, on a GPU, peak allocated device memory."""
        peak = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        if self.device.startswith("cuda"):
            peak["device"] = torch.cuda.max_memory_allocated(self.device)
        return peak

    def ping(self) -> str:
        return "ok"

    def _role(self, name: str) -> Role:
        role = self.roles[name]
        if role.offloaded:
            raise RuntimeError(f"{name} is offloaded; call onload first")
        return role

    def _eval(self, name: str) -> nn.Module:
        module = self._role(name).module
        module.eval()
        return module

    def _pack(self, rows: Sequence[TokenRow], read: Any = "actions") -> Packed:
        training = self.training
        return pack(
            rows,
            attention=self.attention,
            packing=training.packing,
            share_prompt=training.share_prompt,
            read=read,
            device=self.device,
            dtype=self.dtype,
        )

    def _layout(self, role: str, updates: int) -> state.Layout:
        return state.Layout(
            role=role,
            world_size=self.settings.world_size,
            zero_stage=self.training.deepspeed.zero_stage,
            dtype=str(self.dtype).removeprefix("torch."),
            updates=updates,
        )


def _gathered(bucket: list[tuple[str, nn.Parameter]]) -> Iterator[list[tuple[str, Tensor]]]:
    with whole([parameter for _, parameter in bucket]):
        yield [(name, parameter.detach()) for name, parameter in bucket]


def _ended(row: TokenRow, eos: int | None) -> TokenRow:
    """The row as a reward model reads it: its last id is an EOS. No loss, log-prob or reward ever refers to an appended one."""
    if eos is None or int(row.ids[-1]) == eos:
        return row
    return TokenRow(
        row_id=row.row_id,
        group_id=row.group_id,
        ids=np.append(row.ids, np.int32(eos)),
        prompt_length=row.prompt_length,
        mask=np.append(row.mask, False),
    )
