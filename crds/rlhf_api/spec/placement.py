"""``spec.placement``: how many devices each role gets and what shares them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from rlhf_api.base import CRD_MARK, Strict

Colocation = Literal["all", "actorReference", "criticReward", "none"]


# A structural schema has no "text or list"; it can list the legal values of an untyped node.
_COLOCATE_CRD: dict[str, JsonValue] = {
    CRD_MARK: {
        "x-kubernetes-preserve-unknown-fields": True,
        "enum": [
            "all",
            "actorReference",
            "criticReward",
            "none",
            ["all"],
            ["actorReference"],
            ["criticReward"],
            ["none"],
            ["actorReference", "criticReward"],
            ["criticReward", "actorReference"],
        ],
    }
}

EngineArgument = Annotated[str, Field(min_length=1, max_length=128)]


class RolePlacement(Strict):
    nodes: int = Field(1, ge=1, le=4096)
    """Nodes of this role."""

    gpus_per_node: int = Field(1, ge=1, le=64)
    """GPUs (with accelerator cpu: ranks) of this role on each node."""

    @property
    def total(self) -> int:
        return self.nodes * self.gpus_per_node


class RolloutPlacement(Strict):
    engines: int = Field(1, ge=1, le=4096)
    """vLLM engines."""

    tensor_parallel: int = Field(1, ge=1, le=64)
    """GPUs of one engine."""

    gpu_memory_utilization: float | None = Field(None, gt=0.0, le=0.99)
    """Share of a GPU's memory for the engine. Default: 0.5 with colocate all, else 0.95. No effect on CPU."""

    sleep: bool | None = None
    """Give the engine's memory back while training. Default: true with colocate all on GPUs."""

    weight_sync: Literal["auto", "nccl", "ipc", "gloo", "shm"] = "auto"
    """Transport of new weights. auto: ipc (colocate all) or nccl on GPUs; shm, or gloo between pods, on CPU."""

    enforce_eager: bool = False
    """Run the engine without CUDA graphs. Always so on CPU."""

    prefix_caching: bool = True
    """Compute a prompt prefix that several requests share once."""

    engine_args: dict[EngineArgument, str | int | float | bool] = Field(default_factory=dict, max_length=64)
    """Further vLLM engine arguments (scalars). Arguments that this API owns are refused."""


class PlacementSpec(Strict):
    accelerator: Literal["auto", "gpu", "cpu"] = "auto"
    """auto: GPUs when Ray sees any, else CPU."""

    colocate: Colocation | Annotated[list[Colocation], Field(min_length=1, max_length=4)] = Field("all", json_schema_extra=_COLOCATE_CRD)
    """What shares devices: all roles, pairs (as a list where they combine), or none."""

    actor: RolePlacement = Field(default_factory=lambda: RolePlacement())
    """Ranks of the actor."""

    critic: RolePlacement | None = None
    """Ranks of the critic. Default: as the actor."""

    reference: RolePlacement | None = None
    """Ranks of the reference. Default: as the actor."""

    reward: RolePlacement | None = None
    """Ranks of the reward model. Default: as the actor."""

    rollout: RolloutPlacement = Field(default_factory=lambda: RolloutPlacement())
    """vLLM engines."""

    timeout_seconds: float = Field(300.0, gt=0.0, le=86_400.0)
    """The job ends with a list of what it needs and what there is when it cannot be placed within this time."""

    @property
    def sharing(self) -> frozenset[Colocation]:
        """``colocate`` as a set, whichever way it is written."""
        return frozenset([self.colocate] if isinstance(self.colocate, str) else self.colocate)
