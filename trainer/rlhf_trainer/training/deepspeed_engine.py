"""DeepSpeed behind a small interface: one optimizer step of any number of micro-batches, at ZeRO stage 0 to 3.

What is ours on top: gradients that equal the sum of local losses for any number of ranks and micro-batches, a reported gradient
norm at every stage, whole parameters for weight sync and export, and moving states off the device and back.
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum
from deepspeed.runtime.zero.offload_states import offload_optimizer_states, reload_optimizer_states
from torch import Tensor, nn

from rlhf_api.spec import TrainingSpec
from rlhf_trainer.errors import ConfigError, JobError

# DeepSpeed allocates its reduction bucket in full: 2 GB at its default of 5e8 elements in fp32.
REDUCE_BUCKET_ELEMENTS_CPU = 50_000_000
REDUCE_BUCKET_ELEMENTS_GPU = 500_000_000


def init_distributed(rank: int, world_size: int, local_rank: int, address: str, port: int, device: str, timeout_seconds: float) -> None:
    """Join the process group: gloo on CPU, NCCL on GPUs. Once a process."""
    # On CPU DeepSpeed 0.19.8 would compile a shared-memory op here, which needs ninja and a C++ compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # torch 2.13 deprecates collectives that DeepSpeed calls a thousand times a step.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed.c10d_logger")
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(local_rank), MASTER_ADDR=address, MASTER_PORT=str(port))
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    deepspeed.init_distributed(
        dist_backend="nccl" if device.startswith("cuda") else "gloo",
        auto_mpi_discovery=False,
        verbose=False,
        timeout=timedelta(seconds=timeout_seconds),
        rank=rank,
        world_size=world_size,
    )


def zero_config(training: TrainingSpec, dtype: torch.dtype, device: str) -> dict[str, Any]:
    """DeepSpeed's configuration. One sample a micro-batch and one micro-batch a step are formal: the loss brings its own scale."""
    stage = training.deepspeed.zero_stage
    on_gpu = device.startswith("cuda")
    zero: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": on_gpu,
        "reduce_bucket_size": REDUCE_BUCKET_ELEMENTS_GPU if on_gpu else REDUCE_BUCKET_ELEMENTS_CPU,
    }
    if training.deepspeed.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        # Stage 0 in fp32 clips in TrainingEngine.step, which needs the norm anyway.
        "gradient_clipping": 0.0 if stage == 0 and dtype == torch.float32 else training.max_grad_norm,
        "steps_per_print": 2**31,
    }
    if dtype == torch.bfloat16:
        config["bf16"] = {"enabled": True}
        if stage > 0:
            config["data_types"] = {"grad_accum_dtype": "fp32"}
    return config


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weight decay on matrices only: norms and biases are vectors."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


