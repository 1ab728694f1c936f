"""The node of the full shape: image registry, container runtime, kubelet, Service forwarding, DNS, volumes.

`prepare` and `start_runtime` need no API server and can run beside its start; `start` needs it; `stop` ends the pods and the parts.
What the tools would write to fixed places of the machine (/var/lib/kubelet, /var/lib/cni, /var/log, /run) lands in the sandbox's own
mounts.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.api import Api, ApiError, Unreachable
from e2e.cluster.binaries import Binaries
from e2e.cluster.certs import Pki
from e2e.cluster.init import NODE_ADDRESS, NODE_NAME
from e2e.cluster.network import REGISTRY, cni_config, kube_proxy_config, pod_network_commands
from e2e.cluster.node_config import containerd_config, kubelet_config, mount_script, registry_config, registry_hosts
from e2e.cluster.node_images import outdated, read_listing
from e2e.cluster.parts import Part, python_part
from e2e.cluster.pause import BUSYBOX, PAUSE_IMAGE, write_archive
from e2e.cluster.sandbox import CGROUP_ROOT, Sandbox, SandboxError, cgroup_name, log_tail

DEBIAN_PACKAGES = ("containerd", "runc", "containernetworking-plugins", "iptables", "conntrack", "docker-registry", "busybox-static")
READY_LIMIT_SECONDS = 60.0
PODS_GONE_LIMIT_SECONDS = 20.0
# Below the store: there while containers may be recorded in it.
IN_USE_MARK = "in-use"
# What the kubelet needs of cgroup v2.
CONTROLLERS = {"cpu", "cpuset", "memory", "pids", "hugetlb", "io"}
# In the order of their stop.
NODE_PARTS = ("kubelet", "kube-proxy", "nodes", "storage", "dns", "containerd", "registry")
# Daemons look for runc and iptables themselves; a user's PATH often lacks the sbin folders. Nothing in here is reached by a proxy.
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "NO_PROXY": "*", "no_proxy": "*"}


@dataclass(frozen=True)
class Node:
    """Where the node's files lie."""

    name: str
    """Of the cluster."""

    folder: Path
    """The cluster's run folder."""

    store: Path
    """containerd's images and snapshots; claimed for this cluster alone."""

    registry: Path
    """Folder of the image registry; shared by all clusters."""

    pki: Pki

    def inside_kubeconfig(self, subject: str) -> Path:
        """A kubeconfig that reaches the API server from inside the sandbox; the control plane's start has written it."""
        return self.folder / "inside" / f"{subject}.kubeconfig"

    @property
    def config(self) -> Path:
        """Folder of the configuration files written by `prepare`."""
        return self.folder / "node"

    @property
    def volumes(self) -> Path:
        """Folder of the volumes' folders."""
        return self.folder / "volumes"


def runtime_parts(node: Node) -> list[Part]:
    """Registry and container runtime. Containers inherit the runtime's limit of open files, and Ray asks for 65536."""
    raise_limit = 'ulimit -n 1048576 2>/dev/null || ulimit -n "$(ulimit -Hn)"'
    return [
        Part("registry", ("docker-registry", "serve", str(node.config / "registry.json")), ENVIRONMENT),
        Part(
            "containerd",
            ("sh", "-c", f'{raise_limit}; exec containerd --config "$0"', str(node.config / "containerd.toml")),
            ENVIRONMENT,
        ),
    ]


def addon_parts(node: Node) -> list[Part]:
    """DNS, volumes, extra nodes and capacities."""

    def addon(name: str, *arguments: str) -> Part:
        return python_part(name, f"e2e.cluster.addons.{name}", "--kubeconfig", str(node.inside_kubeconfig("admin")), *arguments)

    return [addon("dns", "--listen", NODE_ADDRESS), addon("storage", "--folder", str(node.volumes)), addon("nodes")]


def node_parts(node: Node, binaries: Binaries) -> list[Part]:
    """kubelet and kube-proxy."""
    kubelet = (
        *(str(binaries.binary("kubelet")), f"--config={node.config}/kubelet.json", f"--kubeconfig={node.inside_kubeconfig(NODE_NAME)}"),
        *("--root-dir=/var/lib/kubelet", f"--cert-dir={node.config}/kubelet-pki"),
        *(f"--node-ip={NODE_ADDRESS}", f"--hostname-override={NODE_NAME}"),
    )
    return [
        Part("kubelet", kubelet, ENVIRONMENT, stop_grace_seconds=10),
        Part("kube-proxy", (str(binaries.binary("kube-proxy")), f"--config={node.config}/kube-proxy.json"), ENVIRONMENT),
    ]


