"""``spec.training``: batches, optimizer, precision, sharding."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_api.base import Pair, Strict


class LearningRateSpec(Strict):
    actor: float = Field(1e-6, gt=0.0, le=1.0)
    """Peak rate of the trained model, per update."""

    critic: float = Field(9e-6, gt=0.0, le=1.0)
    """Peak rate of the critic, per update."""


class OptimizerSpec(Strict):
    name: Literal["adamw"] = "adamw"
    """Optimizer."""

    betas: Pair = (0.9, 0.95)
    """Decay of the first and second moment, each in [0, 1)."""

    eps: float = Field(1e-8, gt=0.0, le=1.0)
    """Term added to the denominator."""

    weight_decay: float = Field(0.0, ge=0.0, le=10.0)
    """Decoupled weight decay; not applied to norms and biases."""


class ScheduleSpec(Strict):
    type: Literal["cosine", "linear", "constant"] = "cosine"
    """Shape after the warm-up."""

    warmup_ratio: float = Field(0.03, ge=0.0, le=1.0)
    """Share of all updates over which the rate rises from 0 to its peak."""

    min_ratio: float = Field(0.1, ge=0.0, le=1.0)
    """Rate at the last update, as a share of the peak."""


class DeepspeedSpec(Strict):
    zero_stage: Literal[0, 1, 2, 3] = 2
    """What is sharded over ranks: 0 nothing, 1 optimizer, 2 also gradients, 3 also weights."""

    offload: bool = False
    """Keep optimizer states in host memory (GPU only)."""


class TrainingSpec(Strict):
    epochs: int = Field(1, ge=1, le=1_000_000)
    """Passes over the data."""

    max_steps: int | None = Field(None, ge=1, le=1_000_000_000)
    """End after this many rollout steps, also for the schedule. Absent = all epochs."""

    seed: int = Field(42, ge=0, le=2**31 - 1)
    """Seed of data order, sampling and dropout."""

    global_batch_size: int = Field(128, ge=1, le=1_000_000)
    """Rollouts in one optimizer update, over all ranks."""

    micro_batch_size: int = Field(1, ge=1, le=100_000)
    """Rollouts in one forward/backward on one rank. Ignored when maxTokensPerMicroBatch is set."""

    max_tokens_per_micro_batch: int | None = Field(None, ge=1, le=100_000_000)
    """Token budget of one forward/backward on one rank; needs packing."""

    share_prompt: bool = True
    """Compute the prompt of a group once in training, where packing and the attention in use allow it."""

    packing: bool = True
    """Several rollouts in one row without padding."""

    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    """Attention kernel. auto: flash_attention_2 on GPUs where it is installed, else sdpa."""

    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""

    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Type of weights and activations. auto: bf16 where the device has it natively, else fp32."""

    learning_rate: LearningRateSpec = Field(default_factory=lambda: LearningRateSpec())
    """Peak learning rates."""

    optimizer: OptimizerSpec = Field(default_factory=lambda: OptimizerSpec())
    """Optimizer settings."""

    schedule: ScheduleSpec = Field(default_factory=lambda: ScheduleSpec())
    """Learning rate over the updates of the whole job."""

    max_grad_norm: float = Field(1.0, ge=0.0, le=1e6)
    """Gradients are scaled down to this norm; 0 = no clipping."""

    deepspeed: DeepspeedSpec = Field(default_factory=lambda: DeepspeedSpec())
    """DeepSpeed settings."""
