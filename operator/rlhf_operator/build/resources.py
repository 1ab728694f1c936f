"""Resources of the Ray container, and how much of them Ray's object store gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from rlhf_api.quantity import parse
from rlhf_api.spec import ResourcesSpec
from rlhf_operator.build.metadata import Object

Quantities = Mapping[str, str | int]

OBJECT_STORE_MINIMUM_BYTES = 75 * 1024 * 1024
"""Ray 2.60, ray_constants.OBJECT_STORE_MINIMUM_MEMORY_BYTES: less is refused at start."""
OBJECT_STORE_SHARE = Decimal("0.3")
"""Ray 2.60, ray_constants.DEFAULT_OBJECT_STORE_MEMORY_PROPORTION."""
CPU_OBJECT_STORE_BYTES = 200_000_000
"""Jobs without GPUs are small: rollouts and metrics of a tiny model."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a pod asks for where the job says nothing. A name that the job gives in requests or limits is left to the job."""

    requests: Quantities
    limits: Quantities


HEAD_GPU = Defaults({"cpu": "2", "memory": "8Gi", "ephemeral-storage": "10Gi"}, {"memory": "16Gi"})
"""Ray's head and the driver: an out-of-memory kill here costs an attempt, so the limit is generous."""
HEAD_CPU = Defaults({"cpu": "200m", "memory": "1Gi", "ephemeral-storage": "1Gi"}, {"memory": "8Gi"})
WORKER_CPU = Defaults({"cpu": "250m", "memory": "1Gi", "ephemeral-storage": "1Gi"}, {"memory": "8Gi"})
"""Small requests: two cores hold a head and two workers."""


def worker_gpu(gpus: int) -> Defaults:
    """Without a memory limit: what a model needs on the host depends on its size and on offloading, and a guess kills it."""
    return Defaults({"cpu": str(4 * gpus), "memory": f"{32 * gpus}Gi", "ephemeral-storage": "20Gi"}, {})


def container_resources(given: ResourcesSpec, defaults: Defaults, devices: Mapping[str, int]) -> Object:
    """``devices`` are extended resources that placement and network decide, requests equal to limits as Kubernetes wants it."""
    named = {*given.requests, *given.limits}
    requests = {**_unless(defaults.requests, named), **given.requests, **devices}
    limits = {**_unless(defaults.limits, named), **given.limits, **devices}
    found: Object = {"requests": requests}
    if limits:
        found["limits"] = limits
    return found


def object_store_bytes(resources: Object, shm_size: str | int | None, gpus: bool) -> int | None:
    """Size of Ray's object store, which lies in /dev/shm. None = Ray's own choice from the memory of the node.

    Half of a /dev/shm of a given size, the rest being for NCCL and the engines' own segments; never more than Ray's share of
    the memory limit, since a store beyond the limit is refused at start.
    """
    memory = resources.get("limits", {}).get("memory")
    bounds = [int(parse(memory) * OBJECT_STORE_SHARE)] if memory is not None else []
    if shm_size is not None:
        bounds.append(int(parse(shm_size)) // 2)
    elif not gpus:
        bounds.append(CPU_OBJECT_STORE_BYTES)
    return max(OBJECT_STORE_MINIMUM_BYTES, min(bounds)) if bounds else None


def _unless(quantities: Quantities, named: set[str]) -> dict[str, str | int]:
    return {name: quantity for name, quantity in quantities.items() if name not in named}
