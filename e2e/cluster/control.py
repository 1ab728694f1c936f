"""The processes of the control plane and their flags. Pure: paths in, parts out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.binaries import Binaries
from e2e.cluster.certs import Pki
from e2e.cluster.init import NODE_ADDRESS
from e2e.cluster.parts import Part

ETCD = "etcd"
API_SERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
KUBERAY = "kuberay-operator"
KUBERAY_HEALTH_PORT = 8082

ETCD_CLIENT = "http://127.0.0.1:2379"
ETCD_PEER = "http://127.0.0.1:2380"


def inside_kubeconfig(folder: Path, name: str) -> Path:
    """The kubeconfig of a subject in a run folder, for a process inside the sandbox."""
    return folder / "inside" / f"{name}.kubeconfig"


@dataclass(frozen=True)
class ControlPlane:
    """Where the control plane's files are: binaries, certificates, and the run folder with etcd's data and the kubeconfigs."""

    binaries: Binaries
    pki: Pki
    folder: Path

    @property
    def etcd_data(self) -> Path:
        """etcd's data folder."""
        return self.folder / "etcd"

    def inside_kubeconfig(self, name: str) -> Path:
        """The kubeconfig of a subject for a process inside the sandbox."""
        return inside_kubeconfig(self.folder, name)

    def etcd(self) -> Part:
        """Without fsync: the data need not survive the machine, and a test must not wait for the disk."""
        return Part(
            ETCD,
            (
                str(self.binaries.binary(ETCD)),
                f"--data-dir={self.etcd_data}",
                f"--listen-client-urls={ETCD_CLIENT}",
                f"--advertise-client-urls={ETCD_CLIENT}",
                f"--listen-peer-urls={ETCD_PEER}",
                f"--initial-advertise-peer-urls={ETCD_PEER}",
                f"--initial-cluster=default={ETCD_PEER}",
                "--unsafe-no-fsync",
                "--log-level=warn",
            ),
        )

    def api_server(self) -> Part:
        """Stops after a few seconds at most: one whose etcd went first would go on for minutes after SIGTERM."""
        pki = self.pki
        return Part(
            API_SERVER,
            (
                str(self.binaries.binary(API_SERVER)),
                f"--etcd-servers={ETCD_CLIENT}",
                # 127.0.0.1 is refused: Endpoints "kubernetes" is invalid.
                f"--advertise-address={NODE_ADDRESS}",
                "--bind-address=0.0.0.0",
                "--secure-port=6443",
                f"--client-ca-file={pki.certificate('ca')}",
                f"--tls-cert-file={pki.certificate('apiserver')}",
                f"--tls-private-key-file={pki.private_key('apiserver')}",
                f"--service-account-key-file={pki.folder / 'sa.pub'}",
                f"--service-account-signing-key-file={pki.folder / 'sa.key'}",
                "--service-account-issuer=https://kubernetes.default.svc",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
                f"--kubelet-client-certificate={pki.certificate('kubelet-client')}",
                f"--kubelet-client-key={pki.private_key('kubelet-client')}",
                # Else logs and exec look the node's name up.
                "--kubelet-preferred-address-types=InternalIP",
            ),
            # Start-up parses megabytes of definitions: fewer collections save a seventh of its CPU time.
            env={"GOGC": "200"},
        )

    def controller_manager(self) -> Part:
        """To be started only when the API server is ready: before its first roles exist this one exits at once."""
        return Part(
            CONTROLLER_MANAGER,
            (
                str(self.binaries.binary(CONTROLLER_MANAGER)),
                *self._delegation("controller-manager"),
                f"--service-account-private-key-file={self.pki.folder / 'sa.key'}",
                f"--root-ca-file={self.pki.certificate('ca')}",
                f"--cluster-signing-cert-file={self.pki.certificate('ca')}",
                f"--cluster-signing-key-file={self.pki.private_key('ca')}",
                "--use-service-account-credentials=true",
                "--kube-api-qps=200",
                "--kube-api-burst=400",
            ),
            stop_grace_seconds=3.0,
        )

    def scheduler(self) -> Part:
        """As the controller-manager: only when the API server is ready."""
        return Part(SCHEDULER, (str(self.binaries.binary(SCHEDULER)), *self._delegation("scheduler")), stop_grace_seconds=3.0)

    def kuberay(self) -> Part:
        """The KubeRay operator for all namespaces, under its own service account."""
        return Part(
            KUBERAY,
            (
                str(self.binaries.binary(KUBERAY)),
                "--enable-leader-election=false",
                "--metrics-addr=127.0.0.1:8080",
                f"--health-probe-bind-address=127.0.0.1:{KUBERAY_HEALTH_PORT}",
                "--watch-namespace=",
                "--log-stdout-encoder=console",
            ),
            env={"KUBECONFIG": str(self.inside_kubeconfig("kuberay"))},
            stop_grace_seconds=3.0,
        )

    def _delegation(self, name: str) -> tuple[str, ...]:
        path = self.inside_kubeconfig(name)
        return (
            f"--kubeconfig={path}",
            f"--authentication-kubeconfig={path}",
            f"--authorization-kubeconfig={path}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
        )
