"""Starts the processes of a job on its reserved devices."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlhf_api.plan import GroupPlan, PlacementPlan
from rlhf_trainer.placement.groups import WorkerGroup
from rlhf_trainer.placement.pools import ranked_bundles, resources

# libgomp, iterations a thread waits awake at the end of a parallel region. At the default (300,000) one preempted thread stalls
# its peers for a time slice at every operation: measured ten times slower beside one busy process. Sleeping at once costs
# a half more on a quiet machine.
OMP_SPINS = "1000"


def hosted(cls: type) -> type:
    """``cls`` as an actor class whose output goes to a file of its own, so that it outlives the pod."""

    class Hosted(cls):  # type: ignore[misc]
        def __init__(self, log_file: str, *args: Any) -> None:
            redirect_output(log_file)
            super().__init__(*args)

        def node_address(self) -> str:
            return str(ray.util.get_node_ip_address())

        def gpu_ids(self) -> list[str]:
            return [str(gpu) for gpu in ray.get_gpu_ids()]

    Hosted.__name__ = Hosted.__qualname__ = cls.__name__
    return Hosted


def redirect_output(log_file: str) -> None:
    """Send this process's stdout and stderr, also of C++ code, to ``log_file`` (appended)."""
    Path(log_file).parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def free_port(_worker: Any) -> int:
    """A free TCP port on the node of the process that runs this."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def threads(device: str, processes_at_once: int) -> int:
    """OpenMP threads of one process: roles take turns, so the processes of one role share the cores of the node."""
    cores = len(os.sched_getaffinity(0))
    return max(1, cores // max(1, processes_at_once)) if device == "cpu" else 4


def environment(device: str, num_threads: int) -> dict[str, str]:
    env = {"OMP_NUM_THREADS": str(num_threads), "GOMP_SPINCOUNT": OMP_SPINS, "TOKENIZERS_PARALLELISM": "false"}
    if device == "cpu":
        env |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    return env


def start_group(
    cls: type,
    group: GroupPlan,
    plan: PlacementPlan,
    reserved: Mapping[str, PlacementGroup],
    device: str,
    settings: Sequence[Any],
    logs: Path,
) -> WorkerGroup:
    """One actor a rank; ``settings[rank]`` is its constructor argument."""
    pool = next(pool for pool in plan.pools if pool.name == group.pool)
    per_node = group.ranks_per_node
    env = environment(device, threads(device, per_node))
    actor_class = ray.remote(hosted(cls))
    bundles = ranked_bundles(reserved[pool.name])
    actors = [
        actor_class.options(
            name=None,
            scheduling_strategy=PlacementGroupSchedulingStrategy(reserved[pool.name], placement_group_bundle_index=bundles[rank]),
            runtime_env={"env_vars": env},
            max_concurrency=1,
            **resources(pool, device),
        ).remote(str(logs / f"{group.name}-{rank}.log"), settings[rank])
        for rank in range(group.ranks)
    ]
    return WorkerGroup(group.name, tuple(group.roles), actors)


def start_engines(
    cls: type, plan: PlacementPlan, reserved: Mapping[str, PlacementGroup], device: str, settings: Sequence[Any], logs: Path
) -> list[ActorHandle]:
    """One actor an engine.

    In a pool of its own an engine's bundle holds all its devices. On shared devices it stands in the first of its bundles;
    one of several GPUs is told which others are its own (``EngineSettings.visible_devices``), since a Ray actor cannot
    hold parts of several bundles.
    """
    pool = next(pool for pool in plan.pools if pool.name == plan.engine_pool)
    env = environment(device, threads(device, plan.engines)) | {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    actor_class = ray.remote(hosted(cls))
    bundles = ranked_bundles(reserved[pool.name])
    stride = plan.tensor_parallel // pool.bundle
    share = resources(pool, device)
    if stride > 1 and device == "gpu":
        share = {**share, "num_gpus": 0.0}
    return [
        actor_class.options(
            scheduling_strategy=PlacementGroupSchedulingStrategy(reserved[pool.name], placement_group_bundle_index=bundles[index * stride]),
            runtime_env={"env_vars": env},
            max_concurrency=1,
            **share,
        ).remote(str(logs / f"engine-{index}.log"), settings[index])
        for index in range(plan.engines)
    ]


def engine_devices(plan: PlacementPlan, worker_gpus: Sequence[str]) -> list[str | None]:
    """Each engine's CUDA_VISIBLE_DEVICES; None where Ray sets it. ``worker_gpus``: GPU of each rank on the shared devices."""
    pool = next(pool for pool in plan.pools if pool.name == plan.engine_pool)
    size = plan.tensor_parallel
    if not pool.shared or size == 1:
        return [None] * plan.engines
    return [",".join(worker_gpus[index * size : (index + 1) * size]) for index in range(plan.engines)]
