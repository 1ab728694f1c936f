"""One test cluster: start it, look at it, disturb it, end it."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from e2e.cluster import certs, control, node
from e2e.cluster.addons import nodes
from e2e.cluster.api import Api
from e2e.cluster.binaries import CONTROL_BINARIES, NODE_BINARIES, Binaries, find_binaries
from e2e.cluster.certs import Pki
from e2e.cluster.control import ControlPlane
from e2e.cluster.home import Home
from e2e.cluster.init import NODE_NAME
from e2e.cluster.parts import PartState, python_part
from e2e.cluster.sandbox import Sandbox, SandboxError, remove_leftovers
from e2e.cluster.startup import Say, Startup, write_private
from e2e.cluster.waits import await_part, wait_for
from e2e.tools import debian

Shape = Literal["control", "full"]
PODS = "pods"
NODES = "nodes"
RESTART_LIMIT_SECONDS = 60.0


class Timeline:
    """Prints each stage of a start with the seconds since its beginning."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print = print_line
        self._started = time.monotonic()

    def __call__(self, text: str) -> None:
        self._print(f"[{time.monotonic() - self._started:5.1f} s] {text}")


def binaries_of(shape: Shape) -> tuple[str, ...]:
    """What a cluster of this shape runs."""
    return CONTROL_BINARIES if shape == "control" else CONTROL_BINARIES + NODE_BINARIES


def _print_flushed(line: str) -> None:
    print(line, flush=True)


