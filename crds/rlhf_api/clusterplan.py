"""From placement to pods: the worker groups of a job's RayCluster. Pure; the operator builds them, the trainer finds its pools in them.

One group a pool of the plan, since the pods of a pool have one shape. A pod's Ray resources are exactly what the bundles of
its pool ask for, and Ray labels a pod with its group's name, so a pool's placement group fits its own pods and no others.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_api.plan import PlacementPlan, PoolPlan, plan, plan_spec
from rlhf_api.spec import JobSpec, RLHFJob

GROUPS_MAX = 17
"""Kueue takes 18 pod sets, the head among them."""

NODE_GROUP_LABEL = "ray.io/node-group"
"""Ray's label of a node, which Ray sets from RAY_NODE_TYPE_NAME and KubeRay sets to the group's name."""


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    name: str
    """``groupName`` of the RayCluster: a DNS label, never ``head``."""
    pool: str
    """The pool of the placement plan whose processes run in this group."""
    pods: int
    gpus_per_pod: int
    """Count of ``cluster.gpuResource``; 0 with accelerator cpu. Ray's ``num-gpus``."""
    cpus_per_pod: int
    """Ray's ``num-cpus``: what the processes of one pod ask Ray for. No Kubernetes request."""


def for_cluster(job: RLHFJob) -> RLHFJob:
    """``job`` with ``accelerator: auto`` as it is meant on a cluster, where nobody looks what is there: gpu."""
    placement = job.spec.placement
    if placement.accelerator != "auto":
        return job
    placed = placement.model_copy(update={"accelerator": "gpu"})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"placement": placed})})


def group_name(pool: str) -> str:
    return "workers" if pool == "all" else pool.replace("+", "-")


def worker_groups(job: RLHFJob) -> tuple[WorkerGroup, ...]:
    """The groups of ``job`` (derived and checked by the rules), in the order of the plan's pools."""
    job = for_cluster(job)
    layout = plan(job)
    on_gpu = job.spec.placement.accelerator == "gpu"
    groups = []
    for pool in layout.pools:
        pods, devices = _shape(layout, pool)
        groups.append(WorkerGroup(group_name(pool.name), pool.name, pods, devices if on_gpu else 0, devices))
    return tuple(groups)


def total_gpus(job: RLHFJob) -> int:
    return sum(group.pods * group.gpus_per_pod for group in worker_groups(job))


def worker_pods(spec: JobSpec) -> int:
    """Pods without the head, also of a spec that no rule has seen."""
    layout = plan_spec(spec)
    return sum(_shape(layout, pool)[0] for pool in layout.pools)


def _shape(layout: PlacementPlan, pool: PoolPlan) -> tuple[int, int]:
    """Pods of ``pool`` and devices of each."""
    hosted = next((group for group in layout.groups if group.pool == pool.name), None)
    if hosted is not None:
        return hosted.nodes, hosted.ranks_per_node
    # Engines of one pod reach each other's memory; a pod larger than those of the workers may fit no node.
    room = max(group.ranks_per_node for group in layout.groups) // layout.tensor_parallel
    together = max(count for count in range(1, max(1, room) + 1) if layout.engines % count == 0)
    return layout.engines // together, together * layout.tensor_parallel
