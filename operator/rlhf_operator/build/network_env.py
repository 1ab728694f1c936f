"""What InfiniBand and NCCL settings become on worker pods: variables, devices, a capability, an annotation."""

from __future__ import annotations

from rlhf_api.owned import NETWORKS_ANNOTATION
from rlhf_api.spec import InfinibandSpec, NetworkSpec

LOCKED_MEMORY = "IPC_LOCK"
"""Capability to register memory with an adapter."""


def network_env(network: NetworkSpec) -> dict[str, str]:
    """NCCL and gloo variables; ``network.env`` has the last word. Adapters are never guessed."""
    env = {"NCCL_DEBUG": "WARN"}
    if network.infiniband is not None:
        env |= _infiniband(network.infiniband)
    return {**env, **network.env}


def _infiniband(fabric: InfinibandSpec) -> dict[str, str]:
    env: dict[str, str | int | None] = {
        "NCCL_IB_DISABLE": 0,
        "NCCL_IB_HCA": fabric.hca,
        "NCCL_SOCKET_IFNAME": fabric.socket_interface,
        "GLOO_SOCKET_IFNAME": fabric.socket_interface,
        "NCCL_IB_GID_INDEX": fabric.gid_index,
        "NCCL_IB_TC": fabric.traffic_class,
        "NCCL_IB_SL": fabric.service_level,
    }
    return {name: str(value) for name, value in env.items() if value is not None}


def devices(network: NetworkSpec) -> dict[str, int]:
    """Extended resources of the adapters of one pod."""
    return dict(network.infiniband.resource) if network.infiniband is not None else {}


def network_annotations(network: NetworkSpec) -> dict[str, str]:
    fabric = network.infiniband
    return {NETWORKS_ANNOTATION: fabric.networks} if fabric is not None and fabric.networks is not None else {}


def capabilities(network: NetworkSpec) -> tuple[str, ...]:
    """Added to a worker container; none without InfiniBand, so that such pods meet the restricted Pod Security Standard."""
    return (LOCKED_MEMORY,) if network.infiniband is not None else ()
