"""The processes of a job: reserved, started, loaded, and taken down again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ray
from ray.actor import ActorHandle
from ray.util.placement_group import remove_placement_group

from rlhf_api.plan import GroupPlan, PlacementPlan
from rlhf_api.spec import RLHFJob
from rlhf_trainer.checkpoint.store import CheckpointStore
from rlhf_trainer.errors import ConfigError
from rlhf_trainer.models import precision
from rlhf_trainer.models.load import locate
from rlhf_trainer.placement import pools, spawn
from rlhf_trainer.placement.groups import WorkerGroup, gather
from rlhf_trainer.rollout.engine import RolloutEngine
from rlhf_trainer.rollout.settings import EngineSettings
from rlhf_trainer.sync.coordinator import WeightSync
from rlhf_trainer.sync.turns import SLEEP_LEVEL, Turns, on_cluster
from rlhf_trainer.training.export_check import compare_export
from rlhf_trainer.training.worker import TRAINED_ROLES, ModelWorker, WorkerSettings

Device = Literal["cpu", "gpu"]
LOAD_TIMEOUT_SECONDS = 1800.0
SYNC_TIMEOUT_SECONDS = 600.0


@dataclass(slots=True)
class Cluster:
    """Handles to everything that runs. Roles share worker groups as the plan says."""

    job: RLHFJob
    device: Device
    plan: PlacementPlan
    dtype_name: str
    """bf16 or fp32, as the workers found it: the driver may run where there is no GPU."""
    groups: dict[str, WorkerGroup]
    """By role; roles of one group share the handle."""
    engines: list[ActorHandle]
    sync: WeightSync

    @property
    def sleeps(self) -> bool:
        """Whether workers and engines take turns on the same GPUs."""
        return self.device == "gpu" and bool(self.job.spec.placement.rollout.sleep)

    def load(self, total_updates: int, checkpoint: Path | None) -> None:
        """Join process groups, then load all models and engines at once; connect the weight sync."""
        unique = list(dict.fromkeys(self.groups.values()))
        starting = [engine.start.remote() for engine in self.engines]
        if self.sleeps:
            # Their memory is measured while the GPUs are theirs alone; the models get it afterwards.
            gather(starting, self.engine_names, "engine start", LOAD_TIMEOUT_SECONDS)
            starting = [engine.sleep.remote(SLEEP_LEVEL) for engine in self.engines]
            gather(starting, self.engine_names, "engine sleep", LOAD_TIMEOUT_SECONDS)
        for group in unique:
            address = gather([group.actors[0].node_address.remote()], group.names[:1], "setup", LOAD_TIMEOUT_SECONDS)[0]
            port = gather([group.actors[0].call.remote(spawn.free_port)], group.names[:1], "setup", LOAD_TIMEOUT_SECONDS)[0]
            group.call("setup", address, port, timeout_seconds=LOAD_TIMEOUT_SECONDS)
        # Trained roles last: a resumed one brings its random state back, which another load would overwrite.
        for role, group in sorted(self.groups.items(), key=lambda item: item[0] in TRAINED_ROLES):
            resume = str(checkpoint / role) if checkpoint is not None and role in TRAINED_ROLES else None
            group.call("load", role, total_updates, resume, timeout_seconds=LOAD_TIMEOUT_SECONDS)
        gather(starting, self.engine_names, "engine start", LOAD_TIMEOUT_SECONDS)
        self.sync.connect()

    @property
    def engine_names(self) -> list[str]:
        return [f"engine {index}" for index in range(len(self.engines))]

    def turns(self) -> Turns:
        """Who is on the GPU when workers and engines share it; does nothing elsewhere."""
        return Turns(list(self.groups), active=self.sleeps, perform=on_cluster(self.engines, self.groups, LOAD_TIMEOUT_SECONDS))

    def save(self, folder: Path) -> None:
        """Every trained role's state into ``folder/<role>``."""
        for role in TRAINED_ROLES:
            if role in self.groups:
                (folder / role).mkdir()
                self.groups[role].call("save", role, str(folder / role))

    def export(self, store: CheckpointStore) -> Path:
        """The final model as a Hugging Face folder, read back and compared before it gets its name."""

        def write(folder: Path) -> None:
            self.groups["actor"].call("export_hf", "actor", str(folder))
            self.groups["actor"].call("call", compare_export, "actor", str(folder))

        return store.export("final", write)

    def peak_memory(self) -> dict[str, int]:
        """Peak host memory in bytes of each process."""
        peaks: dict[str, int] = {}
        for group in dict.fromkeys(self.groups.values()):
            for name, peak in zip(group.names, group.call("peak_memory_bytes"), strict=True):
                peaks[name] = peak["host"]
        calls = [engine.peak_memory_bytes.remote() for engine in self.engines]
        return peaks | dict(zip(self.engine_names, gather(calls, self.engine_names, "peak memory"), strict=True))