class TrainingEngine:
    """A trained module on one rank. Every method that touches parameters is called on all ranks."""

    def __init__(self, module: nn.Module, training: TrainingSpec, dtype: torch.dtype, device: str) -> None:
        self.stage: int = training.deepspeed.zero_stage
        self.device = device
        self.dtype = dtype
        self.max_grad_norm = training.max_grad_norm
        self.world_size = dist.get_world_size()
        check_supported(training, dtype, device)
        module = module.to(dtype)
        optimizer = torch.optim.AdamW(
            parameter_groups(module, training.optimizer.weight_decay),
            lr=0.0,
            betas=training.optimizer.betas,
            eps=training.optimizer.eps,
            fused=True,  # 6 times faster than the default on CPU
        )
        self.engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=zero_config(training, dtype, device))
        if self.stage == 0 and dtype == torch.bfloat16:
            # DeepSpeed 0.19.8 takes a dummy step here to allocate states; the step count it leaves behind spoils Adam's bias correction.
            self.engine.optimizer.optimizer.state.clear()

    @property
    def module(self) -> nn.Module:
        return self.engine.module  # type: ignore[no-any-return]

    def forward(self, **inputs: Any) -> Any:
        return self.engine(**inputs)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of ``loss``, this rank's share of the step's loss. ``last``: the step's last micro-batch."""
        self.engine.set_gradient_accumulation_boundary(last)
        # DeepSpeed averages over ranks; the shares of all ranks must add up.
        self.engine.backward(loss * self.world_size, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> float:
        """Clip, update and clear gradients; returns the global gradient norm before clipping."""
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate
        norm = None
        if self.stage == 0 and self.dtype == torch.float32:
            limit = self.max_grad_norm or math.inf
            norm = float(nn.utils.clip_grad_norm_(self.module.parameters(), limit))
            if not math.isfinite(norm):
                raise JobError(f"the gradient norm is {norm}; weights are unchanged")
        self.engine.step()
        if norm is None:
            norm = float(self.engine.get_global_grad_norm())
        if not math.isfinite(norm):
            raise JobError(f"the gradient norm is {norm}")
        return norm

    def offload(self) -> None:
        """Move weights, master weights, optimizer states and buffers to host memory (GPU only)."""
        if self.stage == 0:
            self._move("cpu")
            offload_optimizer_states(self.engine.basic_optimizer, "cpu")
        elif self.stage == 3:
            self._zero3_offload()
        else:
            self.engine.offload_states()

    def onload(self) -> None:
        if self.stage == 0:
            self._move(self.device)
            reload_optimizer_states(self.engine.basic_optimizer, self.device)
            return
        if self.stage == 3:
            zero = self.engine.optimizer
            for partition in zero.fp32_partitioned_groups_flat:
                partition.data = partition.data.to(self.device)
            reload_optimizer_states(zero.optimizer, self.device)
        self.engine.reload_states()

    def _move(self, device: str) -> None:
        """Stage 0: the module and, in bf16, the master weights that the optimizer holds."""
        self.module.to(device)
        for group in self.engine.basic_optimizer.param_groups:
            for parameter in group["params"]:
                parameter.data = parameter.data.to(device)

    def _zero3_offload(self) -> None:
        """As DeepSpeed 0.19.8 does it, which asserts its own FusedAdam for states that torch's AdamW keeps under the same names."""
        zero = self.engine.optimizer
        for partition in zero.fp32_partitioned_groups_flat:
            partition.data = partition.data.to("cpu")
        offload_optimizer_states(zero.optimizer, "cpu")
        states = OffloadStateTypeEnum
        self.engine.offload_states(include=[states.lp_params, states.lp_grads, states.contiguous_grad_buffer])


def check_supported(training: TrainingSpec, dtype: torch.dtype, device: str) -> None:
    """Combinations that DeepSpeed would refuse late or drop silently."""
    if training.deepspeed.offload and not device.startswith("cuda"):
        raise ConfigError("spec.training.deepspeed.offload: true needs a GPU, and this worker runs on the CPU. Nearest: false")
    if training.deepspeed.offload and training.deepspeed.zero_stage == 0:
        raise ConfigError("spec.training.deepspeed.offload: true needs ZeRO, and zeroStage is 0. Nearest: zeroStage: 1")


def check_sleep(training: TrainingSpec, dtype: torch.dtype) -> None:
    """Refuse at start what ``offload``/``onload`` cannot do."""
    if training.deepspeed.zero_stage == 1 and dtype == torch.bfloat16:
        raise ConfigError(
            "spec.training.deepspeed.zeroStage: 1 with bf16 cannot move its states off the GPU (DeepSpeed 0.19.8), "
            "which colocate: all with placement.rollout.sleep needs. Nearest: zeroStage: 2"
        )
    if training.deepspeed.offload:
        raise ConfigError(
            "spec.training.deepspeed.offload: true already keeps the states in host memory and cannot be combined with "
            "placement.rollout.sleep. Nearest: offload: false"
        )


def frozen(module: nn.Module, training: TrainingSpec, dtype: torch.dtype, device: str) -> nn.Module:
    """An inference-only module: sharded at ZeRO stage 3, a whole copy a rank else."""
    module = module.to(dtype).requires_grad_(False).eval()
    if training.deepspeed.zero_stage < 3:
        return module.to(device)
    engine, *_ = deepspeed.initialize(model=module, config=zero_config(training, dtype, device))
    engine.eval()
    return engine  # type: ignore[no-any-return]


@contextmanager
def whole(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Inside, every parameter's ``data`` is complete on every rank (ZeRO-3 gathers; other stages hold it already). Read only."""
    sharded = any(hasattr(parameter, "ds_id") for parameter in parameters)
    with deepspeed.zero.GatheredParameters(parameters) if sharded else nullcontext():
        yield
