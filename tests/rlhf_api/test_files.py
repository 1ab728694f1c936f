"""Files in ConfigMaps: those beside a job, and the one made from a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_api import cli, manifest
from rlhf_api.files import LIMIT_BYTES, FilesError, collect
from rlhf_api.manifest import ManifestError

RawJob = Callable[..., dict[str, Any]]


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {key.replace("_", "."): text for key, text in data.items()},
    }


def write(folder: Path, *documents: dict[str, Any]) -> Path:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump_all(documents, sort_keys=False))
    return path


def test_files_are_those_of_the_named_config_map_where_its_items_put_them(tmp_path: Path, raw_job: RawJob) -> None:
    items = [{"key": "train.jsonl", "path": "data/train.jsonl"}, {"key": "reward.py", "path": "reward.py"}]
    job = raw_job({"cluster.files": {"configMap": "mine", "items": items}, "data.datasets.0.path": "data/train.jsonl"})
    path = write(
        tmp_path, config_map("other", reward_py="other"), config_map("mine", train_jsonl="rows", reward_py="code", more_txt="m"), job
    )
    (tmp_path / "model").mkdir()
    loaded = manifest.load(path)
    folder = loaded.materialize(tmp_path / "scratch" / "files")
    assert loaded.files == {"data/train.jsonl": "rows", "reward.py": "code"}
    assert ((folder / "data" / "train.jsonl").read_text(), (folder / "model").is_dir()) == ("rows", True)


def test_without_items_every_key_is_a_file(tmp_path: Path, raw_job: RawJob) -> None:
    path = write(tmp_path, raw_job({"cluster.files": {"configMap": "mine"}}), config_map("mine", a_txt="a", b_txt="b"))
    assert manifest.load(path).files == {"a.txt": "a", "b.txt": "b"}


@pytest.mark.parametrize(
    ("files", "field", "nearest"),
    [
        ({"configMap": "your"}, "spec.cluster.files.configMap", "configMap: mine"),
        ({"configMap": "mine", "items": [{"key": "rewards.py", "path": "r.py"}]}, "spec.cluster.files.items[0].key", "reward.py"),
    ],
)
def test_name_or_key_that_is_not_in_the_file_is_refused(
    tmp_path: Path, raw_job: RawJob, files: dict[str, Any], field: str, nearest: str
) -> None:
    path = write(tmp_path, raw_job({"cluster.files": files}), config_map("mine", reward_py="code"))
    with pytest.raises(ManifestError) as caught:
        manifest.load(path)
    assert [(fault.field, fault.nearest) for fault in caught.value.violations] == [(field, nearest)]
    assert str(path) in str(caught.value)


def test_config_map_on_the_cluster_need_not_stand_in_the_file(tmp_path: Path, raw_job: RawJob) -> None:
    loaded = manifest.load(write(tmp_path, raw_job({"cluster.files": {"configMap": "mine", "items": [{"key": "a", "path": "b"}]}})))
    assert (loaded.files, loaded.materialize(tmp_path / "files")) == ({}, tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {
        "reward.py": "def reward_func(queries, prompts, labels): ...\n",
        "data/train.jsonl": '{"prompt": "é"}\n',
        "model/config.json": "{}",
        "model/model.safetensors": "weights",
        "unused.txt": "no",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


RELATIVE = {
    "data.datasets.0.path": "data/train.jsonl",
    "evaluation": {"datasets": [{"path": "/held-out.jsonl"}, {"path": "openai/gsm8k"}]},
    "models.actor": {"path": "model", "init": "random"},
}


def test_files_command_prints_a_config_map_that_gives_the_same_files(
    folder: Path, raw_job: RawJob, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["files", str(write(folder, raw_job(RELATIVE)))]) == 0
    printed = capsys.readouterr().out
    comment = [line.removeprefix("#   ") for line in printed.splitlines() if line.startswith("#   ")]
    files = yaml.safe_load("\n".join(comment))["files"]
    assert files["configMap"] == "example-files"
    loaded = manifest.load(write(folder, yaml.safe_load(printed), raw_job({**RELATIVE, "cluster.files": files})))
    assert loaded.files == {name: (folder / name).read_text() for name in ("reward.py", "data/train.jsonl", "model/config.json")}


def test_files_command_keeps_the_name_and_keys_that_the_job_has(folder: Path, raw_job: RawJob) -> None:
    given = {"configMap": "mine", "items": [{"key": "t", "path": "data/train.jsonl"}]}
    job = manifest.load(write(folder, raw_job({**RELATIVE, "cluster.files": given}))).job
    spec, data = collect(job, folder)
    assert (spec.config_map, set(data)) == ("mine", {"t", "reward.py", "model-config.json"})


def test_files_without_folders_need_no_items(folder: Path, raw_job: RawJob) -> None:
    job = manifest.load(write(folder, raw_job({"models.actor.path": "/models/llama", "data.datasets.0.path": "/data/x.jsonl"}))).job
    spec, data = collect(job, folder)
    assert (spec.items, list(data)) == ([], ["reward.py"])


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("model/weights.dat", b"\xff\xfe", "UTF-8 text"),
        ("model/big.txt", b"x" * (LIMIT_BYTES + 1), f"at most {LIMIT_BYTES} bytes"),
    ],
)
def test_what_no_config_map_can_hold_is_refused_by_name(folder: Path, raw_job: RawJob, name: str, content: bytes, text: str) -> None:
    (folder / name).write_bytes(content)
    job = manifest.load(write(folder, raw_job(RELATIVE))).job
    with pytest.raises(FilesError, match=text) as caught:
        collect(job, folder)
    assert Path(name).name in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "field", "nearest"),
    [
        ({"data.datasets.0.path": "data/trian.jsonl"}, "spec.data.datasets[0].path", "data/train.jsonl"),
        ({"rl.reward.sources.0.function.file": "rewards.py"}, "spec.rl.reward.sources[0].function.file", "reward.py"),
        ({"models.actor.path": "./nowhere"}, "spec.models.actor.path", "an absolute path"),
        ({"data.datasets.0.path": "d" * 300 + ".jsonl"}, "spec.data.datasets[0].path", "an absolute path"),
        ({"data.datasets.0.path": "pipe.jsonl"}, "spec.data.datasets[0].path", "a copy of what it holds"),
    ],
)
def test_a_file_that_is_not_there_is_refused_and_not_left_out(
    folder: Path, raw_job: RawJob, changes: dict[str, Any], field: str, nearest: str
) -> None:
    os.mkfifo(folder / "pipe.jsonl")
    job = manifest.load(write(folder, raw_job({**RELATIVE, **changes}))).job
    with pytest.raises(FilesError) as caught:
        collect(job, folder)
    assert caught.value.violation.field == field
    assert (caught.value.violation.nearest or "").startswith(nearest)


def test_a_hub_id_needs_no_file(folder: Path, raw_job: RawJob) -> None:
    hub = {"data.datasets.0.path": "openai/gsm8k", "models.actor.path": "Qwen/Qwen3-8B"}
    assert list(collect(manifest.load(write(folder, raw_job({**RELATIVE, **hub}))).job, folder)[1]) == ["reward.py"]


def test_line_ends_reach_the_pods_as_they_are(folder: Path, raw_job: RawJob) -> None:
    (folder / "reward.py").write_bytes(b"a = 1\r\nb = 2\r\n")
    assert collect(manifest.load(write(folder, raw_job(RELATIVE))).job, folder)[1]["reward.py"] == "a = 1\r\nb = 2\r\n"