def prepare(sandbox: Sandbox, node: Node) -> None:
    """Writes the configuration, and readies cgroups, mounts and network settings. Once in a sandbox's life."""
    missing = [tool for tool in ("containerd", "runc", "docker-registry", "iptables") if not shutil.which(tool, path=ENVIRONMENT["PATH"])]
    if missing or not BUSYBOX.exists():
        raise SandboxError(f"not installed: {', '.join(missing) or BUSYBOX}; the node needs Debian's {' '.join(DEBIAN_PACKAGES)}")
    for folder in (node.config / "cni", node.config / "registries" / REGISTRY, node.folder / "kubelet", node.folder / "logs" / "pods"):
        folder.mkdir(parents=True, exist_ok=True)
    node.volumes.mkdir(exist_ok=True)
    # Only there when the kernel has br_netfilter.
    bridge_filter = Path("/proc/sys/net/bridge").exists()
    config = str(node.config)
    for name, text in {
        "containerd.toml": containerd_config(str(node.store), config),
        "containerd-cleaning.toml": containerd_config(str(node.store), config, with_kubernetes=False),
        f"registries/{REGISTRY}/hosts.toml": registry_hosts(),
        "registry.json": json.dumps(registry_config(str(node.registry / "storage")), indent=1),
        "cni/10-pods.conflist": json.dumps(cni_config("/run/cni-addresses"), indent=1),
        "kubelet.json": json.dumps(kubelet_config(cgroup_name(node.name), str(node.pki.certificate("ca")), config), indent=1),
        "kube-proxy.json": json.dumps(kube_proxy_config(str(node.inside_kubeconfig("proxy")), bridge_filter), indent=1),
        "resolv.conf": f"nameserver {NODE_ADDRESS}\n",
    }.items():
        (node.config / name).write_text(text)
    make_cgroups(node.name)
    script = mount_script(node.folder / "kubelet", node.folder / "logs" / "pods")
    sandbox.run(["sh", "-c", script], env=ENVIRONMENT)
    for command in pod_network_commands(bridge_filter):
        sandbox.run(command, env=ENVIRONMENT)


def make_cgroups(cluster: str, root: Path = CGROUP_ROOT) -> None:
    """The cluster's own folder in every hierarchy, or in the one of cgroup v2; the kubelet refuses to start without.

    Of version 1, a new cpuset has no CPUs until it is given some. Of version 2, a folder has only the controllers its parent hands down.
    """
    if (root / "cgroup.controllers").exists():
        available = set((root / "cgroup.controllers").read_text().split())
        for controller in sorted(available & CONTROLLERS - set((root / "cgroup.subtree_control").read_text().split())):
            (root / "cgroup.subtree_control").write_text(f"+{controller}")
        (root / cgroup_name(cluster)).mkdir(exist_ok=True)
        return
    for hierarchy in root.iterdir():
        if hierarchy.is_symlink() or not (hierarchy / "cgroup.procs").exists():
            continue
        group = hierarchy / cgroup_name(cluster)
        group.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (hierarchy / setting).exists() and (group / setting).exists():
                (group / setting).write_text((hierarchy / setting).read_text())


def start_runtime(sandbox: Sandbox, node: Node) -> None:
    """Starts registry and container runtime on a store without containers, and loads the pause image if it is missing."""
    registry, containerd = runtime_parts(node)
    sandbox.start_part(registry)
    if (node.store / IN_USE_MARK).exists():
        _clean_store(sandbox, node)
    (node.store / IN_USE_MARK).touch()
    sandbox.start_part(containerd)
    _await_runtime(sandbox, "containerd")
    images = read_listing(ctr(sandbox, "images", "ls"))
    # Not before an image's successor was pulled: most of its layers are the same.
    if old := outdated(images, node.registry / "storage", REGISTRY):
        ctr(sandbox, "images", "rm", *old, check=False)
    if PAUSE_IMAGE not in images:
        archive = node.config / "pause.tar"
        write_archive(BUSYBOX.read_bytes(), archive)
        ctr(sandbox, "images", "import", str(archive))
        archive.unlink()


def ctr(sandbox: Sandbox, *arguments: str, check: bool = True) -> str:
    """Runs containerd's client in the namespace of the kubelet's images and containers; returns what it prints."""
    return sandbox.run(["ctr", "--namespace", "k8s.io", *arguments], env=ENVIRONMENT, timeout_seconds=120, check=check).stdout


def _await_runtime(sandbox: Sandbox, part: str, limit_seconds: float = 30.0) -> None:
    limit = time.monotonic() + limit_seconds
    while sandbox.run(["ctr", "version"], env=ENVIRONMENT, check=False).returncode != 0:
        state = sandbox.part(part)
        if state is None or not state.running or time.monotonic() > limit:
            log = sandbox.log(part)
            raise SandboxError(f"{part} does not answer after {limit_seconds:.0f} s; {log}:\n{log_tail(log)}")
        time.sleep(0.05)


