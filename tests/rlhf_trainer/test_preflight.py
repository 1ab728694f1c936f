import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.spec import RLHFJob
from rlhf_trainer import preflight
from rlhf_trainer.errors import ConfigError, DataError

ROWS = [{"question": "1 + 1 =", "answer": "2", "level": 1}, {"question": "2 + 3 =", "answer": "5", "level": 2}]
GOOD = "def reward_func(queries, prompts, labels):\n    return [float(q == p + l) for q, p, l in zip(queries, prompts, labels)]\n"


@pytest.fixture(autouse=True)
def online(monkeypatch):
    """As on a machine that may ask the hub; nothing here does."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    from rlhf_trainer.models.tiny import make

    return make(tmp_path_factory.mktemp("model") / "tiny", hidden=32, layers=1)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "reward.py").write_text(GOOD)
    return tmp_path


def job_of(model: Path | str, *, sources: list[dict] | None = None, evaluation: dict | None = None, **data: Any) -> RLHFJob:
    spec: dict[str, Any] = {
        "rl": {"algorithm": "grpo", "reward": {"sources": sources or [{"function": {"file": "reward.py", "timeoutSeconds": 5}}]}},
        "models": {"actor": {"path": str(model)}},
        "data": {"datasets": [{"path": "sums.jsonl"}], "promptKey": "question", "labelKey": "answer", **data},
    }
    if evaluation is not None:
        spec["evaluation"] = evaluation
    return RLHFJob.model_validate({"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "dry"}, "spec": spec})


def fields(job: RLHFJob, folder: Path) -> list[str]:
    return [violation.field for violation in preflight.dry_run(job, folder)]


def test_a_good_job_passes(model, folder):
    job = job_of(model, evaluation={"datasets": [{"path": "sums.jsonl"}]})
    assert preflight.dry_run(job, folder) == []
    preflight.check(job, folder)


def test_every_fault_is_reported_at_once_with_its_field(folder):
    job = job_of(
        "./no-model",
        datasets=[{"path": "sums.jsonl"}, {"path": "missing.jsonl"}],
        labelKey="answr",
        evaluation={"datasets": [{"path": "held-out.jsonl"}]},
        sources=[{"function": {"file": "rewards.py"}}],
    )
    assert fields(job, folder) == [
        "spec.models.actor.path",
        "spec.data.labelKey",
        "spec.data.datasets[1].path",
        "spec.evaluation.datasets[0].path",
        "spec.rl.reward.sources[0].function.file",
    ]
    with pytest.raises(ConfigError, match=r"answr(.|\n)*missing.jsonl"):
        preflight.check(job, folder)


def test_model_folder_without_tokenizer_or_configuration(folder, model):
    (folder / "empty").mkdir()
    (violation,) = preflight.dry_run(job_of("empty"), folder)
    assert violation.field == "spec.models.actor.path"
    (folder / "bare").mkdir()
    (folder / "bare" / "config.json").write_text((model / "config.json").read_text())
    (violation,) = preflight.dry_run(job_of("bare"), folder)
    assert "tokenizer" in violation.rule


def test_hub_ids_are_left_alone(folder):
    job = job_of("some-owner/some-model", datasets=[{"path": "some-owner/some-data"}])
    assert preflight.dry_run(job, folder) == []


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("def reward_func(queries, prompts, labels:\n    pass\n", "line 1: SyntaxError"),
        ("def reward_function(queries, prompts, labels): return [1]\n", "did you mean reward_function"),
        ("def reward_func(x): return [1]\n", "parameter 'x'"),
        ("import nowhere_to_be_found\n", "No module named"),
        ("def reward_func(queries): return [1.0]\n", "expected 2 numbers, one a rollout, and got a list of 1"),
        ("def reward_func(queries, labels): return [l['x'] for l in labels]\n", "line 1: TypeError"),
        ("def reward_func(queries): return [float('nan')] * 2\n", "returned nan. Row: row 0 of sums"),
        ("def reward_func(queries, missing_column): return [1.0] * 2\n", "Known names: queries, prompts, labels, completions"),
    ],
)
def test_rc59_reward_file_is_tried_on_sample_rows(folder, source, part):
    (folder / "reward.py").write_text(source)
    (violation,) = preflight.dry_run(job_of("owner/model"), folder)
    assert violation.field == "spec.rl.reward.sources[0].function.file"
    assert part in violation.rule
    assert "reward.py" in str(violation)
    with pytest.raises(DataError):
        preflight.check(job_of("owner/model"), folder, tokenizer=None)


def test_rc19_endless_reward_is_reported_within_its_limit(folder):
    (folder / "reward.py").write_text("def reward_func(queries):\n    while True: pass\n")
    job = job_of("owner/model", sources=[{"function": {"file": "reward.py", "timeoutSeconds": 0.5}}])
    (violation,) = preflight.dry_run(job, folder)
    assert "was stopped" in violation.rule


def test_reward_file_is_imported_even_when_no_row_can_be_read(folder):
    (folder / "reward.py").write_text("raise RuntimeError('broken')\n")
    assert fields(job_of("owner/model", datasets=[{"path": "gone.jsonl"}]), folder) == [
        "spec.data.datasets[0].path",
        "spec.rl.reward.sources[0].function.file",
    ]


def test_template_fault_is_reported_and_the_rest_still_checked(folder):
    (folder / "reward.py").unlink()
    assert fields(job_of("owner/model", promptTemplate="no place"), folder) == [
        "spec.data.promptTemplate",
        "spec.rl.reward.sources[0].function.file",
    ]


def test_given_tokenizer_is_used(folder, model):
    from rlhf_trainer.models.tiny import make_tokenizer

    preflight.check(job_of(model, applyChatTemplate=True), folder, make_tokenizer())


@pytest.mark.parametrize("on_error", ["zero", "drop"])
@pytest.mark.parametrize("body", ["raise KeyError('boom')", "while True: pass", "return [float('nan')] * len(queries)"])
def test_failing_reward_only_warns_when_the_job_goes_on_without_it(folder, caplog, on_error, body):
    (folder / "reward.py").write_text(f"def reward_func(queries):\n    {body}\n")
    job = job_of("owner/model", sources=[{"function": {"file": "reward.py", "timeoutSeconds": 0.5, "onError": on_error}}])
    assert preflight.dry_run(job, folder) == []
    (record,) = caplog.records
    assert "spec.rl.reward.sources[0]" in record.message
    assert f"onError: {on_error}" in record.message


@pytest.mark.parametrize(
    "source",
    ["import nowhere\n", "def reward_func(x): return [1]\n", "def reward_func(queries): return [1.0]\n", "import os\nos._exit(3)\n"],
)
def test_broken_reward_contract_is_a_fault_whatever_on_error_says(folder, source):
    (folder / "reward.py").write_text(source)
    job = job_of("owner/model", sources=[{"function": {"file": "reward.py", "timeoutSeconds": 5, "onError": "zero"}}])
    assert fields(job, folder) == ["spec.rl.reward.sources[0].function.file"]


def test_lone_surrogate_in_a_prompt_is_named_with_its_line(folder, model):
    with (folder / "sums.jsonl").open("a") as file:
        file.write('{"question": "a \\ud800 b", "answer": "2"}\n')
    (violation,) = preflight.dry_run(job_of(model), folder)
    assert violation.field == "spec.data.promptKey"
    assert "line 3" in violation.rule
    assert r"lone surrogate \ud800" in violation.rule
    str(violation).encode()


def test_lone_surrogate_in_a_label_is_left_to_the_reward_function(folder, model):
    (folder / "sums.jsonl").write_text('{"question": "a", "answer": "\\udc00"}\n')
    (folder / "reward.py").write_text("def reward_func(queries, labels): return [float(label == chr(0xdc00)) for label in labels]\n")
    assert preflight.dry_run(job_of(model), folder) == []


@pytest.mark.parametrize("path", ["model/actor", "Checkpoints/step-7", "out/best"])
def test_model_folder_that_is_not_made_yet_is_no_hub_id(folder, path):
    (violation,) = preflight.dry_run(job_of(path), folder)
    assert violation.field == "spec.models.actor.path"
    assert f"no folder {folder / path}, and taken as a hub id it is not in the cache" in violation.rule


def test_hub_id_is_a_fault_offline_unless_it_is_in_the_cache(folder, monkeypatch):
    job = job_of("Qwen/Qwen2.5-1.5B-Instruct")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "cache"))
    assert preflight.dry_run(job, folder) == []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (violation,) = preflight.dry_run(job, folder)
    assert "HF_HUB_OFFLINE is set" in violation.rule


def with_reward_model(job: RLHFJob, path: str) -> RLHFJob:
    """``job`` with a reward model, a reference and a critic from ``path``."""
    raw = job.model_dump(by_alias=True, exclude_unset=True)
    raw["spec"]["rl"] |= {"algorithm": "ppo", "kl": {"coef": 0.1}, "advantage": {"estimator": "gae"}}
    raw["spec"]["models"] |= {role: {"path": path} for role in ("reference", "reward", "critic")}
    return RLHFJob.model_validate(raw)


def copy_with_vocabulary(model: Path, folder: Path, change: Callable[[dict[str, int]], None]) -> Path:
    shutil.copytree(model, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    change(tokenizer["model"]["vocab"])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def swap(vocabulary: dict[str, int]) -> None:
    vocabulary["1"], vocabulary["2"] = vocabulary["2"], vocabulary["1"]


def test_role_with_another_vocabulary_is_refused_with_the_first_token_that_differs(folder, model):
    copy_with_vocabulary(model, folder / "other", swap)
    job = with_reward_model(job_of(model), "other")
    (violation,) = preflight.dry_run(job, folder)
    assert violation.field == "spec.models.reference.path"
    assert "128 tokens, the actor's 128; '1' is id" in violation.rule
    with pytest.raises(ConfigError, match="the reference reads the actor's token ids"):
        preflight.check(job, folder)


def test_role_with_a_smaller_vocabulary_is_refused_with_both_sizes(folder, model):
    copy_with_vocabulary(model, folder / "other", lambda vocabulary: vocabulary.pop("z"))
    (violation,) = preflight.dry_run(with_reward_model(job_of(model), "other"), folder)
    assert "127 tokens, the actor's 128; 'z' is id" in violation.rule
    assert "not in it" in violation.rule


def test_roles_with_the_same_vocabulary_in_another_folder_pass(folder, model):
    shutil.copytree(model, folder / "other")
    assert preflight.dry_run(with_reward_model(job_of(model), "other"), folder) == []
    assert preflight.dry_run(with_reward_model(job_of(model), str(model)), folder) == []


def test_vocabulary_with_more_tokens_than_the_actors_passes(folder, model):
    assert preflight.other_ids({"a": 0, "b": 1}, {"a": 0, "b": 1, "[PAD]": 2}) is None


def test_unused_role_and_role_on_the_hub_are_not_compared(folder, model):
    copy_with_vocabulary(model, folder / "other", swap)
    raw = job_of(model).model_dump(by_alias=True, exclude_unset=True)
    raw["spec"]["rl"]["kl"] = {"coef": 0.0}
    raw["spec"]["models"]["reference"] = {"path": "other"}
    assert preflight.dry_run(RLHFJob.model_validate(raw), folder) == []
    assert preflight.dry_run(with_reward_model(job_of(model), "owner/not-here"), folder) == []


def test_cached_hub_model_is_compared_without_network(folder, model, monkeypatch):
    cache = folder / "cache" / "models--owner--cached"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("0" * 40)
    (cache / "snapshots").mkdir()
    copy_with_vocabulary(model, cache / "snapshots" / ("0" * 40), swap)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "cache"))
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(folder / "cache"), raising=False)
    (violation,) = preflight.dry_run(with_reward_model(job_of(model), "owner/cached"), folder)
    assert "'1' is id" in violation.rule
