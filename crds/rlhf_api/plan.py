"""The placement plan: which processes host which roles on which devices. Pure; the engine and the operator both read it.

Roles that share devices share one process group (a *worker group*): one CUDA context, one optimizer offload, no second
copy of the framework. With ``colocate: all`` the vLLM engines stand on the same devices and take turns with the workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlhf_api.spec import JobSpec, PlacementSpec, RLHFJob, RolePlacement

Role = Literal["actor", "reference", "critic", "reward"]


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Devices that are reserved together. ``shared``: workers and engines each get half of every device."""

    name: str
    devices: int
    shared: bool = False
    bundle: int = 1
    """Devices that must lie on one node: those of one engine in a pool of its own."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One worker group: ``ranks`` processes, each hosting every role of ``roles`` on one device of ``pool``."""

    pool: str
    roles: tuple[Role, ...]
    nodes: int
    ranks_per_node: int

    @property
    def name(self) -> str:
        return "+".join(self.roles)

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    pools: tuple[PoolPlan, ...]
    groups: tuple[GroupPlan, ...]
    engine_pool: str
    engines: int
    tensor_parallel: int

    @property
    def devices(self) -> int:
        """GPUs (with accelerator cpu: ranks) the job holds; shared devices count once."""
        return sum(pool.devices for pool in self.pools)

    def group_of(self, role: str) -> GroupPlan:
        return next(group for group in self.groups if role in group.roles)


def roles_of(job: RLHFJob) -> tuple[Role, ...]:
    """The models this job loads, in start order."""
    return _roles(job.spec)


def _roles(spec: JobSpec) -> tuple[Role, ...]:
    roles: list[Role] = ["actor"]
    if spec.rl.kl.coef > 0:
        roles.append("reference")
    if spec.rl.advantage.estimator == "gae":
        roles.append("critic")
    if spec.models.reward is not None:
        roles.append("reward")
    return tuple(roles)


def colocation(placement: PlacementSpec) -> frozenset[str]:
    value = placement.colocate
    return frozenset([value] if isinstance(value, str) else value)


def plan(job: RLHFJob) -> PlacementPlan:
    """Job (checked by the rules) -> plan. Sizes of roles without a placement of their own are the actor's."""
    return plan_spec(job.spec)


def plan_spec(spec: JobSpec) -> PlacementPlan:
    """``plan`` of a job that is known by its spec alone."""
    placement = spec.placement
    rollout = placement.rollout
    roles = _roles(spec)
    shares = colocation(placement)

    def size(role: Role) -> RolePlacement:
        own: RolePlacement | None = getattr(placement, role)
        return own or placement.actor

    if "all" in shares:
        actor = placement.actor
        return PlacementPlan(
            pools=(PoolPlan("all", actor.total, shared=True),),
            groups=(GroupPlan("all", roles, actor.nodes, actor.gpus_per_node),),
            engine_pool="all",
            engines=rollout.engines,
            tensor_parallel=rollout.tensor_parallel,
        )
    pairs: list[tuple[Role, ...]] = []
    left = list(roles)
    for name, pair in (("actorReference", ("actor", "reference")), ("criticReward", ("critic", "reward"))):
        members = tuple(role for role in left if role in pair)
        if name in shares and len(members) == 2:
            pairs.append(members)
            left = [role for role in left if role not in members]
    hosted = sorted([*pairs, *((role,) for role in left)], key=lambda members: roles.index(members[0]))
    groups = tuple(GroupPlan("+".join(members), members, size(members[0]).nodes, size(members[0]).gpus_per_node) for members in hosted)
    engine_devices = rollout.engines * rollout.tensor_parallel
    return PlacementPlan(
        pools=(
            *(PoolPlan(group.pool, group.ranks) for group in groups),
            PoolPlan("rollout", engine_devices, bundle=rollout.tensor_parallel),
        ),
        groups=groups,
        engine_pool="rollout",
        engines=rollout.engines,
        tensor_parallel=rollout.tensor_parallel,
    )
