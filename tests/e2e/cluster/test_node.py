"""Configuration files of the node's programs, and the pause image."""

import io
import json
import tarfile
import tomllib
from pathlib import Path

import pytest

from e2e.cluster.node import make_cgroups, node_is_ready
from e2e.cluster.node_config import containerd_config, kubelet_config, mount_script, registry_config, registry_hosts
from e2e.cluster.pause import PAUSE_IMAGE, write_archive

CRI = "io.containerd.grpc.v1.cri"


def test_containerd_runs_without_the_capabilities_that_containers_lack() -> None:
    config = tomllib.loads(containerd_config("/cache/stores/0", "/run folder/node"))
    plugin = config["plugins"][CRI]
    assert config["root"] == "/cache/stores/0"
    assert (plugin["restrict_oom_score_adj"], plugin["disable_apparmor"]) == (True, True)
    assert plugin["sandbox_image"] == PAUSE_IMAGE
    assert plugin["cni"]["conf_dir"] == "/run folder/node/cni"
    assert plugin["registry"]["config_path"] == "/run folder/node/registries"
    assert (plugin["containerd"]["snapshotter"], plugin["containerd"]["discard_unpacked_layers"]) == ("overlayfs", True)
    assert plugin["containerd"]["runtimes"]["runc"]["options"] == {"SystemdCgroup": False}


def test_containerd_for_cleaning_knows_no_pods() -> None:
    assert CRI in tomllib.loads(containerd_config("/s", "/c", with_kubernetes=False))["disabled_plugins"]
    assert CRI not in tomllib.loads(containerd_config("/s", "/c"))["disabled_plugins"]


def test_registry_is_asked_by_plain_http() -> None:
    hosts = tomllib.loads(registry_hosts())
    assert hosts["server"] == "http://10.200.0.1:5000"
    assert hosts["host"] == {"http://10.200.0.1:5000": {"capabilities": ["pull", "resolve"]}}
    assert registry_config("/cache/registry")["http"]["addr"] == "10.200.0.1:5000"


def test_kubelet_stays_in_its_cgroup_and_folders() -> None:
    config = kubelet_config("rlhf-e2e-main", "/pki/ca.crt", "/run/node")
    assert config["cgroupRoot"] == "/rlhf-e2e-main"
    assert config["failCgroupV1"] is False
    assert config["authentication"] == {
        "anonymous": {"enabled": False},
        "webhook": {"enabled": True},
        "x509": {"clientCAFile": "/pki/ca.crt"},
    }
    assert [config[name] for name in ("resolvConf", "volumePluginDir")] == ["/run/node/resolv.conf", "/run/node/volume-plugins"]


def test_mounts_quote_their_folders() -> None:
    assert "mount --bind '/my cache/kubelet' /var/lib/kubelet" in mount_script(Path("/my cache/kubelet"), Path("/logs"))


def test_cgroups_are_made_in_each_hierarchy_and_cpusets_are_filled(tmp_path: Path) -> None:
    for name in ("memory", "cpuset"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    (tmp_path / "cpuacct").symlink_to("memory")
    (tmp_path / "no-hierarchy").mkdir()
    group = tmp_path / "cpuset" / "rlhf-e2e-main"
    group.mkdir()
    for setting, value in (("cpuset.cpus", "0-1\n"), ("cpuset.mems", "0\n")):
        (tmp_path / "cpuset" / setting).write_text(value)
        (group / setting).write_text("\n")
    make_cgroups("main", tmp_path)
    assert (tmp_path / "memory" / "rlhf-e2e-main").is_dir()
    assert [(group / setting).read_text() for setting in ("cpuset.cpus", "cpuset.mems")] == ["0-1\n", "0\n"]
    assert not (tmp_path / "no-hierarchy" / "rlhf-e2e-main").exists()


def test_cgroup_v2_hands_down_the_controllers_that_the_kubelet_needs(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids rdma\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu io memory hugetlb pids\n")
    (tmp_path / "system.slice").mkdir()
    (tmp_path / "system.slice" / "cgroup.procs").touch()
    make_cgroups("main", tmp_path)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpuset"
    assert [path.name for path in tmp_path.rglob("rlhf-e2e-main")] == ["rlhf-e2e-main"]
    assert (tmp_path / "rlhf-e2e-main").is_dir()


READY = {"conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}]}


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ({"spec": {}, "status": READY}, True),
        ({"spec": {}, "status": {}}, False),
        ({"spec": {}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, False),
        ({"spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]}, "status": READY}, False),
        ({"spec": {"taints": [{"key": "slow", "effect": "PreferNoSchedule"}]}, "status": READY}, True),
    ],
)
def test_node_is_ready_when_pods_can_be_put_on_it(node: dict[str, object], expected: bool) -> None:
    assert node_is_ready(node) is expected


def test_pause_image_is_an_oci_archive_with_one_executable(tmp_path: Path) -> None:
    write_archive(b"static program", tmp_path / "pause.tar")
    with tarfile.open(tmp_path / "pause.tar") as archive:

        def blob(descriptor: dict[str, str]) -> bytes:
            return member(f"blobs/{descriptor['digest'].replace(':', '/')}")

        def member(name: str) -> bytes:
            file = archive.extractfile(name)
            assert file is not None
            return file.read()

        described = json.loads(member("index.json"))["manifests"][0]
        manifest = json.loads(blob(described))
        config = json.loads(blob(manifest["config"]))
        layer = blob(manifest["layers"][0])
    assert described["annotations"] == {"io.containerd.image.name": PAUSE_IMAGE}
    assert config["config"] == {"Entrypoint": ["/busybox", "sleep", "infinity"]}
    assert config["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]
    with tarfile.open(fileobj=io.BytesIO(layer)) as files:
        assert [(entry.name, entry.mode) for entry in files] == [("busybox", 0o755)]


def test_pause_image_refuses_a_program_that_needs_libraries(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="busybox-static"):
        write_archive(b"\x7fELF...\x00/lib64/ld-linux-x86-64.so.2\x00...", tmp_path / "pause.tar")
