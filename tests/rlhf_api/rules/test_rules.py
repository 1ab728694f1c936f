"""Every rule with one fault and its valid neighbour."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from rlhf_api import rules
from rlhf_api.resolve import derive
from rlhf_api.rules import RULES
from rlhf_api.spec import RLHFJob

Changes = Mapping[str, Any]
PPO: Changes = {"rl.algorithm": "ppo", "rl.rollout.promptsPerStep": 64}
REWARD_MODEL: Changes = {"models.reward": {"path": "rm"}, "rl.reward.sources": [{"model": "reward"}]}
TWO_GPUS: Changes = {"placement.actor": {"gpusPerNode": 2}, "placement.rollout.engines": 2}


@dataclass(frozen=True)
class Case:
    rule: str
    fault: Changes
    neighbour: Changes
    field: str
    nearest: str
    context: Changes = field(default_factory=dict)
    """Fields that both have in common."""


CASES = [
    # paths and names
    Case("paths-can-be-opened", {"models.actor.path": " "}, {"models.actor.path": "a b"}, "models.actor.path", ""),
    Case("paths-can-be-opened", {"models.actor.path": "/a\x00b"}, {"models.actor.path": "/модель"}, "models.actor.path", "/ab"),
    Case(
        "paths-can-be-opened",
        {"data.datasets": [{"path": "a\tb.jsonl"}]},
        {"data.datasets": [{"path": "../a b.jsonl"}]},
        "data.datasets[0].path",
        "ab.jsonl",
    ),
    Case(
        "paths-can-be-opened",
        {"rl.reward.sources": [{"function": {"file": "\n"}}]},
        {"rl.reward.sources": [{"function": {"file": "../reward.py"}}]},
        "rl.reward.sources[0].function.file",
        "",
    ),
    *(
        Case(
            "function-is-named",
            {"rl.reward.sources": [{"function": {"file": "reward.py", "name": name}}]},
            {"rl.reward.sources": [{"function": {"file": "reward.py", "name": "prämie_2"}}]},
            "rl.reward.sources[0].function.name",
            nearest,
        )
        for name, nearest in (("a b", "a_b"), ("class", ""), ("Reward.score", "Reward_score"), ("1a", "reward_func"))
    ),
    # batches
    Case(
        "batch-within-step",
        {"training.globalBatchSize": 256},
        {"training.globalBatchSize": 128},
        "training.globalBatchSize",
        "globalBatchSize: 128",
    ),
    Case(
        "batch-divides-step",
        {"training.globalBatchSize": 48},
        {"training.globalBatchSize": 64},
        "training.globalBatchSize",
        "globalBatchSize: 32 or 64",
    ),
    Case(
        "batch-divides-ranks",
        {"training.microBatchSize": 5},
        {"training.microBatchSize": 8},
        "training.globalBatchSize",
        "promptsPerStep: a multiple of 5",
    ),
    Case(
        "batch-divides-ranks",
        {"training.globalBatchSize": 4},
        {"training.globalBatchSize": 8},
        "training.globalBatchSize",
        "globalBatchSize: 8",
        context=TWO_GPUS,
    ),
    Case(
        "batch-fills-ranks",
        {"training.globalBatchSize": 1},
        {"training.globalBatchSize": 2},
        "training.globalBatchSize",
        "globalBatchSize: 2",
        context={**TWO_GPUS, "training.maxTokensPerMicroBatch": 512},
    ),
    Case(
        "token-budget-needs-packing",
        {"training.packing": False},
        {"training.packing": True},
        "training.maxTokensPerMicroBatch",
        "packing: true",
        context={"training.maxTokensPerMicroBatch": 512},
    ),
    Case(
        "token-budget-holds-a-row",
        {"training.maxTokensPerMicroBatch": 255},
        {"training.maxTokensPerMicroBatch": 256},
        "training.maxTokensPerMicroBatch",
        "256",
    ),
    Case(
        "warmup-ends",
        {"rl.valueLoss.warmupSteps": 5},
        {"rl.valueLoss.warmupSteps": 4},
        "rl.valueLoss.warmupSteps",
        "4",
        context={**PPO, "training.maxSteps": 5},
    ),
    Case(
        "save-step-reached",
        {"checkpoint.everySteps": 6},
        {"checkpoint.everySteps": 5},
        "checkpoint.everySteps",
        "5",
        context={"training.maxSteps": 5},
    ),
    Case(
        "evaluation-step-reached",
        {"evaluation.everySteps": 6},
        {"evaluation.everySteps": 5},
        "evaluation.everySteps",
        "5",
        context={"training.maxSteps": 5, "evaluation.datasets": [{"path": "test.jsonl"}]},
    ),
    # algorithms
    Case(
        "critic-needs-gae", {"models.critic": {"path": "c"}}, {**PPO, "models.critic": {"path": "c"}}, "models.critic", "rl.algorithm: ppo"
    ),
    Case(
        "group-estimator-needs-samples",
        {"rl.rollout.samplesPerPrompt": 1, "rl.rollout.promptsPerStep": 32},
        {"rl.rollout.samplesPerPrompt": 2},
        "rl.rollout.samplesPerPrompt",
        "samplesPerPrompt: 8",
    ),
    Case("gamma-needs-recursion", {"rl.advantage.gamma": 0.9}, {"rl.advantage.gamma": 1.0}, "rl.advantage.gamma", "gamma: 1.0"),
    Case(
        "gamma-needs-recursion",
        {"rl.algorithm": "rloo"},
        {**PPO, "rl.algorithm": "reinforce++"},
        "rl.advantage.gamma",
        "gamma: 1.0",
        context={"rl.advantage.gamma": 0.9},
    ),
    Case("lambda-needs-gae", {"rl.algorithm": "grpo"}, PPO, "rl.advantage.lambda", "lambda: 1.0", context={"rl.advantage.lambda": 0.95}),
    Case(
        "rloo-has-no-std",
        {"rl.algorithm": "rloo"},
        {"rl.algorithm": "grpo"},
        "rl.advantage.stdNorm",
        "group_norm",
        context={"rl.advantage.stdNorm": False},
    ),
    Case(
        "dr-grpo-aggregation",
        {"rl.policyLoss.aggregation": "token-mean"},
        {},
        "rl.policyLoss.aggregation",
        "seq-mean-token-sum-norm",
        context={"rl.algorithm": "dr-grpo"},
    ),
    Case(
        "norm-length-needs-sum-norm",
        {"rl.algorithm": "grpo"},
        {"rl.algorithm": "dr-grpo"},
        "rl.policyLoss.normLength",
        "no normLength",
        context={"rl.policyLoss.normLength": 9},
    ),
    Case("value-loss-needs-gae", {"rl.algorithm": "grpo"}, PPO, "rl.valueLoss.clip", "no valueLoss", context={"rl.valueLoss.clip": 0.2}),
    Case(
        "value-loss-needs-gae",
        {"rl.algorithm": "grpo"},
        PPO,
        "rl.valueLoss.warmupSteps",
        "no valueLoss",
        context={"rl.valueLoss.warmupSteps": 1},
    ),
    Case(
        "k1-loss-has-no-gradient", {"rl.kl.estimator": "k1"}, {"rl.kl.estimator": "k2"}, "rl.kl.estimator", "k3, or unbiasedGradient: true"
    ),
    Case(
        "k1-loss-has-no-gradient",
        {"rl.kl.unbiasedGradient": False},
        {"rl.kl.unbiasedGradient": True},
        "rl.kl.estimator",
        "k3",
        context={"rl.kl.estimator": "k1"},
    ),
    Case(
        "unbiased-gradient-needs-loss",
        {"rl.kl.placement": "reward"},
        {"rl.kl.placement": "loss"},
        "rl.kl.unbiasedGradient",
        "loss",
        context={"rl.kl.unbiasedGradient": True},
    ),
    Case("adaptive-kl-needs-coef", {"rl.kl.coef": 0}, {"rl.kl.coef": 0.1}, "rl.kl.coef", "coef: 0.01", context={"rl.kl.target": 1}),
    Case("horizon-needs-target", {"rl.kl.horizon": 100}, {"rl.kl.horizon": 100, "rl.kl.target": 1}, "rl.kl.horizon", "target"),
    Case(
        "return-to-go-needs-group-reward",
        {"rl.algorithm": "grpo"},
        {"rl.algorithm": "rloo"},
        "rl.kl.returnToGo",
        "no returnToGo",
        context={"rl.kl.returnToGo": False},
    ),
    Case(
        "unused-reference",
        {"rl.kl.coef": 0},
        {"rl.kl.coef": 0.1},
        "models.reference",
        "kl.coef above 0",
        context={"models.reference": {"path": "r"}},
    ),
    Case(
        "correction-bounds",
        {"rl.correction": {"low": 1, "high": 1}},
        {"rl.correction": {"low": 0.9, "high": 1}},
        "rl.correction.low",
        "low: 0.5",
    ),
    *(
        Case(
            "truncated-sampling-is-asked-for",
            {},
            {"rl.rollout.allowTruncatedSampling": True, "rl.correction": {}},
            f"rl.rollout.{name}",
            "allowTruncatedSampling: true",
            context={f"rl.rollout.{name}": value},
        )
        for name, value in (("topP", 0.9), ("topK", 5), ("minP", 0.1))
    ),
    Case(
        "truncated-sampling-needs-correction",
        {},
        {"rl.correction": {"mode": "mask"}},
        "rl.rollout.allowTruncatedSampling",
        "correction",
        context={"rl.rollout.topP": 0.9, "rl.rollout.allowTruncatedSampling": True},
    ),
    Case(
        "adam-betas",
        {"training.optimizer.betas": [0.9, 1]},
        {"training.optimizer.betas": [0, 0.999]},
        "training.optimizer.betas[1]",
        "[0.9, 0.95]",
    ),
    # rewards
    Case(
        "reward-has-a-source",
        {"rl.reward.sources": []},
        {"rl.reward.sources": [], "models.reward": {"path": "rm"}},
        "rl.reward.sources",
        "function",
    ),
    Case("source-is-one-thing", {"rl.reward.sources": [{"weight": 1}]}, {}, "rl.reward.sources[0]", "function"),
    Case(
        "source-is-one-thing",
        {"rl.reward.sources": [{"function": {"file": "r.py"}, "model": "reward"}]},
        {"rl.reward.sources": [{"function": {"file": "r.py"}}, {"model": "reward"}]},
        "rl.reward.sources[0]",
        "two sources",
        context={"models.reward": {"path": "rm"}},
    ),
    Case(
        "model-source-needs-model",
        {},
        {"models.reward": {"path": "rm"}},
        "rl.reward.sources[0].model",
        "models.reward",
        context={"rl.reward.sources": [{"model": "reward"}]},
    ),
    Case("reward-model-is-used", {"models.reward": {"path": "rm"}}, REWARD_MODEL, "models.reward", "{model: reward}"),
    Case("some-source-counts", {"rl.reward.sources.0.weight": 0}, {"rl.reward.sources.0.weight": -1}, "rl.reward.sources[0].weight", "1.0"),
    Case("reward-clip-bounds", {"rl.reward.clip": [5, -5]}, {"rl.reward.clip": [-5, 5]}, "rl.reward.clip", "clip: [-5"),
    Case(
        "overlong-buffer-fits",
        {"rl.reward.overlong": {"bufferTokens": 64}},
        {"rl.reward.overlong": {"bufferTokens": 63}},
        "rl.reward.overlong.bufferTokens",
        "63",
    ),
    Case(
        "truncation-penalty-survives-clip",
        {"rl.reward.truncation.penalty": -20},
        {"rl.reward.truncation.penalty": -10},
        "rl.reward.truncation.penalty",
        "penalty: -10",
        context={"rl.reward.clipAt": "beforeBaseline"},
    ),
    Case(
        "truncation-factor-helps-negative",
        {"rl.reward.truncation.penalty": 0.5},
        {"rl.reward.truncation.penalty": -1},
        "rl.reward.truncation.penalty",
        "negative",
    ),
    # data
    Case(
        "response-leaves-room",
        {"rl.rollout.maxNewTokens": 256},
        {"rl.rollout.maxNewTokens": 255},
        "rl.rollout.maxNewTokens",
        "maxNewTokens: 128",
    ),
    Case("response-minimum-fits", {"data.minResponseTokens": 65}, {"data.minResponseTokens": 64}, "data.minResponseTokens", "64"),
    Case(
        "chat-template-is-applied",
        {},
        {"data.applyChatTemplate": True},
        "data.chatTemplate",
        "applyChatTemplate: true",
        context={"data.chatTemplate": "{{ messages }}"},
    ),
    Case(
        "prompt-template-has-one-place", {"data.promptTemplate": "Q: "}, {"data.promptTemplate": "Q: {}"}, "data.promptTemplate", "'Q: {}'"
    ),
    Case("prompt-template-has-one-place", {"data.promptTemplate": "{} {}"}, {"data.promptTemplate": "{}"}, "data.promptTemplate", "one {}"),
    Case(
        "data-set-names-differ",
        {"data.datasets": [{"path": "a/x.jsonl"}, {"path": "b/x.parquet"}]},
        {"data.datasets": [{"path": "a/x.jsonl"}, {"path": "b/x.parquet", "name": "y"}]},
        "data.datasets[1].name",
        "name: x-2",
    ),
    Case(
        "seed-needs-random-init",
        {"models.actor.seed": 3},
        {"models.actor.seed": 3, "models.actor.init": "random"},
        "models.actor.seed",
        "init: random",
    ),
    Case(
        "start-is-named",
        {"models.reference": {"revision": "main"}},
        {"models.reference": {"revision": "main", "path": "r"}},
        "models.reference.path",
        "path: model",
    ),
    Case(
        "pass-at-within-samples",
        {"evaluation.passAt": [1, 8]},
        {"evaluation.passAt": [1, 4]},
        "evaluation.passAt[1]",
        "samplesPerPrompt: 8",
        context={"evaluation.datasets": [{"path": "t.jsonl"}], "evaluation.samplesPerPrompt": 4, "evaluation.temperature": 0.6},
    ),
    Case(
        "greedy-evaluation-is-one-sample",
        {"evaluation.samplesPerPrompt": 2},
        {"evaluation.samplesPerPrompt": 1},
        "evaluation.temperature",
        "0.6",
        context={"evaluation.datasets": [{"path": "t.jsonl"}]},
    ),
    Case(
        "no-literal-secrets",
        {"data.datasets.0.path": "https://me:pw@host/x.jsonl"},
        {"data.datasets.0.path": "https://host/x.jsonl"},
        "data.datasets[0].path",
        "HF_TOKEN",
    ),
    # placement
    Case(
        "colocate-combines",
        {"placement.colocate": ["all", "actorReference"]},
        {"placement.colocate": ["all"]},
        "placement.colocate",
        "colocate: all",
    ),
    Case(
        "colocate-combines",
        {"placement.colocate": ["none", "actorReference"]},
        {"placement.colocate": ["actorReference", "criticReward"]},
        "placement.colocate",
        "[actorReference]",
        context={**PPO, **REWARD_MODEL},
    ),
    Case("all-matches-engines", {"placement.rollout.engines": 2}, {**TWO_GPUS}, "placement.rollout.engines", "engines: 1"),
    Case(
        "engine-on-one-node",
        {"placement.rollout": {"engines": 1, "tensorParallel": 4}},
        {"placement.rollout": {"engines": 2, "tensorParallel": 2}},
        "placement.rollout.tensorParallel",
        "tensorParallel: 2 with engines: 2",
        context={"placement.actor": {"nodes": 2, "gpusPerNode": 2}},
    ),
    Case(
        "all-roles-equal",
        {"placement.reference": {"gpusPerNode": 1}},
        {"placement.reference": {"gpusPerNode": 2}},
        "placement.reference",
        "{nodes: 1, gpusPerNode: 2}",
        context=TWO_GPUS,
    ),
    Case(
        "pair-actor-reference-equal",
        {"placement.reference": {"gpusPerNode": 2}},
        {"placement.reference": {"gpusPerNode": 1}},
        "placement.reference",
        "gpusPerNode: 1",
        context={"placement.colocate": "actorReference"},
    ),
    Case(
        "pair-critic-reward-equal",
        {"placement.critic": {"gpusPerNode": 2}},
        {"placement.critic": {"gpusPerNode": 2}, "placement.reward": {"gpusPerNode": 2}},
        "placement.reward",
        "gpusPerNode: 2",
        context={**PPO, **REWARD_MODEL, "placement.colocate": "criticReward"},
    ),
    Case(
        "pair-has-both",
        {"placement.colocate": "criticReward"},
        {**PPO, **REWARD_MODEL, "placement.colocate": "criticReward"},
        "placement.colocate",
        "no criticReward",
    ),
    Case(
        "placed-role-exists",
        {"rl.kl.coef": 0},
        {"rl.kl.coef": 0.1},
        "placement.reference",
        "no placement.reference",
        context={"placement.reference": {}},
    ),
    Case("placed-role-exists", {"rl.algorithm": "grpo"}, PPO, "placement.critic", "no placement.critic", context={"placement.critic": {}}),
    Case("placed-role-exists", {}, REWARD_MODEL, "placement.reward", "no placement.reward", context={"placement.reward": {}}),
    Case(
        "sleep-needs-all",
        {"placement.colocate": "none"},
        {"placement.colocate": "all"},
        "placement.rollout.sleep",
        "sleep: false",
        context={"placement.rollout.sleep": True},
    ),
    Case(
        "ipc-needs-all",
        {"placement.colocate": "none"},
        {"placement.colocate": "all"},
        "placement.rollout.weightSync",
        "nccl",
        context={"placement.rollout.weightSync": "ipc"},
    ),
    Case(
        "nccl-refuses-all",
        {"placement.colocate": "all"},
        {"placement.colocate": "none"},
        "placement.rollout.weightSync",
        "ipc",
        context={"placement.rollout.weightSync": "nccl"},
    ),
    *(
        Case(
            "transport-fits-accelerator",
            {"placement.accelerator": wrong},
            {"placement.accelerator": right},
            "placement.rollout.weightSync",
            "auto",
            context={"placement.colocate": colocate, "placement.rollout.weightSync": transport},
        )
        for transport, wrong, right, colocate in (
            ("nccl", "cpu", "gpu", "none"),
            ("ipc", "cpu", "gpu", "all"),
            ("gloo", "gpu", "cpu", "all"),
            ("shm", "gpu", "auto", "all"),
        )
    ),
    Case(
        "tensor-parallel-needs-gpus",
        {"placement.accelerator": "cpu"},
        {"placement.accelerator": "gpu"},
        "placement.rollout.tensorParallel",
        "engines: 2",
        context={"placement.actor": {"gpusPerNode": 2}, "placement.rollout.tensorParallel": 2},
    ),
    Case(
        "offload-needs-gpus",
        {"placement.accelerator": "cpu"},
        {},
        "training.deepspeed.offload",
        "offload: false",
        context={"training.deepspeed.offload": True},
    ),
    Case(
        "flash-attention-needs-bf16-gpus",
        {"placement.accelerator": "cpu"},
        {},
        "training.attention",
        "sdpa",
        context={"training.attention": "flash_attention_2"},
    ),
    Case(
        "flash-attention-needs-bf16-gpus",
        {"training.precision": "fp32"},
        {},
        "training.attention",
        "sdpa",
        context={"training.attention": "flash_attention_2"},
    ),
    *(
        Case(
            "engine-args-are-free",
            {"placement.rollout.engineArgs": {name: 1}},
            {"placement.rollout.engineArgs": {"max_num_seqs": 8}},
            f"placement.rollout.engineArgs.{name}",
            nearest,
        )
        for name, nearest in (
            ("model", "models.actor.path"),
            ("dtype", "training.precision"),
            ("tensor-parallel-size", "placement.rollout.tensorParallel"),
            ("logprobs_mode", "no logprobs_mode"),
            ("data_parallel_size", "no data_parallel_size"),
            ("--max-num-seqs", "max_num_seqs"),
        )
    ),
]


def _reported(job: RLHFJob) -> list[Any]:
    return rules.check(job) + rules.warnings(job)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}:{case.field.rsplit('.', 1)[-1]}")
def test_rule_names_the_fault_and_accepts_its_neighbour(case: Case, valid_job: Callable[[Changes], RLHFJob]) -> None:
    rule = next(each for each in RULES if each.id == case.rule)

    found = [each for each in _reported(valid_job({**case.context, **case.fault})) if each.rule.startswith(rule.text)]
    assert [each.field for each in found] == [f"spec.{case.field}"]
    assert case.nearest in (found[0].nearest or "")

    neighbour = valid_job({**case.context, **case.neighbour})
    assert _reported(neighbour) == []
    assert _reported(derive(neighbour)) == []


def test_every_rule_has_a_case() -> None:
    of_pods = (rules.pods.__name__, rules.templates.__name__, rules.volumes.__name__)
    here = {rule.id for rule in RULES if not rule.cluster and rule.check.__module__ not in of_pods}
    assert here == {case.rule for case in CASES}


def test_rule_ids_are_unique() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)


def test_every_fault_is_an_error_or_a_warning_as_the_rule_says(valid_job: Callable[[Changes], RLHFJob]) -> None:
    job = valid_job({"training.maxTokensPerMicroBatch": 8, "training.globalBatchSize": 24})
    assert [each.field for each in rules.check(job)] == ["spec.training.globalBatchSize"]
    assert [each.field for each in rules.warnings(job)] == ["spec.training.maxTokensPerMicroBatch"]


def test_world_rules_resolve_the_automatic_accelerator(valid_job: Callable[[Changes], RLHFJob]) -> None:
    job = valid_job({"placement.colocate": "none", "placement.rollout.weightSync": "nccl"})
    assert rules.check_world(job, gpus=2) == []
    assert [each.field for each in rules.check_world(job, gpus=0)] == ["spec.placement.rollout.weightSync"]


def test_gpu_job_on_a_machine_without_gpus_is_refused(valid_job: Callable[[Changes], RLHFJob]) -> None:
    (fault,) = rules.check_world(valid_job({"placement.accelerator": "gpu"}), gpus=0)
    assert fault.field == "spec.placement.accelerator"
