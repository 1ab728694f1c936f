"""Faults that users of neighbouring systems met, by the ids of the case list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from rlhf_api import manifest, rules
from rlhf_api.spec import RLHFJob
from rlhf_api.violations import Violation

Changes = Mapping[str, Any]
ValidJob = Callable[[Changes], RLHFJob]
RawJob = Callable[[Changes], dict[str, Any]]


TOKEN = "hf_" + "a1B2" * 9


def _faults(raw: dict[str, Any]) -> list[Violation]:
    return manifest.validate(raw)[1]


@pytest.mark.parametrize("value", ["https://user:hunter2@host/data.jsonl", "hf_" + "a1B2" * 9, "sk-" + "x" * 32])
def test_rc13_secret_in_the_spec_is_refused_and_never_printed(raw_job: RawJob, value: str) -> None:
    faults = _faults(raw_job({"data.datasets.0.path": value}))
    assert [fault.field for fault in faults] == ["spec.data.datasets[0].path"]
    assert "hunter2" not in str(faults[0])
    assert value not in str(faults[0])
    assert "***" in str(faults[0])


def test_rc13_secret_inside_another_fault_is_masked(raw_job: RawJob) -> None:
    (fault,) = _faults(raw_job({"checkpoint.everySteps": "https://user:hunter2@host"}))
    assert "hunter2" not in str(fault)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cluster.env[0].value", {"cluster.env": [{"name": "A", "value": TOKEN}]}),
        ("cluster.annotations.a", {"cluster.annotations": {"a": TOKEN}}),
        ("cluster.labels.a", {"cluster.labels": {"a": TOKEN}}),
        ("cluster.network.env.NCCL_NET", {"cluster.network": {"env": {"NCCL_NET": TOKEN}}}),
        ("cluster.podOverlay", {"cluster.podOverlay": {"spec": {"containers": [{"env": [{"name": "A", "value": TOKEN}]}]}}}),
    ],
)
def test_rc13_secret_in_the_pods_settings_is_refused_and_secret_env_named(raw_job: RawJob, field: str, value: Changes) -> None:
    (fault,) = _faults(raw_job(value))
    assert fault.field == f"spec.{field}"
    assert TOKEN not in str(fault)
    assert "cluster.secretEnv" in (fault.nearest or "")


def test_rc13_secret_reference_is_accepted(raw_job: RawJob) -> None:
    assert _faults(raw_job({"cluster.secretEnv": [{"name": "HF_TOKEN", "secretKeyRef": {"name": "hf", "key": "token"}}]})) == []


@pytest.mark.parametrize("size", [100_000, 1_000_000])
def test_rc65_settings_that_would_swell_every_pod_are_refused_with_advice(raw_job: RawJob, size: int) -> None:
    (fault,) = _faults(raw_job({"cluster.podOverlay": {"metadata": {"annotations": {"note": "ü" * (size // 2)}}}}))
    assert (fault.field, fault.nearest) == ("spec.cluster.podOverlay", "a ConfigMap as cluster.files, or a volume")
    assert len(str(fault)) < 1000


@pytest.mark.parametrize("length", [20, 40])
def test_rc14_name_that_fits_is_accepted(raw_job: RawJob, length: int) -> None:
    assert _faults(raw_job({"metadata.name": "n" * length})) == []


@pytest.mark.parametrize(
    "name", ["n" * 41, "n" * 42, "n" * 47, "n" * 48, "n" * 53, "n" * 63, "n" * 64, "n" * 253, "a.b", "a" * 39 + "-", "-a", "A"]
)
def test_rc14_name_that_does_not_fit_is_refused_with_the_limit_and_a_valid_name(raw_job: RawJob, name: str) -> None:
    (fault,) = _faults(raw_job({"metadata.name": name}))
    assert fault.field == "metadata.name"
    assert "at most 40 characters" in fault.rule
    assert _faults(raw_job({"metadata.name": fault.nearest})) == []


@pytest.mark.parametrize(
    ("actor", "engines", "tensor_parallel", "nearest"),
    [
        ((1, 2), 2, 1, None),
        ((1, 8), 4, 2, None),
        ((2, 8), 3, 1, "engines: 16"),
        ((2, 8), 3, 2, "engines: 8"),
        ((1, 2), 4, 2, "engines: 1"),
        ((1, 6), 2, 4, "engines: 2 with tensorParallel: 3"),
    ],
)
@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_rc28_engines_match_the_actors_gpus_when_all_share(
    valid_job: ValidJob, algorithm: str, actor: tuple[int, int], engines: int, tensor_parallel: int, nearest: str | None
) -> None:
    nodes, gpus = actor
    job = valid_job(
        {
            "rl.algorithm": algorithm,
            "rl.rollout.promptsPerStep": 192,
            "training.microBatchSize": 1,
            "training.globalBatchSize": 96,
            "placement.actor": {"nodes": nodes, "gpusPerNode": gpus},
            "placement.rollout": {"engines": engines, "tensorParallel": tensor_parallel},
        }
    )
    faults = rules.check(job)
    assert [fault.nearest for fault in faults] == ([] if nearest is None else [nearest])
    for fault in faults:
        assert f"{engines} x {tensor_parallel} = {engines * tensor_parallel}, actor {nodes} x {gpus} = {nodes * gpus}" in fault.rule


@pytest.mark.parametrize(
    ("batch", "micro", "ranks", "prompts", "samples", "nearest"),
    [
        (6, 1, 4, 8, 4, ["globalBatchSize: 4 or 8"]),
        (8, 16, 1, 8, 4, ["globalBatchSize: 16"]),
        (5, 2, 1, 4, 5, ["globalBatchSize: 4 or 10"]),
        (64, 1, 1, 8, 4, ["globalBatchSize: 32"]),
        (16, 2, 4, 8, 4, []),
        (15, 1, 1, 3, 5, []),
    ],
)
def test_rc29_batches_divide_without_remainder(
    valid_job: ValidJob, batch: int, micro: int, ranks: int, prompts: int, samples: int, nearest: list[str]
) -> None:
    job = valid_job(
        {
            "rl.rollout": {"promptsPerStep": prompts, "samplesPerPrompt": samples, "maxNewTokens": 8},
            "training.globalBatchSize": batch,
            "training.microBatchSize": micro,
            "placement.actor.gpusPerNode": ranks,
            "placement.rollout.engines": ranks,
        }
    )
    assert sorted({fault.nearest for fault in rules.check(job)}) == nearest


@pytest.mark.parametrize(
    ("changes", "field", "nearest"),
    [
        ({"rl.rollout.promptsPerStp": 4}, "spec.rl.rollout.promptsPerStp", "promptsPerStep"),
        ({"rl.rollout.prompts_per_step": 4}, "spec.rl.rollout.prompts_per_step", "promptsPerStep"),
        ({"rl.temperature": 1}, "spec.rl.temperature", "spec.rl.rollout.temperature or spec.evaluation.temperature"),
        ({"rl.rollout.globalBatchSize": 4}, "spec.rl.rollout.globalBatchSize", "spec.training.globalBatchSize"),
        ({"rl.rollout.promptsPerStep": "4"}, "spec.rl.rollout.promptsPerStep", "4 without quotes"),
        ({"training.learningRate.actor": "1e-6"}, "spec.training.learningRate.actor", "1e-6 without quotes"),
        ({"rl.kl.coef": -1}, "spec.rl.kl.coef", "coef: 0"),
        ({"rl.algorithm": "gpro"}, "spec.rl.algorithm", "grpo"),
        ({"training.deepspeed.zeroStage": 4}, "spec.training.deepspeed.zeroStage", "0"),
        ({"training.packing": "true"}, "spec.training.packing", "true without quotes"),
        ({"placement.rollout.engineArgs": {"max_num_seqs": [1]}}, "spec.placement.rollout.engineArgs.max_num_seqs", None),
        ({"training.globalBatchSize": 1.5}, "spec.training.globalBatchSize", "2"),
        ({"data.promptKey": 5}, "spec.data.promptKey", '"5" in quotes'),
    ],
)
def test_rc31_field_that_is_not_in_the_api_or_of_another_type_is_refused(
    raw_job: RawJob, changes: Changes, field: str, nearest: str | None
) -> None:
    (fault,) = _faults(raw_job(changes))
    assert (fault.field, fault.nearest) == (field, nearest)


@pytest.mark.parametrize("temperature", [0, -1, 1e-6])
def test_rc68_training_temperature_not_above_zero_is_refused(raw_job: RawJob, temperature: float) -> None:
    (fault,) = _faults(raw_job({"rl.rollout.temperature": temperature}))
    assert fault.field == "spec.rl.rollout.temperature"
    assert "divided by it" in fault.rule


def test_rc68_evaluation_may_be_greedy(raw_job: RawJob) -> None:
    assert _faults(raw_job({"evaluation": {"datasets": [{"path": "t.jsonl"}], "temperature": 0}})) == []


@pytest.mark.parametrize("changes", [{"rl.rollout.topP": 0.9}, {"rl.rollout.topK": 5}, {"rl.rollout.minP": 0.05}])
def test_rc68_cut_sampling_is_refused_unless_asked_for_and_corrected(raw_job: RawJob, changes: Changes) -> None:
    asked = {**changes, "rl.rollout.allowTruncatedSampling": True}
    assert len(_faults(raw_job(changes))) == 1
    assert len(_faults(raw_job(asked))) == 1
    assert _faults(raw_job({**asked, "rl.correction": {}})) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"rl.kl.target": 0},
        {"rl.kl.target": -1},
        {"rl.kl.target": float("nan")},
        {"rl.kl.target": 1, "rl.kl.horizon": 0},
        {"rl.kl.target": 1, "rl.kl.horizon": -5},
        {"rl.kl.target": 1, "rl.kl.coef": 0},
        {"rl.kl.horizon": 100},
    ],
)
def test_rc71_adaptive_kl_that_divides_by_zero_or_does_nothing_is_refused(raw_job: RawJob, changes: Changes) -> None:
    assert len(_faults(raw_job(changes))) == 1


def test_rc71_valid_adaptive_kl_is_accepted(raw_job: RawJob) -> None:
    assert _faults(raw_job({"rl.kl.target": 1, "rl.kl.horizon": 100, "rl.kl.coef": 0.1})) == []
