from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from pydantic import BaseModel

from rlhf_api import rules
from rlhf_api.base import PRESET_MARK
from rlhf_api.fields import by_alias, model_in
from rlhf_api.presets import PRESETS
from rlhf_api.resolve import derive, resolve
from rlhf_api.spec import DatasetSpec, RLHFJob, RlSpec

ValidJob = Callable[[Mapping[str, Any]], RLHFJob]


def _preset_fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for alias, info in by_alias(model).items():
        child = model_in(info.annotation)
        if isinstance(info.json_schema_extra, dict) and PRESET_MARK in info.json_schema_extra:
            yield f"{prefix}{alias}", info.default
        if child is not None:
            yield from _preset_fields(child, f"{prefix}{alias}.")


def test_every_preset_sets_exactly_the_marked_fields() -> None:
    marked = {path for path, _ in _preset_fields(RlSpec)}
    for preset in PRESETS.values():
        assert set(preset.fields) == marked


def test_schema_defaults_of_marked_fields_are_the_grpo_preset() -> None:
    assert dict(_preset_fields(RlSpec)) == dict(PRESETS["grpo"].fields)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ppo", ("gae", "token-mean", 0.01, "k1", "reward", 1)),
        ("reinforce++", ("reinforce", "token-mean", 0.01, "k1", "reward", 1)),
        ("reinforce++-baseline", ("reinforce_baseline", "token-mean", 0.01, "k2", "loss", 8)),
        ("rloo", ("rloo", "token-mean", 0.01, "k1", "reward", 8)),
        ("grpo", ("group_norm", "token-mean", 0.01, "k3", "loss", 8)),
        ("dr-grpo", ("dr_grpo", "seq-mean-token-sum-norm", 0.0, "k3", "loss", 8)),
    ],
)
def test_preset_fills_what_the_manifest_leaves_open(valid_job: ValidJob, name: str, expected: tuple[Any, ...]) -> None:
    rl = valid_job({"rl.algorithm": name}).spec.rl
    kl = rl.kl
    aggregation = rl.policy_loss.aggregation
    assert (rl.advantage.estimator, aggregation, kl.coef, kl.estimator, kl.placement, rl.rollout.samples_per_prompt) == expected


@pytest.mark.parametrize("name", PRESETS)
def test_preset_job_is_valid_and_derivation_is_idempotent(valid_job: ValidJob, name: str) -> None:
    job = valid_job({"rl.algorithm": name, "rl.rollout.promptsPerStep": 64})
    derived = derive(job)
    assert rules.check(job) == rules.check(derived) == []
    assert derive(derived) == derived


@pytest.mark.parametrize("field", list(PRESETS["ppo"].fields))
def test_value_of_the_manifest_wins_over_the_preset(raw_job: Callable[..., dict[str, Any]], field: str) -> None:
    mine = PRESETS["dr-grpo"].fields[field]
    resolved = resolve(raw_job({"rl.algorithm": "ppo", f"rl.{field}": mine}))
    section, leaf = field.split(".")
    assert resolved["spec"]["rl"][section][leaf] == mine
    assert resolve(resolved) == resolved


@pytest.mark.parametrize(
    ("estimator", "std_norm", "whiten"),
    [
        ("gae", True, "batch"),
        ("reinforce", True, "batch"),
        ("reinforce_baseline", True, "batch"),
        ("rloo", None, "none"),
        ("group_norm", True, "none"),
        ("dr_grpo", False, "none"),
    ],
)
def test_normalisation_defaults_follow_the_estimator(valid_job: ValidJob, estimator: str, std_norm: bool | None, whiten: str) -> None:
    advantage = derive(valid_job({"rl.advantage.estimator": estimator})).spec.rl.advantage
    assert (advantage.std_norm, advantage.whiten) == (std_norm, whiten)


def test_critic_starts_from_the_reward_model_else_from_the_actor(valid_job: ValidJob) -> None:
    ppo = {"rl.algorithm": "ppo", "rl.rollout.promptsPerStep": 64}
    critic = derive(valid_job({**ppo, "models.actor": {"path": "a", "init": "random", "seed": 3}})).spec.models.critic
    assert critic is not None
    assert (critic.path, critic.init, critic.seed) == ("a", "random", 3)
    critic = derive(valid_job({**ppo, "models.reward": {"path": "rm"}, "models.critic": {"headName": "v"}})).spec.models.critic
    assert critic is not None
    assert (critic.path, critic.head_name) == ("rm", "v")
    assert derive(valid_job({})).spec.models.critic is None


def test_reference_is_the_actors_start_only_while_it_has_a_use(valid_job: ValidJob) -> None:
    reference = derive(valid_job({"models.reference": {}})).spec.models.reference
    assert reference is not None
    assert reference.path == "model"
    assert derive(valid_job({"rl.kl.coef": 0})).spec.models.reference is None


def test_reward_model_alone_is_the_source(valid_job: ValidJob) -> None:
    sources = derive(valid_job({"rl.reward.sources": [], "models.reward": {"path": "rm"}})).spec.rl.reward.sources
    assert [source.model for source in sources] == ["reward"]


def test_roles_of_the_job_get_a_size_and_no_others(valid_job: ValidJob) -> None:
    placement = derive(valid_job({"placement.actor.gpusPerNode": 4, "placement.rollout.engines": 4})).spec.placement
    assert placement.reference == placement.actor
    assert placement.critic is None
    assert placement.reward is None


@pytest.mark.parametrize(
    ("changes", "memory", "sleep"),
    [
        ({}, 0.5, True),
        ({"placement.accelerator": "cpu"}, 0.5, False),
        ({"placement.colocate": "none"}, 0.95, False),
        ({"placement.colocate": ["all"], "placement.rollout.gpuMemoryUtilization": 0.3}, 0.3, True),
    ],
)
def test_engine_memory_follows_colocation(valid_job: ValidJob, changes: Mapping[str, Any], memory: float, sleep: bool) -> None:
    rollout = derive(valid_job(changes)).spec.placement.rollout
    assert (rollout.gpu_memory_utilization, rollout.sleep) == (memory, sleep)


@pytest.mark.parametrize(
    ("path", "name"),
    [("data/gsm8k.jsonl", "gsm8k"), ("openai/gsm8k", "gsm8k"), ("org/set-v1.5", "set-v1.5"), ("a b!/c d/", "c-d"), ("/", "data")],
)
def test_data_set_is_named_after_its_path(valid_job: ValidJob, path: str, name: str) -> None:
    (dataset,) = derive(valid_job({"data.datasets": [{"path": path}]})).spec.data.datasets
    assert dataset == DatasetSpec(path=path, name=name)
