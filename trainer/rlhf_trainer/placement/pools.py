"""Ray placement groups for the pools of a plan, or one clear line why they cannot be had."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from rlhf_api.clusterplan import NODE_GROUP_LABEL, group_name
from rlhf_api.plan import PlacementPlan, PoolPlan
from rlhf_trainer.errors import ConfigError, RetryError


def bundles(pool: PoolPlan, device: str) -> list[dict[str, float]]:
    """One bundle a process, so that halves of one device can never land on two."""
    size = float(pool.bundle)
    one = {"CPU": size} if device == "cpu" else {"CPU": size, "GPU": size}
    return [dict(one) for _ in range(pool.devices // pool.bundle)]


def resources(pool: PoolPlan, device: str) -> dict[str, float]:
    """What one process of the pool asks Ray for: all of its bundle, or half where workers and engines take turns."""
    share = 0.5 if pool.shared else float(pool.bundle)
    return {"num_cpus": share} if device == "cpu" else {"num_cpus": share, "num_gpus": share}


def shortage(plan: PlacementPlan, device: str, total: Mapping[str, float], nodes: list[Mapping[str, float]]) -> str | None:
    """What is missing in words, or None. ``total`` and ``nodes`` are Ray resource maps of the cluster and of each node."""
    key = "CPU" if device == "cpu" else "GPU"
    need, have = plan.devices, total.get(key, 0.0)
    if need <= have:
        return None
    pools = ", ".join(f"{pool.name} {pool.devices}" for pool in plan.pools)
    there = "; ".join(f"node {i + 1}: {node.get(key, 0.0):g}" for i, node in enumerate(nodes)) or "no nodes"
    hint = "colocate: all shares them, or fewer ranks or engines"
    if device == "cpu":
        hint += "; `rlhf run --cpus N` lets ranks share cores"
    return f"spec.placement: needs {need} {key}s ({pools}), there are {have:g} ({there}).\n  Nearest: {hint}."


def await_devices(plan: PlacementPlan, device: str, timeout_seconds: float) -> None:
    """Returns once Ray shows all devices of ``plan``: after the loss of a head its workers join the new one at their own time.

    Raises RetryError after ``timeout_seconds``: whoever made the pods counted them right, so what is missing is late, not wrong.
    """
    deadline = time.monotonic() + timeout_seconds
    while lacking := shortage(plan, device, ray.cluster_resources(), _nodes()):
        if time.monotonic() > deadline:
            raise RetryError(f"{lacking}\n  Waited {timeout_seconds:g} s for worker pods to join Ray.")
        time.sleep(1.0)


def reserve(plan: PlacementPlan, device: str, timeout_seconds: float) -> dict[str, PlacementGroup]:
    """Pool name -> ready placement group.

    Raises ConfigError at once where the cluster is too small as a whole, RetryError when it stays busy for
    ``timeout_seconds``: on a cluster the missing node may still come.
    """
    deadline = time.monotonic() + timeout_seconds
    lacking = shortage(plan, device, ray.cluster_resources(), _nodes())
    local = len(_nodes()) == 1
    while lacking and not local and time.monotonic() < deadline:
        time.sleep(2.0)
        lacking = shortage(plan, device, ray.cluster_resources(), _nodes())
    if lacking:
        raise ConfigError(lacking) if local else RetryError(lacking)
    labels = [str(node["Labels"].get(NODE_GROUP_LABEL, "")) for node in _alive()]
    groups = {
        pool.name: placement_group(
            bundles(pool, device), strategy="PACK", name=f"rlhf-{pool.name}", bundle_label_selector=own_nodes(pool, labels)
        )
        for pool in plan.pools
    }
    for name, group in groups.items():
        if not group.wait(timeout_seconds=max(1.0, deadline - time.monotonic())):
            for other in groups.values():
                remove_placement_group(other)
            raise RetryError(
                f"spec.placement: pool {name!r} of {len(group.bundle_specs)} bundles {group.bundle_specs[0]} was not placed within "
                f"{timeout_seconds:g} s.\n  Free now: {ray.available_resources()}."
            )
    return groups


def own_nodes(pool: PoolPlan, labels: Collection[str]) -> list[dict[str, str]] | None:
    """Which nodes may take each bundle: on a cluster the pods made for this pool, or one pool could break up the room of another.

    ``labels`` are the node groups there are. None = any node.
    """
    group = group_name(pool.name)
    return [{NODE_GROUP_LABEL: group}] * (pool.devices // pool.bundle) if group in labels else None


def hosts() -> int:
    """Nodes that can hold processes; the head of a cluster offers no CPU."""
    return sum(node.get("CPU", 0.0) > 0 for node in _nodes())


def ranked_bundles(group: PlacementGroup) -> list[int]:
    """Bundle indices ordered so that neighbouring ranks share a node."""
    nodes: dict[int, Any] = placement_group_table(group)["bundles_to_node_id"]
    return sorted(nodes, key=lambda index: (str(nodes[index]), index))


def _nodes() -> list[Mapping[str, float]]:
    return [node["Resources"] for node in _alive()]


def _alive() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]
