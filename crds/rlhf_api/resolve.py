"""From what the user wrote to what the job does: presets, then derived defaults, then one resolved YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import yaml
from pydantic import BaseModel

from rlhf_api.presets import PRESETS
from rlhf_api.spec import (
    AdvantageSpec,
    CriticSpec,
    DatasetSpec,
    JobSpec,
    ModelSpec,
    ModelsSpec,
    PlacementSpec,
    ReferenceSpec,
    RewardSourceSpec,
    RLHFJob,
    RlSpec,
)

WHITENED_ESTIMATORS = frozenset({"gae", "reinforce", "reinforce_baseline"})
"""Estimators whose advantages are whitened over the batch by default."""

NO_STD_ESTIMATORS = frozenset({"rloo"})
"""Estimators without a standard deviation to divide by."""

DATA_SUFFIXES = (".jsonl", ".json", ".parquet")


def resolve(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest's mapping with the preset's values under the user's own. Anything malformed is left for validation.

    ``status`` is dropped: the manifest may be what ``kubectl get -o yaml`` printed.
    """
    raw = {key: value for key, value in raw.items() if key != "status"}
    spec = raw.get("spec")
    rl = spec.get("rl") if isinstance(spec, Mapping) else None
    name = rl.get("algorithm") if isinstance(rl, Mapping) else None
    preset = PRESETS.get(name) if isinstance(name, str) else None
    if preset is None or not isinstance(spec, Mapping) or not isinstance(rl, Mapping):
        return raw
    return {**raw, "spec": {**spec, "rl": _under(rl, preset.tree())}}


def _under(user: Mapping[str, Any], preset: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(user)
    for key, value in preset.items():
        if key not in merged:
            merged[key] = value
        elif isinstance(value, Mapping) and isinstance(merged[key], Mapping):
            merged[key] = _under(merged[key], value)
    return merged


def derive(job: RLHFJob) -> RLHFJob:
    """Fills every default that depends on other fields. Idempotent; ``job`` must have passed the rules."""
    spec = job.spec
    spec = spec.model_copy(update={"models": _models(spec), "rl": _rl(spec)})
    spec = spec.model_copy(update={"placement": _placement(spec), **_datasets(spec)})
    return job.model_copy(update={"spec": spec})


def _start(model: ModelSpec) -> dict[str, Any]:
    """Which weights a role starts from."""
    return {name: getattr(model, name) for name in ModelSpec.model_fields}


def _models(spec: JobSpec) -> ModelsSpec:
    models = spec.models
    reference, critic = models.reference, models.critic
    if spec.rl.kl.coef > 0 and (reference is None or not reference.path):
        reference = ReferenceSpec(**_start(models.actor))
    if spec.rl.advantage.estimator == "gae" and (critic is None or not critic.path):
        critic = (critic or CriticSpec()).model_copy(update=_start(models.reward or models.actor))
    return models.model_copy(update={"reference": reference, "critic": critic})


def _rl(spec: JobSpec) -> RlSpec:
    rl = spec.rl
    loss, reward = rl.policy_loss, rl.reward
    if loss.aggregation == "seq-mean-token-sum-norm" and loss.norm_length is None:
        loss = loss.model_copy(update={"norm_length": rl.rollout.max_new_tokens})
    if not reward.sources and spec.models.reward is not None:
        reward = reward.model_copy(update={"sources": [RewardSourceSpec(model="reward")]})
    return rl.model_copy(update={"advantage": _advantage(rl.advantage), "policy_loss": loss, "reward": reward})


def _advantage(advantage: AdvantageSpec) -> AdvantageSpec:
    estimator, std_norm, whiten = advantage.estimator, advantage.std_norm, advantage.whiten
    if std_norm is None and estimator not in NO_STD_ESTIMATORS:
        std_norm = estimator != "dr_grpo"
    if whiten is None:
        whiten = "batch" if estimator in WHITENED_ESTIMATORS else "none"
    return advantage.model_copy(update={"std_norm": std_norm, "whiten": whiten})


def _placement(spec: JobSpec) -> PlacementSpec:
    placement = spec.placement
    shared = "all" in placement.sharing
    rollout = placement.rollout
    engine: dict[str, Any] = {}
    if rollout.gpu_memory_utilization is None:
        engine["gpu_memory_utilization"] = 0.5 if shared else 0.95
    if rollout.sleep is None:
        engine["sleep"] = shared and placement.accelerator != "cpu"
    roles = {
        "reference": spec.rl.kl.coef > 0,
        "critic": spec.rl.advantage.estimator == "gae",
        "reward": spec.models.reward is not None,
    }
    sizes = {role: getattr(placement, role) or placement.actor for role, present in roles.items() if present}
    return placement.model_copy(update={"rollout": rollout.model_copy(update=engine), **sizes})


def dataset_name(dataset: DatasetSpec) -> str:
    """The name in metrics: as given, else the last part of the path without a data file's suffix."""
    if dataset.name is not None:
        return dataset.name
    last = PurePosixPath(dataset.path).name
    for suffix in DATA_SUFFIXES:
        last = last.removesuffix(suffix)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-")[:63] or "data"


def _named(datasets: Sequence[DatasetSpec]) -> list[DatasetSpec]:
    return [dataset.model_copy(update={"name": dataset_name(dataset)}) for dataset in datasets]


def _datasets(spec: JobSpec) -> dict[str, Any]:
    update: dict[str, Any] = {"data": spec.data.model_copy(update={"datasets": _named(spec.data.datasets)})}
    if spec.evaluation is not None:
        update["evaluation"] = spec.evaluation.model_copy(update={"datasets": _named(spec.evaluation.datasets)})
    return update


def to_raw(model: BaseModel) -> dict[str, Any]:
    """camelCase mapping of ``model`` that loads to the same model. Fields that are null by default are left out."""
    fields = type(model).model_fields
    values = ((info, getattr(model, name), info.alias or name) for name, info in fields.items())
    return {alias: _plain(value) for info, value, alias in values if not (value is None and info.default is None)}


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return to_raw(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def to_yaml(job: RLHFJob) -> str:
    """The resolved job as YAML, the content of ``job.yaml``."""
    return yaml.safe_dump(to_raw(job), sort_keys=False, allow_unicode=True, width=120)