@dataclass
class Cluster:
    """A running cluster.

    `control` shape: the control plane and KubeRay; no node, pods are marked by an addon. `full` shape: also a scheduler and a real node.
    `store` is the container runtime's storage, in the full shape.
    """

    name: str
    shape: Shape
    home: Home
    sandbox: Sandbox
    pki: Pki
    api: Api
    say: Say
    store: Path | None = None

    @classmethod
    def up(
        cls,
        name: str,
        shape: Shape = "control",
        *,
        home: Home | None = None,
        tied: bool = False,
        report: Callable[[str], None] = _print_flushed,
    ) -> Cluster:
        """Starts a cluster, or returns the one that runs under this name in this shape. Whatever a crash left under the name goes first.

        `tied`: the cluster ends with this process, however that ends. Raises SandboxError when a part does not come up, with nothing
        running then and the logs still in the run folder, and ToolsError when a program cannot be had.
        """
        home = home or Home.default()
        folder = home.cluster(name)
        say = Timeline(report)
        with home.locked(f"cluster-{name}"):
            running = cls._find(name, home, say)
            if running is not None:
                if running.shape != shape:
                    raise SandboxError(
                        f"cluster {name} runs in shape {running.shape}, not {shape}: take it down first, or use another name"
                    )
                say(f"Cluster {name} is up already")
                return running
            debian.ensure(debian.SHAPES[shape], f"for a cluster of the {shape} shape", report)
            binaries = find_binaries(binaries_of(shape))
            pki = certs.ensure(home, datetime.datetime.now(datetime.UTC))
            remove_leftovers(name, folder)
            store, claim = home.claim_store() if shape == "full" else (None, None)
            try:
                sandbox = Sandbox.start(name, folder, hold=[] if claim is None else [claim])
            finally:
                if claim is not None:
                    os.close(claim)
            cluster = cls(name, shape, home, sandbox, pki, Api(sandbox.port, pki), say, store)
            try:
                cluster._start(binaries)
                if not tied:
                    sandbox.untie()
            except BaseException:
                sandbox.end()
                remove_leftovers(name, folder, keep_logs=True)
                raise
        return cluster

    @classmethod
    def attach(cls, name: str, *, home: Home | None = None) -> Cluster:
        """The running cluster of this name; raises SandboxError when there is none."""
        home = home or Home.default()
        cluster = cls._find(name, home, _print_flushed)
        if cluster is None:
            running = [other for other in home.clusters() if cls._find(other, home, _print_flushed)]
            raise SandboxError(f"no cluster {name!r} is running; there are: {', '.join(running) or 'none'}")
        return cluster

    @classmethod
    def remove(cls, name: str, *, home: Home | None = None) -> bool:
        """Ends the cluster of this name, whatever state it is in; True when something ran. Its logs stay."""
        home = home or Home.default()
        folder = home.cluster(name)
        with home.locked(f"cluster-{name}"):
            cluster = cls._find(name, home, _print_flushed)
            if cluster is not None:
                cluster._stop_node()
            ran = Sandbox.recorded(name, folder) is not None
            remove_leftovers(name, folder, keep_logs=True)
        return ran

    def down(self) -> None:
        """Ends the cluster and removes everything of it but its logs."""
        self._stop_node()
        self.sandbox.end()
        with self.home.locked(f"cluster-{self.name}"):
            remove_leftovers(self.name, self.folder, keep_logs=True)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.sandbox.folder

    @property
    def logs(self) -> Path:
        """The folder with one PART.log for every part."""
        return self.folder / "logs"

    @property
    def admin_kubeconfig(self) -> Path:
        """For clients on this machine, outside the sandbox."""
        return self.folder / "admin.kubeconfig"

    @property
    def inside_kubeconfig(self) -> Path:
        """For an administrator's clients inside the sandbox."""
        return control.inside_kubeconfig(self.folder, "admin")

    def kubeconfig_for(self, service_account: str, namespace: str, *, inside: bool = False, seconds: int = 24 * 3600) -> Path:
        """Writes a kubeconfig with a new token of a service account and returns its path; raises ApiError when there is no such account."""
        token = self.api.token(namespace, service_account, seconds)
        server = certs.INSIDE_SERVER if inside else self.server
        text = certs.kubeconfig(service_account, {"token": token}, self.pki.authority, server, namespace)
        path = self.folder / "kubeconfigs" / f"{namespace}.{service_account}.{'inside' if inside else 'outside'}.kubeconfig"
        write_private(path, text)
        return path

    @property
    def server(self) -> str:
        """The API server's address outside the sandbox."""
        return f"https://127.0.0.1:{self.sandbox.port}"

    def status(self) -> list[PartState]:
        """Every part."""
        return self.sandbox.parts()

    def exec(self, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs a command inside, with an administrator's KUBECONFIG; options as `Sandbox.run`."""
        environment = {"KUBECONFIG": str(self.inside_kubeconfig)} | dict(options.pop("env", None) or {})
        return self.sandbox.run(argv, env=environment, **options)

    def restart(self, part: str, down_seconds: float = 0.0, *, kill: bool = False) -> None:
        """Stops (or kills) a part, leaves it down, starts it again and waits until it works."""
        if kill:
            self.sandbox.kill_part(part)
        else:
            self.sandbox.stop_part(part)
        time.sleep(down_seconds)
        self.sandbox.restart_part(part)
        await_part(self.sandbox, self.api, part)

    @contextlib.contextmanager
    def stopped(self, part: str, *, kill: bool = False) -> Iterator[None]:
        """A part is down for the length of a `with` block."""
        if kill:
            self.sandbox.kill_part(part)
        else:
            self.sandbox.stop_part(part)
        try:
            yield
        finally:
            self.sandbox.restart_part(part)
            await_part(self.sandbox, self.api, part)

    @contextlib.contextmanager
    def paused(self, part: str) -> Iterator[None]:
        """A part does not answer for the length of a `with` block: it keeps its connections and neither accepts nor refuses new ones."""
        self.sandbox.pause_part(part)
        try:
            yield
        finally:
            self.sandbox.resume_part(part)

    def wait_for(self, part: str, what: str, probe: Callable[[], bool], limit_seconds: float) -> None:
        """Waits for something a part is to do; raises NotUpError with the part's last log lines."""
        wait_for(self.sandbox, part, what, probe, limit_seconds)

    def set_capacity(self, capacity: Mapping[str, str], node: str = NODE_NAME) -> None:
        """Gives a node resources the machine does not have and waits until pods can ask for them."""
        path = f"{nodes.NODES}/{node}"
        self.api.patch(path, nodes.capacity_patch(capacity))

        def there() -> bool:
            allocatable = self.api.call("GET", path).get("status", {}).get("allocatable", {})
            return all(allocatable.get(name, "0") == amount for name, amount in capacity.items())

        self.wait_for(NODES, f"node {node} offers {dict(capacity)}", there, RESTART_LIMIT_SECONDS)

    def add_node(self, name: str, capacity: Mapping[str, str], labels: Mapping[str, str] | None = None, state: str = "ready") -> None:
        """Adds a node that has a status only and runs nothing; waits until it is Ready when that is its state."""
        self.api.call("POST", nodes.NODES, nodes.status_only_node(name, capacity, labels, state))
        if state == "ready":
            self._await_node(name)

    def set_node_state(self, name: str, state: str) -> None:
        """Flips a node added by `add_node`: ready, not-ready, silent."""
        self.api.patch(f"{nodes.NODES}/{name}", nodes.state_patch(state))

    def _await_node(self, name: str) -> None:
        def ready() -> bool:
            return node.node_is_ready(self.api.call("GET", f"{nodes.NODES}/{name}"))

        self.wait_for(NODES, f"node {name} is Ready", ready, RESTART_LIMIT_SECONDS)

    @classmethod
    def _find(cls, name: str, home: Home, say: Say) -> Cluster | None:
        """The complete, running cluster of this name."""
        folder = home.cluster(name)
        sandbox = Sandbox.recorded(name, folder)
        try:
            record = json.loads((folder / "cluster.json").read_text())
        except FileNotFoundError:
            return None
        if sandbox is None:
            return None
        store = Path(record["store"]) if record["store"] else None
        pki = Pki(Path(record["pki"]))
        return cls(name, record["shape"], home, sandbox, pki, Api(sandbox.port, pki), say, store)

    def _start(self, binaries: Binaries) -> None:
        self.say("Sandbox made")
        write_private(self.admin_kubeconfig, self.pki.kubeconfig("admin", self.server))
        startup = Startup(self.home, self.sandbox, ControlPlane(binaries, self.pki, self.folder), self.api, self.say)
        if self.shape == "control":

            def start_addons() -> None:
                self.start_addon(NODES)
                self.start_addon(PODS)
                # Where the marker binds pods to: Services leave out a pod without a node.
                self.api.call("POST", nodes.NODES, nodes.status_only_node(NODE_NAME, {}))

            startup.run(with_scheduler=False, before_api=lambda: None, with_api=start_addons)
            self._await_node(NODE_NAME)
            self.wait_for(PODS, "it watches pods", lambda: "watching" in self.sandbox.log(PODS).read_text(), RESTART_LIMIT_SECONDS)
            self.say("Pods are marked")
        else:
            place = self._node()

            def start_runtime() -> None:
                node.prepare(self.sandbox, place)
                node.start_runtime(self.sandbox, place)
                self.say("Container runtime ready")

            def start_node() -> None:
                node.start(self.sandbox, place, binaries)

            startup.run(with_scheduler=True, before_api=start_runtime, with_api=start_node)
            node.await_ready(self.sandbox, self.api)
            self.say("Node ready")
        record = {
            "name": self.name,
            "shape": self.shape,
            "server": self.server,
            "kubeconfig": str(self.admin_kubeconfig),
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "pki": str(self.pki.folder),
            "tools": binaries.key,
            "store": str(self.store) if self.store else None,
            "init": asdict(self.sandbox.init),
        }
        partial = self.folder / "cluster.json.partial"
        partial.write_text(json.dumps(record, indent=1))
        # Its presence says that the cluster is complete.
        partial.rename(self.folder / "cluster.json")

    def start_addon(self, name: str, *arguments: str) -> PartState:
        """Starts the addon NAME with an administrator's kubeconfig."""
        return self.sandbox.start_part(
            python_part(name, f"e2e.cluster.addons.{name}", "--kubeconfig", str(self.inside_kubeconfig), *arguments)
        )

    def _stop_node(self) -> None:
        if self.shape == "full" and self.sandbox.alive:
            node.stop(self.sandbox, self._node(), self.api)

    def _node(self) -> node.Node:
        if self.store is None:
            raise SandboxError(f"cluster {self.name}: the {self.shape} shape has no node")
        return node.Node(self.name, self.folder, self.store, self.home.folder("registry"), self.pki)
