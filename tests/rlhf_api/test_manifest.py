from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api import manifest
from rlhf_api.crd import definition
from rlhf_api.manifest import ManifestError
from rlhf_api.resolve import derive, to_yaml
from rlhf_api.violations import Violation
from rlhf_api.yamltree import parse_value

WriteManifest = Callable[..., Path]

JOB = """\
apiVersion: rlhf.dev/v1alpha1
kind: RLHFJob
metadata:
  name: example
spec:
  rl:
    algorithm: grpo
    rollout: {promptsPerStep: 16, maxNewTokens: 64}
    reward:
      sources:
        - function: {file: reward.py}
  models:
    actor: {path: model}
  data:
    datasets: [{path: train.jsonl}]
    maxLength: 256
  training:
    globalBatchSize: 32
    learningRate:
      actor: 5e-7
"""
CONFIG_MAP = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: files}
data:
  reward.py: |
    def reward_func(queries, prompts, labels): ...
"""


def _faults(tmp_path: Path, text: str, *overrides: str) -> list[Violation]:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(ManifestError) as caught:
        manifest.load(path, overrides)
    return caught.value.violations


def _lines(violations: list[Violation]) -> dict[str, int]:
    return {each.field: int((each.where or "").rsplit(":", 1)[-1]) for each in violations}


def test_load_gives_a_resolved_job(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    loaded = manifest.load(path)
    spec = loaded.job.spec
    assert spec.training.learning_rate.actor == 5e-7
    assert spec.rl.advantage.std_norm is True
    assert spec.models.reference is not None
    assert spec.models.reference.path == "model"
    assert loaded.base_dir == tmp_path
    assert loaded.files == {}


def test_every_fault_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    text = JOB.replace("algorithm: grpo", "algorithm: grop").replace("32", "33").replace("actor: 5e-7", 'actor: "5e-7"')
    text += "      crtic: 1e-6\nextra: 1\n"
    assert _lines(_faults(tmp_path, text)) == {
        "spec.rl.algorithm": 7,
        "spec.training.learningRate.actor": 20,
        "spec.training.learningRate.crtic": 21,
        "extra": 22,
    }


def test_cross_field_rules_are_checked_beside_schema_faults(tmp_path: Path) -> None:
    text = JOB.replace("globalBatchSize: 32", "globalBatchSize: 33\n    epoch: 3").replace("maxLength: 256", "maxLength: 64")
    faults = _faults(tmp_path, text)
    assert [each.field for each in faults].count("spec.training.globalBatchSize") == 1
    assert _lines(faults) == {"spec.rl.rollout.maxNewTokens": 8, "spec.training.globalBatchSize": 18, "spec.training.epoch": 19}


def test_rule_about_a_value_that_the_schema_refused_is_not_told(tmp_path: Path) -> None:
    text = JOB.replace("promptsPerStep: 16", "promptsPerStp: 4").replace("globalBatchSize: 32", "globalBatchSize: 31")
    faults = _faults(tmp_path, text)
    assert [each.field for each in faults] == ["spec.rl.rollout.promptsPerStp"]


@pytest.mark.parametrize(
    ("removed", "field"),
    [
        ("    algorithm: grpo\n", "spec.rl.algorithm"),
        ("    actor: {path: model}\n", "spec.models"),
        ("  name: example\n", "metadata"),
        ("apiVersion: rlhf.dev/v1alpha1\n", "apiVersion"),
        ("{path: train.jsonl}", "spec.data.datasets"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, removed: str, field: str) -> None:
    assert [each.field for each in _faults(tmp_path, JOB.replace(removed, ""))] == [field]


@pytest.mark.parametrize("broken", [("rl", "[1]"), ("models", "3"), ("data", "x"), ("training", "")])
def test_section_of_another_type_is_one_fault(tmp_path: Path, broken: tuple[str, str]) -> None:
    section, value = broken
    lines = [line for line in JOB.splitlines() if not line.startswith("      ")]
    start = lines.index(f"  {section}:")
    end = next((i for i in range(start + 1, len(lines)) if not lines[i].startswith("    ")), len(lines))
    text = "\n".join([*lines[:start], f"  {section}: {value}", *lines[end:]])
    text = text.replace("    reward:\n", "    reward: {sources: [{function: {file: r.py}}]}\n").replace("    learningRate:", "")
    assert [each.field for each in _faults(tmp_path, text)] == [f"spec.{section}"]


def test_object_read_back_from_the_api_server_is_a_manifest(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB.replace("  name: example", "  name: example\n  resourceVersion: '7'\n  uid: u") + "status: {phase: Running}\n")
    assert manifest.load(path).job.metadata.uid == "u"


def test_override_is_applied_before_validation(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    loaded = manifest.load(
        path,
        [
            "rl.kl.coef=0",
            "spec.data.datasets[0].path=b.jsonl",
            "data.datasets[1].path=c.jsonl",
            "metadata.name=other",
            "rl.reward.clip=[-1, 1]",
        ],
    )
    assert loaded.job.spec.rl.kl.coef == 0
    assert [each.path for each in loaded.job.spec.data.datasets] == ["b.jsonl", "c.jsonl"]
    assert loaded.job.metadata.name == "other"
    assert loaded.job.spec.rl.reward.clip == (-1, 1)


def test_override_of_the_algorithm_changes_its_preset(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    job = manifest.load(path, ["rl.algorithm=rloo"]).job
    assert job.spec.rl.advantage.estimator == "rloo"
    assert job.spec.rl.kl.placement == "reward"


def test_fault_of_an_override_names_the_override(tmp_path: Path) -> None:
    (fault,) = _faults(tmp_path, JOB, "rl.rollout.temperature=0")
    assert fault.where == "--set rl.rollout.temperature=0"


@pytest.mark.parametrize(
    "text", ["rl.kl.coef", "=1", "rl..kl=1", "rl.kl.coef=[", "data.datasets[5].path=x", "rl.algorithm.x=1", "data[0]=1"]
)
def test_malformed_override_is_refused(tmp_path: Path, text: str) -> None:
    (fault,) = _faults(tmp_path, JOB, text)
    assert fault.where == f"--set {text}"


def test_config_map_in_the_same_file_brings_files(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"{CONFIG_MAP}---\n{JOB}")
    (tmp_path / "train.jsonl").write_text("{}")
    loaded = manifest.load(path)
    assert list(loaded.files) == ["reward.py"]
    folder = loaded.materialize(tmp_path / "scratch")
    assert (folder / "reward.py").read_text().startswith("def reward_func")
    assert (folder / "train.jsonl").read_text() == "{}"


def test_config_map_file_never_overwrites_the_users_file_of_that_name(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"{CONFIG_MAP.replace('reward.py', 'other.py')}---\n{JOB}")
    own = tmp_path / "reward.py"
    own.write_text("the user's")
    folder = manifest.load(path).materialize(tmp_path / "scratch")
    assert (folder / "reward.py").read_text() == "the user's"
    path.write_text(f"{CONFIG_MAP}---\n{JOB}")
    manifest.load(path).materialize(folder)
    assert (folder / "reward.py").read_text().startswith("def reward_func")
    assert own.read_text() == "the user's"


def test_file_of_a_removed_key_or_of_anybody_else_does_not_stay(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"{CONFIG_MAP}---\n{JOB}")
    folder = manifest.load(path).materialize(tmp_path / "a" / "b" / "scratch")
    (folder / "more").mkdir()
    path.write_text(f"{CONFIG_MAP.replace('reward.py', 'other.py')}---\n{JOB}")
    manifest.load(path).materialize(folder)
    assert sorted(entry.name for entry in folder.iterdir()) == ["a", "job.yaml", "other.py"]
    assert [entry.name for entry in folder.parent.iterdir()] == ["scratch"]


def test_files_are_brought_again_after_the_manifests_folder_moved(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    (first / "job.yaml").write_text(f"{CONFIG_MAP}---\n{JOB}")
    (first / "train.jsonl").write_text("{}")
    (first / "broken").symlink_to(first / "nowhere")
    folder = manifest.load(first / "job.yaml").materialize(tmp_path / "scratch")
    first.rename(second)
    manifest.load(second / "job.yaml").materialize(folder)
    assert (folder / "train.jsonl").read_text() == "{}"


def test_folder_for_files_may_be_beside_the_manifest_or_a_link(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"{CONFIG_MAP}---\n{JOB}")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "keep").write_text("")
    (tmp_path / "scratch").symlink_to(elsewhere)
    for _ in range(2):
        folder = manifest.load(path).materialize(tmp_path / "scratch")
        assert sorted(entry.name for entry in folder.iterdir()) == ["elsewhere", "job.yaml", "reward.py"]
    assert (elsewhere / "keep").exists()


def test_lines_of_a_later_document_are_those_of_the_file(tmp_path: Path) -> None:
    (fault,) = _faults(tmp_path, f"{CONFIG_MAP}---\n{JOB.replace('grpo', 'x')}")
    assert fault.where == f"{tmp_path / 'job.yaml'}:14"


def test_config_map_key_cannot_leave_its_folder(tmp_path: Path) -> None:
    (fault,) = _faults(tmp_path, f"{CONFIG_MAP.replace('reward.py', '../reward.py')}---\n{JOB}")
    assert "plain file name" in fault.rule


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1\n", "expected"),
        ("a:\n\tb: 1\n", "tab"),
        ("a: 1\na: 2\n", "given twice; first in line 1"),
        ("a: &x [*x]\n", "contains itself"),
        ("a: !!python/object:os.system {}\n", "exactly one RLHFJob"),
        ("", "it is empty"),
        ("- 1\n", "each document is a mapping"),
        (JOB + "---\n" + JOB, "exactly one RLHFJob"),
        (JOB.replace("kind: RLHFJob", "kind: RLHFjob"), "exactly one RLHFJob"),
    ],
)
def test_file_that_is_no_manifest_is_refused_with_a_line(tmp_path: Path, text: str, said: str) -> None:
    (fault,) = _faults(tmp_path, text)
    assert said in str(fault)
    assert str(tmp_path) in (fault.where or "")


def test_missing_file_names_the_nearest_one(write_manifest: WriteManifest) -> None:
    path = write_manifest()
    with pytest.raises(ManifestError) as caught:
        manifest.load(path.with_name("jbo.yaml"))
    assert caught.value.violations[0].nearest == str(path)


def test_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"a: \xff")
    with pytest.raises(ManifestError, match="UTF-8"):
        manifest.load(path)


def test_resolved_yaml_loads_to_the_same_job(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    job = manifest.load(path, ["rl.reward.clip=null", "rl.policyLoss.entropyCoef=null", "evaluation.datasets=[{path: t.jsonl}]"]).job
    again = tmp_path / "resolved.yaml"
    again.write_text(to_yaml(job))
    assert manifest.load(again).job == job
    assert derive(job) == job


def fields_of(crd: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Dotted path below ``spec`` -> schema, of what is not inside a list."""

    def walk(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, inner in schema.get("properties", {}).items():
            yield f"{path}{name}", inner
            yield from walk(inner, f"{path}{name}.")

    return walk(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"], "")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
NUMBERS = [path for path, schema in fields_of(definition()) if schema.get("type") in ("integer", "number")]


@pytest.mark.parametrize("number", ["1e400", "-.inf", ".nan", "1e300"])
@pytest.mark.parametrize("path", NUMBERS)
def test_a_number_that_is_none_is_refused_with_words(path: str, number: str, raw_job: Callable[..., dict[str, object]]) -> None:
    job, violations = manifest.validate(raw_job({path: parse_value(number)}))
    assert job is None
    assert f"spec.{path}" in {each.field for each in violations}
    assert all(each.rule for each in violations)


SECTIONS = ("rl", "models", "data", "training", "placement", "evaluation", "checkpoint")
INSIDE = ("rl.algorithm", "rl.kl", "rl.kl.coef", "rl.reward.sources", "rl.reward.clip", "models.actor", "data.datasets")
DEEPER = ("training.globalBatchSize", "placement.colocate", "placement.rollout.engineArgs")
PATHS = st.sampled_from(SECTIONS + INSIDE + DEEPER)


@settings(max_examples=50)
@given(changes=st.dictionaries(PATHS, VALUES, min_size=1, max_size=3))
def test_any_value_anywhere_is_accepted_or_refused_but_never_a_crash(changes: dict[str, object]) -> None:
    raw = manifest.parse(JOB)[0].value
    for path, value in changes.items():
        node = raw["spec"]
        *parents, leaf = path.split(".")
        for parent in parents:
            below = node.get(parent)
            node[parent] = node = below if isinstance(below, dict) else {}
        node[leaf] = value
    job, violations = manifest.validate(raw)
    assert (job is None) == bool(violations)
    for violation in violations:
        assert str(violation)