@contextmanager
def open_cluster(job: RLHFJob, base_dir: Path, plan: PlacementPlan, job_dir: Path) -> Iterator[Cluster]:
    """Reserve devices and start every process of ``plan``; all are gone when the context closes."""
    device = choose_device(job.spec.placement.accelerator, ray.cluster_resources())
    reserved = pools.reserve(plan, device, job.spec.placement.timeout_seconds)
    logs = job_dir / "logs"
    groups: dict[str, WorkerGroup] = {}
    engines: list[ActorHandle] = []
    try:
        for group_plan in plan.groups:
            group = spawn.start_group(
                ModelWorker, group_plan, plan, reserved, device, worker_settings(job, base_dir, group_plan, device), logs
            )
            groups |= dict.fromkeys(group_plan.roles, group)
        dtype_name: str = groups["actor"].call("call", _dtype_name)[0]
        gpus = spawn.engine_devices(plan, [ids[0] for ids in groups["actor"].call("gpu_ids")] if device == "gpu" else [])
        engines = spawn.start_engines(
            RolloutEngine, plan, reserved, device, engine_settings(job, base_dir, plan, device, dtype_name, gpus), logs
        )
        host = gather([groups["actor"].actors[0].node_address.remote()], ["actor rank 0"], "start", LOAD_TIMEOUT_SECONDS)[0]
        sync = WeightSync(
            groups["actor"].actors,
            engines,
            backend=sync_backend(job, plan, device),
            timeout_seconds=SYNC_TIMEOUT_SECONDS,
            engine_ranks=plan.tensor_parallel,
            host=host,
        )
        yield Cluster(job, device, plan, dtype_name, groups, engines, sync)
    finally:
        for actor in [*engines, *(actor for group in dict.fromkeys(groups.values()) for actor in group.actors)]:
            ray.kill(actor)
        for reservation in reserved.values():
            remove_placement_group(reservation)


def choose_device(accelerator: str, resources: Mapping[str, float]) -> Device:
    """``placement.accelerator`` -> what the job runs on; auto takes GPUs when Ray sees any."""
    gpus = resources.get("GPU", 0.0)
    if accelerator == "gpu" and not gpus:
        raise ConfigError(
            "spec.placement.accelerator: 'gpu', but Ray sees no GPU on this cluster.\n"
            "  Nearest: accelerator: cpu, or auto, or start Ray where `nvidia-smi` lists GPUs."
        )
    return "gpu" if accelerator == "gpu" or (accelerator == "auto" and gpus) else "cpu"


def _dtype_name(worker: ModelWorker) -> str:
    return precision.name(worker.dtype)


def torch_device(device: Device) -> str:
    return "cpu" if device == "cpu" else "cuda:0"


def sync_backend(job: RLHFJob, plan: PlacementPlan, device: Device) -> str:
    chosen = job.spec.placement.rollout.weight_sync
    if chosen != "auto":
        return chosen
    if device == "cpu":
        return "shm" if pools.hosts() == 1 else "gloo"
    return "ipc" if any(pool.shared for pool in plan.pools) else "nccl"


def worker_settings(job: RLHFJob, base_dir: Path, group: GroupPlan, device: Device) -> list[WorkerSettings]:
    """One a rank. Ray shows each worker only its own GPU, so every rank's device is ``cuda:0``."""
    return [
        WorkerSettings(
            job=job,
            base_dir=str(base_dir),
            roles=tuple(group.roles),
            rank=rank,
            world_size=group.ranks,
            local_rank=0 if device == "gpu" else rank % group.ranks_per_node,
            device=torch_device(device),
            offloads=device == "gpu" and bool(job.spec.placement.rollout.sleep),
        )
        for rank in range(group.ranks)
    ]


def engine_settings(
    job: RLHFJob, base_dir: Path, plan: PlacementPlan, device: Device, dtype_name: str, gpus: Sequence[str | None]
) -> list[EngineSettings]:
    """One an engine; ``gpus`` as from ``spawn.engine_devices``."""
    spec = job.spec
    actor, rollout, placement = spec.models.actor, spec.rl.rollout, spec.placement.rollout
    dtype: Any = "bfloat16" if dtype_name == "bf16" else "float32"
    share = -(-rollout.prompts_per_step * rollout.samples_per_prompt // plan.engines)
    return [
        EngineSettings(
            model=locate(actor, base_dir),
            max_length=spec.data.max_length,
            dtype=dtype,
            device=device,
            name=f"engine {index}",
            revision=actor.revision,
            trust_remote_code=actor.trust_remote_code,
            load_weights=False,
            max_concurrency=min(share, 256),
            tensor_parallel=plan.tensor_parallel,
            gpu_memory_utilization=placement.gpu_memory_utilization or 0.95,
            sleep=bool(placement.sleep),
            enforce_eager=placement.enforce_eager,
            prefix_caching=placement.prefix_caching,
            weight_sync=sync_backend(job, plan, device),  # type: ignore[arg-type]
            seed=spec.training.seed,
            visible_devices=gpus[index],
            engine_args=placement.engine_args,
        )
        for index in range(plan.engines)
    ]
