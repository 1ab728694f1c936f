"""Flags of the control plane that a test somewhere else would only notice late."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.cluster.certs import Pki
from e2e.cluster.control import ControlPlane


@dataclass(frozen=True)
class AnyBinaries:
    key: str = "key"
    kuberay_dir: Path = Path("/kuberay")

    def binary(self, name: str) -> Path:
        return Path("/bin") / name


@pytest.fixture
def plane() -> ControlPlane:
    return ControlPlane(AnyBinaries(), Pki(Path("/pki")), Path("/run-folder"))


def test_the_api_server_knows_nodes_roles_and_privileged_pods(plane: ControlPlane) -> None:
    argv = plane.api_server().argv
    assert argv[0] == "/bin/kube-apiserver"
    assert {
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--advertise-address=10.200.0.1",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-signing-key-file=/pki/sa.key",
    } <= set(argv)


@pytest.mark.parametrize("name", ["controller_manager", "scheduler"])
def test_single_instances_do_not_elect_a_leader(plane: ControlPlane, name: str) -> None:
    assert "--leader-elect=false" in getattr(plane, name)().argv


def test_kuberay_has_its_own_identity_and_watches_every_namespace(plane: ControlPlane) -> None:
    part = plane.kuberay()
    assert part.env == {"KUBECONFIG": "/run-folder/inside/kuberay.kubeconfig"}
    assert "--watch-namespace=" in part.argv
    assert "--enable-leader-election=false" in part.argv


def test_data_and_kubeconfigs_lie_in_the_run_folder(plane: ControlPlane) -> None:
    assert "--data-dir=/run-folder/etcd" in plane.etcd().argv
    assert "--kubeconfig=/run-folder/inside/scheduler.kubeconfig" in plane.scheduler().argv
