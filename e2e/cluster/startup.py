"""The order in which a control plane comes up and goes down."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import control, kuberay, saved
from e2e.cluster.api import Api
from e2e.cluster.certs import INSIDE_SERVER, SUBJECTS, kubeconfig
from e2e.cluster.control import ControlPlane
from e2e.cluster.home import Home
from e2e.cluster.sandbox import Sandbox
from e2e.cluster.waits import API_LIMIT_SECONDS, CONTROLLERS_LIMIT_SECONDS, await_api_server, await_controllers, await_kuberay, wait_for

TOKEN_SECONDS = 30 * 24 * 3600

Say = Callable[[str], None]


@dataclass(frozen=True)
class Startup:
    """Brings the control plane of one sandbox up."""

    home: Home
    sandbox: Sandbox
    plane: ControlPlane
    api: Api
    say: Say

    def run(self, with_scheduler: bool, *, before_api: Callable[[], None], with_api: Callable[[], None]) -> None:
        """Everything up to a KubeRay that answers.

        `before_api` is called while the API server starts, `with_api` when it answers, while the controllers start.

        The first run for these binaries and keys saves etcd's data for the later ones.
        """
        self.write_kubeconfigs()
        name = saved.key(self.plane.binaries, self.plane.pki)
        with self.home.locked(f"state-{name}"):
            restored = saved.restore(self.home, name, self.plane.etcd_data)
            if not restored:
                self.say("No saved state for these tools: installing KubeRay into an empty cluster, once")
                self._make_state(name)
        self.begin_api_server()
        before_api()
        await_api_server(self.sandbox, self.api)
        self.say("API server ready")
        self.sandbox.start_part(self.plane.controller_manager())
        if with_scheduler:
            self.sandbox.start_part(self.plane.scheduler())
        self.start_kuberay()
        with_api()
        await_controllers(self.sandbox, self.api)
        self.say("Controllers ready")
        await_kuberay(self.sandbox)
        self.say("KubeRay ready")

    def write_kubeconfigs(self) -> None:
        """For the processes inside; they are private to root."""
        for subject in SUBJECTS:
            write_private(self.plane.inside_kubeconfig(subject.name), self.plane.pki.kubeconfig(subject.name, INSIDE_SERVER))

    def begin_api_server(self) -> None:
        """etcd and the API server; the latter waits for the former by itself."""
        self.sandbox.start_part(self.plane.etcd())
        self.sandbox.start_part(self.plane.api_server())

    def start_kuberay(self) -> None:
        """KubeRay with a fresh token of its own service account."""
        token = self.api.token(kuberay.NAMESPACE, kuberay.SERVICE_ACCOUNT, TOKEN_SECONDS)
        text = kubeconfig("kuberay", {"token": token}, self.plane.pki.authority, INSIDE_SERVER)
        write_private(self.plane.inside_kubeconfig("kuberay"), text)
        self.sandbox.start_part(self.plane.kuberay())

    def _make_state(self, name: str) -> None:
        self.begin_api_server()
        await_api_server(self.sandbox, self.api)
        self.sandbox.start_part(self.plane.controller_manager())
        kuberay.install(self.api, self.plane.binaries.kuberay_dir)
        self.say("KubeRay's definitions applied")
        wait_for(self.sandbox, control.API_SERVER, "KubeRay's kinds are served", lambda: kuberay.established(self.api), API_LIMIT_SECONDS)
        await_controllers(self.sandbox, self.api)
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        what = "the default service account is there"
        wait_for(self.sandbox, control.CONTROLLER_MANAGER, what, lambda: self.api.exists(path), CONTROLLERS_LIMIT_SECONDS)
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
