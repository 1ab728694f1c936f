"""Real control-plane clusters: started, ended, killed at bad moments, and what is left of them afterwards."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.api import Api, ApiError
from e2e.cluster.cluster import Cluster
from e2e.cluster.footprint import Footprint, settled_difference, snapshot
from e2e.cluster.home import Home
from e2e.cluster.parts import REPOSITORY
from e2e.cluster.sandbox import Sandbox, SandboxError

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def log_scan() -> None:
    """In place of the lane's own: these clusters are broken on purpose."""


@pytest.fixture
def name() -> Iterator[str]:
    """A cluster name of this test's own; whatever runs under it is ended after the test."""
    chosen = f"life-{os.getpid()}-{next(_numbers)}"
    yield chosen
    Cluster.remove(chosen)
    shutil.rmtree(Home.default().cluster(chosen), ignore_errors=True)


@pytest.fixture
def before(name: str) -> Footprint:
    return snapshot(name)


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    """For tests that leave a cluster as they found it."""
    cluster = Cluster.up(f"life-{os.getpid()}-shared", tied=True)
    yield cluster
    cluster.down()


def what_is_left(name: str, before: Footprint) -> list[str]:
    return settled_difference(before, lambda: snapshot(name))


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "e2e.cluster", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command_line(*arguments), cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)


def make_namespace(api: Api, name: str) -> None:
    api.call("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def test_ten_starts_and_stops_leave_nothing(name: str, before: Footprint) -> None:
    for _ in range(10):
        cluster = Cluster.up(name)
        assert cluster.api.ready()
        assert all(state.running for state in cluster.status())
        cluster.down()
        assert what_is_left(name, before) == []
        assert [path.name for path in cluster.folder.iterdir()] == ["logs"]


def test_two_clusters_run_side_by_side(name: str, shared: Cluster) -> None:
    other = Cluster.up(name)
    make_namespace(other.api, "only-here")
    assert other.server != shared.server
    assert not shared.api.exists("/api/v1/namespaces/only-here")
    other.down()
    assert shared.api.ready()
    assert all(state.running for state in shared.status())


@pytest.mark.parametrize("seconds", [0.15, 0.4, 0.8, 1.5, 2.5, 4.0])
def test_a_start_that_is_killed_leaves_nothing_running(seconds: float, name: str, before: Footprint) -> None:
    starter = subprocess.Popen(
        command_line("up", "--shape", "control", "--name", name), cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(seconds)
    was_complete = (Home.default().cluster(name) / "cluster.json").exists()
    starter.kill()
    starter.wait()
    if not was_complete:
        assert what_is_left(name, before) == []
    assert Cluster.up(name).api.ready()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("victim", ["supervisor", "its parent"])
def test_a_killed_cluster_leaves_nothing_running_and_starts_again(victim: str, name: str, before: Footprint) -> None:
    assert run("up", "--shape", "control", "--name", name).returncode == 0
    init = Cluster.attach(name).sandbox.init.pid
    os.kill(init if victim == "supervisor" else parent_of(init), signal.SIGKILL)
    assert what_is_left(name, before) == []
    status = run("status", "--name", name)
    assert status.returncode == 2
    assert f"no cluster '{name}' is running" in status.stderr
    assert Cluster.up(name).api.ready()


def test_a_tied_cluster_ends_with_its_process(name: str, before: Footprint) -> None:
    program = f"import os; from e2e.cluster.cluster import Cluster; Cluster.up({name!r}, tied=True); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, stdout=subprocess.DEVNULL, check=False)
    assert what_is_left(name, before) == []


def test_a_part_that_ends_at_its_start_is_named_with_its_last_words(name: str, before: Footprint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("e2e.cluster.control.ETCD_CLIENT", "nonsense://127.0.0.1:2379")
    with pytest.raises(SandboxError, match=r"kube-apiserver exited \d+ before: /readyz answers 200.*logs/kube-apiserver.log"):
        Cluster.up(name, report=lambda _: None)
    assert what_is_left(name, before) == []


def test_up_finds_a_running_cluster_and_refuses_another_shape(shared: Cluster) -> None:
    again = Cluster.up(shared.name)
    assert again.sandbox.init == shared.sandbox.init
    with pytest.raises(SandboxError, match="runs in shape control, not full"):
        Cluster.up(shared.name, "full")


@pytest.mark.parametrize("part", ["kube-apiserver", "etcd", "kube-controller-manager", "kuberay-operator", "nodes"])
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_part_is_restarted_and_data_survives(part: str, kill: bool, shared: Cluster) -> None:
    namespace = f"kept-{part}-{'killed' if kill else 'stopped'}"
    make_namespace(shared.api, namespace)
    starts = {state.name: state.num_starts for state in shared.status()}
    shared.restart(part, down_seconds=0.5, kill=kill)
    assert shared.api.exists(f"/api/v1/namespaces/{namespace}")
    assert {state.name: state.num_starts for state in shared.status()} == starts | {part: starts[part] + 1}
    assert all(state.running for state in shared.status())


def test_the_api_server_is_away_while_it_is_stopped(shared: Cluster) -> None:
    with shared.stopped("kube-apiserver"):
        assert not shared.api.ready()
    assert shared.api.ready()


def test_a_paused_api_server_does_not_answer_and_goes_on_afterwards(shared: Cluster) -> None:
    with shared.paused("kube-apiserver"):
        assert not shared.api.ready()
        assert {state.name: state.describe() for state in shared.status()}["kube-apiserver"] == "paused"
    assert shared.api.exists("/api/v1/namespaces/default")


def test_a_part_that_does_not_exist_is_refused_with_those_that_do(shared: Cluster) -> None:
    with pytest.raises(SandboxError, match=r"no part 'apiserver'; there are: relay, etcd, kube-apiserver"):
        shared.restart("apiserver")


def test_a_service_account_has_its_own_rights_only(shared: Cluster) -> None:
    path = shared.kubeconfig_for("kuberay-operator", "kuberay-system", inside=True)
    assert path.stat().st_mode & 0o077 == 0
    token = shared.api.token("kuberay-system", "kuberay-operator", 3600)
    may = {"spec": {"token": token}, "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
    review = shared.api.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", may)
    assert review["status"]["user"]["username"] == "system:serviceaccount:kuberay-system:kuberay-operator"
    with pytest.raises(ApiError) as refused:
        shared.api.token("default", "nobody", 3600)
    assert refused.value.status == 404


def test_commands_run_inside_with_the_cluster_around_them(shared: Cluster) -> None:
    assert shared.exec(["cat", "/proc/sys/kernel/hostname"]).stdout == "node1\n"
    assert "10.200.0.1/24" in shared.exec(["ip", "-br", "addr", "show", "node0"]).stdout
    with pytest.raises(SandboxError, match="not done after 1 s"):
        shared.exec(["sleep", "30"], timeout_seconds=1)


def test_writes_to_shielded_settings_stay_inside(shared: Cluster) -> None:
    outside = Path("/proc/sys/kernel/panic").read_text()
    shared.exec(["sh", "-c", "echo 12345 > /proc/sys/kernel/panic"])
    assert shared.exec(["cat", "/proc/sys/kernel/panic"]).stdout == "12345\n"
    assert Path("/proc/sys/kernel/panic").read_text() == outside


def test_a_process_with_the_recorded_pid_but_another_start_is_not_the_cluster(tmp_path: Path) -> None:
    init = {"pid": os.getpid(), "start_ticks": 1, "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip()}
    (tmp_path / "sandbox.json").write_text(json.dumps({"init": init, "port": 1}))
    assert Sandbox.recorded("any", tmp_path) is None