def _clean_store(sandbox: Sandbox, node: Node) -> None:
    """Removes what a cluster that was killed has left in the store.

    containerd's Kubernetes plug-in reads it once, at its start, and would tell the kubelet of pods nobody knows: so before that start.
    """
    cleaning = Part("containerd-cleaning", ("containerd", "--config", str(node.config / "containerd-cleaning.toml")), ENVIRONMENT)
    sandbox.start_part(cleaning)
    _await_runtime(sandbox, cleaning.name)
    remaining = _remove_containers(sandbox, node)
    sandbox.stop_part(cleaning.name)
    if remaining:
        raise SandboxError(f"{node.store}: containers of an earlier cluster cannot be removed: {', '.join(remaining)}; delete the folder")


def _remove_containers(sandbox: Sandbox, node: Node) -> list[str]:
    """Removes every container that does not run, and the mark when none is left; returns those that are."""
    if containers := ctr(sandbox, "containers", "ls", "-q").split():
        ctr(sandbox, "containers", "rm", *containers, check=False)
        containers = ctr(sandbox, "containers", "ls", "-q").split()
    if not containers:
        for kind in ("containers", "sandboxes"):
            shutil.rmtree(node.store / "io.containerd.grpc.v1.cri" / kind, ignore_errors=True)
        (node.store / IN_USE_MARK).unlink(missing_ok=True)
    return containers


def start(sandbox: Sandbox, node: Node, binaries: Binaries) -> None:
    """Starts the addons, kubelet and kube-proxy; `await_ready` says when they are up."""
    for part in [*addon_parts(node), *node_parts(node, binaries)]:
        sandbox.start_part(part)


def await_ready(sandbox: Sandbox, api: Api) -> None:
    """Waits until pods can be put on the node; raises SandboxError with the log when a part ends or the limit passes."""
    limit = time.monotonic() + READY_LIMIT_SECONDS
    while True:
        with suppress(ApiError, Unreachable):
            if node_is_ready(api.call("GET", f"/api/v1/nodes/{NODE_NAME}")):
                return
        ended = [state for state in sandbox.parts() if state.name in NODE_PARTS and not state.running]
        if ended or time.monotonic() > limit:
            name = ended[0].name if ended else "kubelet"
            why = ended[0].describe() if ended else f"node {NODE_NAME} is not ready after {READY_LIMIT_SECONDS:.0f} s"
            raise SandboxError(f"{name}: {why}; {sandbox.log(name)}:\n{log_tail(sandbox.log(name))}")
        time.sleep(0.1)


def node_is_ready(node: Mapping[str, Any]) -> bool:
    """Whether the node's Ready condition is true and nothing keeps pods off it."""
    conditions = node.get("status", {}).get("conditions", [])
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return ready and not any(taint["effect"] != "PreferNoSchedule" for taint in node["spec"].get("taints", []))


def stop(sandbox: Sandbox, node: Node, api: Api) -> None:
    """Ends every pod and then the node's parts. Pods that do not end in time are left to the end of the sandbox."""
    running = {state.name for state in sandbox.parts() if state.running}
    if "kubelet" in running:
        _delete_pods(api)
    for name in NODE_PARTS:
        if name not in running:
            continue
        if name == "containerd":
            # The kubelet removes ended sandboxes only after a minute; whatever stays is removed at the next start, which takes longer.
            with suppress(SandboxError):
                _remove_containers(sandbox, node)
        sandbox.stop_part(name)


def _delete_pods(api: Api) -> None:
    """Deletes all pods of the node with the shortest grace and waits until the kubelet has confirmed them gone."""
    limit = time.monotonic() + PODS_GONE_LIMIT_SECONDS
    asked: set[str] = set()
    try:
        # A Deployment would put new ones on it.
        api.patch(f"/api/v1/nodes/{NODE_NAME}", {"spec": {"unschedulable": True}})
        while pods := api.call("GET", f"/api/v1/pods?fieldSelector=spec.nodeName%3D{NODE_NAME}")["items"]:
            for metadata in (pod["metadata"] for pod in pods if pod["metadata"]["uid"] not in asked):
                with suppress(ApiError):
                    api.call("DELETE", f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}?gracePeriodSeconds=1")
                asked.add(metadata["uid"])
            if time.monotonic() > limit:
                names = ", ".join(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in pods)
                print(f"pods still there after {PODS_GONE_LIMIT_SECONDS:.0f} s, ended with the node: {names}", file=sys.stderr)
                return
            time.sleep(0.1)
    except (ApiError, Unreachable) as error:
        print(f"pods are ended with the node, the API server does not answer: {error}", file=sys.stderr)
