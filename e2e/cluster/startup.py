"""The order in which a control plane comes up and goes down."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import control, kuberay, saved
from e2e.cluster.api import Api, ApiError
from e2e.cluster.certs import INSIDE_SERVER, SUBJECTS, kubeconfig
from e2e.cluster.control import ControlPlane
from e2e.cluster.home import Home
from e2e.cluster.sandbox import Sandbox
from e2e.cluster.waits import wait_for

# Twenty times what a loaded two-core machine took.
API_LIMIT_SECONDS = 120.0
CONTROLLERS_LIMIT_SECONDS = 120.0
KUBERAY_LIMIT_SECONDS = 60.0
TOKEN_SECONDS = 30 * 24 * 3600
_CANARY = f"/api/v1/namespaces/{kuberay.NAMESPACE}/serviceaccounts/default"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Startup:
    """Brings the control plane of one sandbox up."""

    home: Home
    sandbox: Sandbox
    plane: ControlPlane
    api: Api
    say: Say

    def run(self, shape_has_scheduler: bool) -> None:
        """Everything up to a KubeRay that answers. The first run for these binaries and keys saves etcd's data for the later ones."""
        self.write_kubeconfigs()
        name = saved.key(self.plane.binaries, self.plane.pki)
        with self.home.locked(f"state-{name}"):
            restored = saved.restore(self.home, name, self.plane.etcd_data)
            if not restored:
                self.say("No saved state for these tools: installing KubeRay into an empty cluster, once")
                self._make_state(name)
        self.start_api_server()
        self.say("API server ready")
        self.sandbox.start_part(self.plane.controller_manager())
        if shape_has_scheduler:
            self.sandbox.start_part(self.plane.scheduler())
        self.start_kuberay()
        self.await_controllers()
        self.say("Controllers ready")
        self.await_kuberay()
        self.say("KubeRay ready")

    def write_kubeconfigs(self) -> None:
        """For the processes inside; they are private to root."""
        for subject in SUBJECTS:
            write_private(self.plane.inside_kubeconfig(subject.name), self.plane.pki.kubeconfig(subject.name, INSIDE_SERVER))

    def start_api_server(self) -> None:
        """etcd and the API server; the latter waits for the former by itself."""
        self.sandbox.start_part(self.plane.etcd())
        self.sandbox.start_part(self.plane.api_server())
        self.await_api_server()

    def await_api_server(self) -> None:
        """Until /readyz, which includes etcd."""
        wait_for(self.sandbox, control.API_SERVER, "/readyz answers 200", self.api.ready, API_LIMIT_SECONDS)

    def await_controllers(self) -> None:
        """Until the controller-manager repairs something: its /healthz answers long before its controllers work."""
        try:
            self.api.call("DELETE", _CANARY)
        except ApiError as error:
            if error.status != 404:
                raise
        what = f"the default service account of {kuberay.NAMESPACE} is made again"
        wait_for(self.sandbox, control.CONTROLLER_MANAGER, what, lambda: self.api.exists(_CANARY), CONTROLLERS_LIMIT_SECONDS)

    def start_kuberay(self) -> None:
        """KubeRay with a fresh token of its own service account."""
        token = self.api.token(kuberay.NAMESPACE, kuberay.SERVICE_ACCOUNT, TOKEN_SECONDS)
        text = kubeconfig("kuberay", {"token": token}, self.plane.pki.authority, INSIDE_SERVER)
        write_private(self.plane.inside_kubeconfig("kuberay"), text)
        self.sandbox.start_part(self.plane.kuberay())

    def await_kuberay(self) -> None:
        """Until KubeRay's /readyz."""
        wait_for(
            self.sandbox,
            control.KUBERAY,
            "its /readyz answers 200",
            lambda: self.sandbox.probe(control.KUBERAY_HEALTH_PORT, "/readyz") == 200,
            KUBERAY_LIMIT_SECONDS,
        )

    def _make_state(self, name: str) -> None:
        self.start_api_server()
        self.sandbox.start_part(self.plane.controller_manager())
        kuberay.install(self.api, self.plane.binaries.kuberay_dir)
        self.say("KubeRay's definitions applied")
        wait_for(self.sandbox, control.API_SERVER, "KubeRay's kinds are served", lambda: kuberay.established(self.api), API_LIMIT_SECONDS)
        self.await_controllers()
        stop_control_plane(self.sandbox)
        saved.save(self.home, name, self.plane.etcd_data)
        shutil.rmtree(self.plane.etcd_data)
        saved.restore(self.home, name, self.plane.etcd_data)
        self.say("State saved")


def stop_control_plane(sandbox: Sandbox) -> None:
    """Clients before servers, and etcd last, so that its data is complete."""
    running = {state.name for state in sandbox.parts() if state.running}
    for part in (control.KUBERAY, control.SCHEDULER, control.CONTROLLER_MANAGER, control.API_SERVER, control.ETCD):
        if part in running:
            sandbox.stop_part(part)


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner can read; its folder is made."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)
