"""Devices: who shares what with whom, and what an accelerator can do."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_api.clusterplan import worker_pods
from rlhf_api.rules.registry import Cel, Finding, effective, rule
from rlhf_api.spec import JobSpec, RolePlacement

GPU_TRANSPORTS = ("nccl", "ipc")
CPU_TRANSPORTS = ("gloo", "shm")

OWNED_ENGINE_ARGS: dict[str, str | None] = {
    "code_revision": "models.actor.revision",
    "convert": None,
    "distributed_executor_backend": None,
    "dtype": "training.precision",
    "enable_lora": None,
    "enable_prefix_caching": "placement.rollout.prefixCaching",
    "enable_sleep_mode": "placement.rollout.sleep",
    "enforce_eager": "placement.rollout.enforceEager",
    "generation_config": "rl.rollout",
    "gpu_memory_utilization": "placement.rollout.gpuMemoryUtilization",
    "hf_overrides": None,
    "hf_token": "the environment variable HF_TOKEN",
    "load_format": None,
    "logits_processors": None,
    "logprobs_mode": None,
    "master_addr": None,
    "master_port": None,
    "max_model_len": "data.maxLength",
    "model": "models.actor.path",
    "nnodes": None,
    "node_rank": None,
    "override_generation_config": "rl.rollout",
    "pipeline_parallel_size": None,
    "quantization": None,
    "revision": "models.actor.revision",
    "runner": None,
    "seed": "training.seed",
    "served_model_name": None,
    "skip_tokenizer_init": None,
    "speculative_config": None,
    "tensor_parallel_size": "placement.rollout.tensorParallel",
    "tokenizer": "models.actor.path",
    "tokenizer_revision": "models.actor.revision",
    "trust_remote_code": "models.actor.trustRemoteCode",
    "weight_transfer_config": "placement.rollout.weightSync",
    "worker_cls": None,
    "worker_extension_cls": None,
}
"""vLLM 0.32 engine arguments that the engine sets itself -> the field that says it; None where nothing may."""


def _text(role: RolePlacement) -> str:
    return f"{role.nodes} x {role.gpus_per_node}"


def _same(a: RolePlacement, b: RolePlacement) -> bool:
    return a.nodes == b.nodes and a.gpus_per_node == b.gpus_per_node


def _yaml(role: RolePlacement) -> str:
    return f"{{nodes: {role.nodes}, gpusPerNode: {role.gpus_per_node}}}"


@rule("colocate-combines", "colocate is all, none, or a list of different pairs (actorReference, criticReward)")
def colocate_combines(spec: JobSpec) -> Iterator[Finding]:
    colocate = spec.placement.colocate
    if isinstance(colocate, str):
        return
    if len(colocate) > 1 and ("all" in colocate or "none" in colocate or len(set(colocate)) < len(colocate)):
        pairs = sorted(set(colocate) - {"all", "none"})
        yield Finding("placement.colocate", list(colocate), "colocate: all" if "all" in colocate else f"colocate: [{', '.join(pairs)}]")


@rule("all-matches-engines", "with colocate: all, engines x tensorParallel equals the actor's nodes x gpusPerNode")
def all_matches_engines(spec: JobSpec) -> Iterator[Finding]:
    placement = spec.placement
    rollout, actor = placement.rollout, placement.actor
    wanted, there = rollout.engines * rollout.tensor_parallel, actor.nodes * actor.gpus_per_node
    if "all" not in placement.sharing or wanted == there:
        return
    tensor_parallel = max(d for d in range(1, rollout.tensor_parallel + 1) if there % d == 0)
    nearest = f"engines: {there // tensor_parallel}"
    if tensor_parallel != rollout.tensor_parallel:
        nearest += f" with tensorParallel: {tensor_parallel}"
    detail = f"{rollout.engines} x {rollout.tensor_parallel} = {wanted}, actor {_text(actor)} = {there}"
    yield Finding("placement.rollout.engines", rollout.engines, nearest, detail)


@rule("engine-on-one-node", "with colocate: all an engine stands on one node, so gpusPerNode is a multiple of tensorParallel")
def engine_on_one_node(spec: JobSpec) -> Iterator[Finding]:
    placement = spec.placement
    rollout, actor = placement.rollout, placement.actor
    size, room = rollout.tensor_parallel, actor.gpus_per_node
    if "all" not in placement.sharing or rollout.engines * size != actor.nodes * room or room % size == 0:
        return
    fits = max(d for d in range(1, size + 1) if room % d == 0)
    nearest = f"tensorParallel: {fits} with engines: {actor.nodes * room // fits}"
    yield Finding("placement.rollout.tensorParallel", size, nearest, f"gpusPerNode is {room}")


@rule("all-roles-equal", "with colocate: all, every role has the actor's nodes and gpusPerNode")
def all_roles_equal(spec: JobSpec) -> Iterator[Finding]:
    placement = spec.placement
    if "all" not in placement.sharing:
        return
    for name, role in (("reference", placement.reference), ("critic", placement.critic), ("reward", placement.reward)):
        if role is not None and not _same(role, placement.actor):
            nearest = f"no placement.{name}, or {_yaml(placement.actor)}"
            yield Finding(f"placement.{name}", _text(role), nearest, f"actor {_text(placement.actor)}")


@rule("pair-actor-reference-equal", "with colocate: actorReference, the reference has the actor's nodes and gpusPerNode")
def pair_actor_reference_equal(spec: JobSpec) -> Iterator[Finding]:
    placement = spec.placement
    reference = placement.reference
    if "actorReference" in placement.sharing and spec.rl.kl.coef > 0 and reference is not None and not _same(reference, placement.actor):
        nearest = f"no placement.reference, or {_yaml(placement.actor)}"
        yield Finding("placement.reference", _text(reference), nearest, f"actor {_text(placement.actor)}")


@rule("pair-critic-reward-equal", "with colocate: criticReward, critic and reward model have equal nodes and gpusPerNode")
def pair_critic_reward_equal(spec: JobSpec) -> Iterator[Finding]:
    placement = spec.placement
    if "criticReward" not in placement.sharing:
        return
    critic, reward = placement.critic or placement.actor, placement.reward or placement.actor
    if not _same(critic, reward):
        yield Finding("placement.reward", _text(reward), f"reward: {_yaml(critic)}", f"critic {_text(critic)}")


@rule("pair-has-both", "a colocated pair has both its roles", warning=True)
def pair_has_both(spec: JobSpec) -> Iterator[Finding]:
    sharing = spec.placement.sharing
    if "actorReference" in sharing and spec.rl.kl.coef == 0:
        yield Finding("placement.colocate", "actorReference", "colocate: none", "kl.coef 0 loads no reference")
    if "criticReward" in sharing and (spec.rl.advantage.estimator != "gae" or spec.models.reward is None):
        yield Finding("placement.colocate", "criticReward", "no criticReward", "this job has no critic or no reward model")


@rule(
    "placed-role-exists",
    "only roles of this job have a placement: reference with kl.coef above 0, critic with estimator gae, reward with models.reward",
    cel=Cel(
        f"(!has(self.placement.reference) || {effective('kl.coef')} > 0.0)"
        f" && (!has(self.placement.critic) || {effective('advantage.estimator')} == 'gae')"
        " && (!has(self.placement.reward) || has(self.models.reward))",
        "placement",
    ),
)
def placed_role_exists(spec: JobSpec) -> Iterator[Finding]:
    placement = spec.placement
    roles = (
        ("reference", placement.reference, spec.rl.kl.coef > 0),
        ("critic", placement.critic, spec.rl.advantage.estimator == "gae"),
        ("reward", placement.reward, spec.models.reward is not None),
    )
    for name, role, present in roles:
        if role is not None and not present:
            yield Finding(f"placement.{name}", _text(role), f"no placement.{name}")


@rule("sleep-needs-all", "the engine gives its memory back (sleep) only where it shares GPUs, with colocate: all")
def sleep_needs_all(spec: JobSpec) -> Iterator[Finding]:
    if spec.placement.rollout.sleep and "all" not in spec.placement.sharing:
        yield Finding("placement.rollout.sleep", True, "sleep: false, or colocate: all")


@rule("ipc-needs-all", "weightSync: ipc hands over memory of one GPU, so it needs colocate: all")
def ipc_needs_all(spec: JobSpec) -> Iterator[Finding]:
    if spec.placement.rollout.weight_sync == "ipc" and "all" not in spec.placement.sharing:
        yield Finding("placement.rollout.weightSync", "ipc", "weightSync: nccl, or colocate: all")


@rule("nccl-refuses-all", "weightSync: nccl cannot join two processes on one GPU, which colocate: all has")
def nccl_refuses_all(spec: JobSpec) -> Iterator[Finding]:
    if spec.placement.rollout.weight_sync == "nccl" and "all" in spec.placement.sharing:
        yield Finding("placement.rollout.weightSync", "nccl", "weightSync: ipc")


@rule(
    "transport-fits-accelerator",
    "weightSync nccl and ipc need GPUs; gloo and shm are for CPU",
    cel=Cel(
        "(self.placement.accelerator != 'cpu' || !(self.placement.rollout.weightSync in ['nccl', 'ipc']))"
        " && (self.placement.accelerator != 'gpu' || !(self.placement.rollout.weightSync in ['gloo', 'shm']))",
        "placement.rollout.weightSync",
    ),
)
def transport_fits_accelerator(spec: JobSpec) -> Iterator[Finding]:
    accelerator, transport = spec.placement.accelerator, spec.placement.rollout.weight_sync
    if (accelerator == "cpu" and transport in GPU_TRANSPORTS) or (accelerator == "gpu" and transport in CPU_TRANSPORTS):
        yield Finding("placement.rollout.weightSync", transport, "weightSync: auto", f"the accelerator is {accelerator}")


@rule(
    "tensor-parallel-needs-gpus",
    "tensorParallel above 1 needs GPUs",
    cel=Cel("self.placement.accelerator != 'cpu' || self.placement.rollout.tensorParallel == 1", "placement.rollout.tensorParallel"),
)
def tensor_parallel_needs_gpus(spec: JobSpec) -> Iterator[Finding]:
    rollout = spec.placement.rollout
    if spec.placement.accelerator == "cpu" and rollout.tensor_parallel > 1:
        nearest = f"tensorParallel: 1 with engines: {rollout.engines * rollout.tensor_parallel}"
        yield Finding("placement.rollout.tensorParallel", rollout.tensor_parallel, nearest)


@rule(
    "offload-needs-gpus",
    "deepspeed.offload moves optimizer states out of GPU memory, so it needs GPUs",
    cel=Cel("self.placement.accelerator != 'cpu' || !self.training.deepspeed.offload", "training.deepspeed.offload"),
)
def offload_needs_gpus(spec: JobSpec) -> Iterator[Finding]:
    if spec.placement.accelerator == "cpu" and spec.training.deepspeed.offload:
        yield Finding("training.deepspeed.offload", True, "offload: false")


@rule(
    "flash-attention-needs-bf16-gpus",
    "attention: flash_attention_2 needs GPUs and bf16",
    cel=Cel(
        "self.training.attention != 'flash_attention_2' || (self.placement.accelerator != 'cpu' && self.training.precision != 'fp32')",
        "training.attention",
    ),
)
def flash_attention_needs_bf16_gpus(spec: JobSpec) -> Iterator[Finding]:
    training = spec.training
    if training.attention == "flash_attention_2" and (spec.placement.accelerator == "cpu" or training.precision == "fp32"):
        detail = "the accelerator is cpu" if spec.placement.accelerator == "cpu" else "precision is fp32"
        yield Finding("training.attention", training.attention, "attention: sdpa", detail)


@rule("shm-sync-stays-in-a-pod", "weightSync: shm hands over memory of one pod, so it needs a job of one worker pod", cluster=True)
def shm_sync_stays_in_a_pod(spec: JobSpec) -> Iterator[Finding]:
    if spec.placement.rollout.weight_sync != "shm":
        return
    pods = worker_pods(spec)
    if pods > 1:
        yield Finding("placement.rollout.weightSync", "shm", "weightSync: auto", f"{pods} worker pods here")


@rule("engine-args-are-free", "engineArgs holds vLLM arguments by their Python names, and none that this API sets itself")
def engine_args_are_free(spec: JobSpec) -> Iterator[Finding]:
    for name, value in spec.placement.rollout.engine_args.items():
        python_name = name.lstrip("-").replace("-", "_").lower()
        field = f"placement.rollout.engineArgs.{name}"
        if python_name in OWNED_ENGINE_ARGS or python_name.startswith("data_parallel_"):
            yield Finding(field, value, OWNED_ENGINE_ARGS.get(python_name) or f"no {name}; the engine needs its own value")
        elif not python_name.isidentifier() or name != python_name:
            yield Finding(field, value, python_name if python_name.isidentifier() else "an argument of vllm.LLM such as max_num_seqs")
