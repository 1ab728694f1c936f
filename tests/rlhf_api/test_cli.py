from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import yaml

from rlhf_api import __version__, cli

WriteManifest = Callable[..., Path]


def test_validate_accepts_a_valid_manifest(write_manifest: WriteManifest, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", "--no-dry-run", str(write_manifest())]) == 0
    assert "is valid" in capsys.readouterr().out


def test_validate_prints_every_fault_with_its_line_and_exits_2(write_manifest: WriteManifest, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_manifest({"training.globalBatchSize": 48, "rl.rollout.temperatur": 1})
    assert cli.main(["validate", "--no-dry-run", str(path)]) == 2
    printed = capsys.readouterr().err
    lines = path.read_text().splitlines()
    for key in ("temperatur", "globalBatchSize"):
        number = next(index for index, line in enumerate(lines, 1) if key in line)
        assert f"{path}:{number}: spec." in printed
    assert printed.endswith("2 faults.\n")


def test_validate_reads_overrides(write_manifest: WriteManifest, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", "--no-dry-run", str(write_manifest()), "--set", "rl.kl.coef=-1"]) == 2
    assert "--set rl.kl.coef=-1: spec.rl.kl.coef: -1" in capsys.readouterr().err


def test_validate_prints_the_resolved_job(write_manifest: WriteManifest, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", "--no-dry-run", "--print", str(write_manifest())]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["spec"]["rl"]["advantage"]["estimator"] == "group_norm"


def test_warnings_stop_nothing(write_manifest: WriteManifest, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_manifest({"training.maxTokensPerMicroBatch": 8})
    assert cli.main(["validate", "--no-dry-run", str(path)]) == 0
    assert capsys.readouterr().err.startswith(f"warning: {path}:")


def test_validate_for_a_cluster_wants_more(write_manifest: WriteManifest, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_manifest({"cluster.files": {"configMap": "files"}})
    assert cli.main(["validate", "--no-dry-run", str(path)]) == 0
    assert cli.main(["validate", "--no-dry-run", "--cluster", str(path)]) == 2
    assert "spec.checkpoint.volume" in capsys.readouterr().err
    assert cli.main(["validate", "--no-dry-run", "--cluster", str(path), "--set", "checkpoint.volume.existingClaim=ckpt"]) == 0


def test_validate_for_a_cluster_does_not_look_here_for_what_lies_on_its_volumes(
    write_manifest: WriteManifest, capsys: pytest.CaptureFixture[str]
) -> None:
    on_volume = {
        "cluster.volumes": [{"name": "team", "mountPath": "/of-the-cluster", "existingClaim": "team"}],
        "data.datasets.0.path": "/of-the-cluster/train.jsonl",
        "rl.reward.sources.0.function.file": "/of-the-cluster/reward.py",
        "models.actor.path": "/of-the-cluster/model",
        "checkpoint.volume": {"existingClaim": "ckpt"},
    }
    path = write_manifest(on_volume)
    assert cli.main(["validate", "--cluster", str(path)]) == 0
    assert "/of-the-cluster/train.jsonl lies on the volume team" in capsys.readouterr().err
    assert cli.main(["validate", str(path)]) == 2
    path = write_manifest({**on_volume, "data.datasets.0.path": "/elsewhere/train.jsonl"})
    assert cli.main(["validate", "--cluster", str(path)]) == 2
    assert "1 fault" in capsys.readouterr().err


def test_validate_judges_every_file_and_exits_with_the_worst_code(
    write_manifest: WriteManifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write_manifest().rename(tmp_path / "good.yaml")
    bad = write_manifest({"rl.kl.coef": -1}).rename(tmp_path / "bad.yaml")
    assert cli.main(["validate", "--no-dry-run", str(bad), str(tmp_path / "none.yaml"), str(good)]) == 2
    printed = capsys.readouterr()
    assert printed.out == f"{good} is valid.\n"
    assert f"{bad}: 1 fault.\n" in printed.err
    assert f"{tmp_path / 'none.yaml'}: 1 fault.\n" in printed.err
    assert cli.main(["validate", "--no-dry-run", str(good), str(good)]) == 0
    assert capsys.readouterr().out == f"{good} is valid.\n" * 2


@pytest.mark.parametrize("count", [1, 2])
def test_validate_prints_one_document_a_job(write_manifest: WriteManifest, capsys: pytest.CaptureFixture[str], count: int) -> None:
    assert cli.main(["validate", "--no-dry-run", "--print", *[str(write_manifest())] * count]) == 0
    printed = capsys.readouterr().out
    assert [each["metadata"]["name"] for each in yaml.safe_load_all(printed)] == ["example"] * count
    assert printed.startswith("---") == (count > 1)


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"models.actor.path": "model"}, ["models.actor.path"]),
        ({"models.actor.path": "absent", "models.reference": {"path": "model/"}}, ["models.reference.path"]),
        ({"models.actor.path": "owner/rows", "data.datasets": [{"path": "owner/rows"}]}, ["models.actor.path"]),
        ({"models.actor.path": "absent", "data.datasets": [{"path": "owner/rows"}]}, ["data.datasets[0].path"]),
        ({"models.actor.path": "/team/model"}, []),
        (
            {
                "data.datasets.0.path": "owner/rows.jsonl",
                "cluster.files": {
                    "configMap": "files",
                    "items": [{"key": key, "path": key.replace("-", "/")} for key in ("model-a", "reward.py", "owner-rows.jsonl")],
                },
            },
            [],
        ),
    ],
)
def test_validate_for_a_cluster_warns_of_a_hub_id_that_is_a_folder_here(
    write_manifest: WriteManifest, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], fields: list[str]
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "owner" / "rows").mkdir(parents=True)
    path = write_manifest({**ON_A_CLUSTER, **changes})
    assert cli.main(["validate", "--no-dry-run", "--cluster", str(path)]) == 0
    warned = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert [line.split(": ")[2] for line in warned] == [f"spec.{field}" for field in fields]
    assert cli.main(["validate", "--no-dry-run", str(path)]) == 0
    assert capsys.readouterr().err == ""


def test_help_says_what_joined_commands_do_and_what_they_lack(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    points = [
        EntryPoint("check", "rlhf_api.cli:Validate", cli.COMMANDS),
        EntryPoint("fly", "rlhf_no_such_package.fly:FLY", cli.COMMANDS),
    ]
    monkeypatch.setattr(cli, "entry_points", lambda group: points if group == cli.COMMANDS else [])
    monkeypatch.setattr(cli, "BUILT_IN", {})
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "check Check manifests, and their data" in printed
    assert "fly Needs the module rlhf_no_such_package, which is not installed." in printed


ON_A_CLUSTER = {"cluster.files": {"configMap": "files"}, "checkpoint.volume": {"existingClaim": "ckpt"}}


def test_validate_for_a_cluster_tells_what_an_overlay_may_not_change(
    write_manifest: WriteManifest, capsys: pytest.CaptureFixture[str]
) -> None:
    overlay = {"metadata": {"labels": {"ray.io/group": "x"}}, "spec": {"containers": [{"name": "ray", "image": "other"}]}}
    path = write_manifest({**ON_A_CLUSTER, "cluster.podOverlay": overlay})
    assert cli.main(["validate", "--no-dry-run", str(path)]) == 0
    capsys.readouterr()
    assert cli.main(["validate", "--no-dry-run", "--cluster", str(path)]) == 2
    printed = capsys.readouterr().err
    line = next(index for index, text in enumerate(path.read_text().splitlines(), 1) if "containers" in text)
    assert (
        f"{path}:{line}: spec.cluster.podOverlay.spec.containers[ray].image: 'other'\n"
        "  Rule: the operator or KubeRay owns this. Nearest: spec.cluster.image.\n"
    ) in printed
    assert "spec.cluster.podOverlay.metadata.labels.ray.io/group: 'x'" in printed
    path = write_manifest({**ON_A_CLUSTER, "cluster.podOverlay": {"spec": {"schedulerName": "volcano"}}})
    assert cli.main(["validate", "--no-dry-run", "--cluster", str(path)]) == 0


def test_validate_says_what_it_cannot_check_without_the_operators_package(
    write_manifest: WriteManifest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = EntryPoint("operator", "rlhf_no_such_package.build:refusals", cli.CLUSTER_CHECKS)
    monkeypatch.setattr(cli, "entry_points", lambda group: [absent] if group == cli.CLUSTER_CHECKS else [])
    assert cli.main(["validate", "--no-dry-run", "--cluster", str(write_manifest(ON_A_CLUSTER))]) == 0
    assert "cluster.podOverlay is not checked: the module rlhf_no_such_package is not installed" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["crd", "reference", "reasons"])
def test_generators_print_or_write(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "-o", str(tmp_path / "out")]) == 0
    assert cli.main([command]) == 0
    assert capsys.readouterr().out == (tmp_path / "out").read_text()


@pytest.mark.parametrize("command", ["crd", "reference", "reasons"])
def test_a_place_that_cannot_be_written_is_named(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "-o", str(tmp_path / "none" / "out")]) == 2
    assert "--output" in (printed := capsys.readouterr().err)
    assert "Rule: the file can be written (No such file or directory)" in printed


def test_a_locale_without_utf_8_gets_utf_8() -> None:
    environment = {"PYTHONPATH": "crds", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-m", "rlhf_api", "reference"], capture_output=True, check=True, env=environment)
    assert "…" in done.stdout.decode()


def test_module_runs_as_the_command_does() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rlhf_api", "--version"], capture_output=True, text=True, check=True, env={"PYTHONPATH": "crds"}
    )
    assert done.stdout == f"rlhf {__version__}\n"


def test_contract_imports_neither_torch_nor_kubernetes() -> None:
    script = "import sys, rlhf_api.cli; print([m for m in ('torch', 'ray', 'vllm', 'numpy', 'kubernetes', 'kopf') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONPATH": "crds"})
    assert done.stdout == "[]\n"
