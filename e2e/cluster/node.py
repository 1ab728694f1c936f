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
from e2e.cluster.network import CLUSTER_DOMAIN, CNI_PLUGIN_FOLDER, REGISTRY, cni_config, kube_proxy_config, pod_network_commands
from e2e.cluster.parts import Part
from e2e.cluster.pause import BUSYBOX, PAUSE_IMAGE, write_archive
from e2e.cluster.sandbox import CGROUP_ROOT, REPOSITORY, Sandbox, SandboxError, cgroup_name, log_tail

DEBIAN_PACKAGES = ("containerd", "runc", "containernetworking-plugins", "iptables", "conntrack", "docker-registry", "busybox-static")
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
READY_LIMIT_SECONDS = 60.0
PODS_GONE_LIMIT_SECONDS = 20.0
# Below the store: there while containers may be recorded in it.
IN_USE_MARK = "in-use"
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
    """Image registry's storage; shared by all clusters."""

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


def containerd_config(store: str, config_folder: str, with_kubernetes: bool = True) -> str:
    """containerd's configuration file. Without Kubernetes it only keeps images and containers, for cleaning.

    `restrict_oom_score_adj` because a container may not be given a better score than a daemon without CAP_SYS_RESOURCE has. Layers are
    discarded once unpacked, since the registry has them too. The plug-ins switched off would write outside the store or need other devices.
    """
    off = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs"]
    off += ["io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
    if not with_kubernetes:
        off.append("io.containerd.grpc.v1.cri")
    return f"""version = 2
root = {json.dumps(store)}
state = "/run/containerd"
disabled_plugins = {json.dumps(off)}
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGIN_FOLDER}"
    conf_dir = {json.dumps(config_folder + "/cni")}
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = {json.dumps(config_folder + "/registries")}
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    discard_unpacked_layers = true
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


def registry_hosts() -> str:
    """containerd's hosts.toml for our registry: plain http."""
    return f'server = "http://{REGISTRY}"\n[host."http://{REGISTRY}"]\n  capabilities = ["pull", "resolve"]\n'


def registry_config(storage: str) -> dict[str, Any]:
    """Configuration of docker-registry."""
    return {
        "version": 0.1,
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": storage}, "delete": {"enabled": True}},
        "http": {"addr": REGISTRY, "secret": "of one test cluster"},
    }


def kubelet_config(cluster: str, client_ca: str, config_folder: str) -> dict[str, Any]:
    """KubeletConfiguration. Evictions and image collection only when the disk is all but full; pod logs stay after the cluster."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup_name(cluster)}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "clusterDomain": CLUSTER_DOMAIN,
        "clusterDNS": [NODE_ADDRESS],
        "resolvConf": f"{config_folder}/resolv.conf",
        "volumePluginDir": f"{config_folder}/volume-plugins",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": client_ca},
        },
        "authorization": {"mode": "Webhook"},
        "healthzBindAddress": "127.0.0.1",
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%"},
        "registryPullQPS": 0,
        "serializeImagePulls": False,
        "eventRecordQPS": 0,
        # A 3 GB image on a busy machine.
        "runtimeRequestTimeout": "15m",
    }


def runtime_parts(node: Node) -> list[Part]:
    """Registry and container runtime."""
    return [
        Part("registry", ("docker-registry", "serve", str(node.config / "registry.json")), ENVIRONMENT),
        Part("containerd", ("containerd", "--config", str(node.config / "containerd.toml")), ENVIRONMENT),
    ]


def addon_parts(node: Node) -> list[Part]:
    """DNS, volumes, extra nodes and capacities."""

    def addon(name: str, *arguments: str) -> Part:
        argv = (sys.executable, "-m", f"e2e.cluster.addons.{name}", "--kubeconfig", str(node.inside_kubeconfig("admin")), *arguments)
        return Part(name, argv, ENVIRONMENT, cwd=str(REPOSITORY))

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


def mount_script(node: Node) -> str:
    """Shell commands for inside the sandbox: private folders over the fixed places that kubelet and CNI write to.

    The kubelet's folder stays on disk, because pods' emptyDir volumes are in it.
    """
    kubelet, logs = node.folder / "kubelet", node.folder / "logs" / "pods"
    return f"""set -e
mkdir -p /var/lib/kubelet /var/lib/cni
mount --bind '{kubelet}' /var/lib/kubelet
mount -t tmpfs tmpfs /var/lib/cni
mount -t tmpfs tmpfs /var/log
mkdir /var/log/pods
mount --bind '{logs}' /var/log/pods
"""


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
        "registry.json": json.dumps(registry_config(str(node.registry)), indent=1),
        "cni/10-pods.conflist": json.dumps(cni_config("/run/cni-addresses"), indent=1),
        "kubelet.json": json.dumps(kubelet_config(node.name, str(node.pki.certificate("ca")), config), indent=1),
        "kube-proxy.json": json.dumps(kube_proxy_config(str(node.inside_kubeconfig("proxy")), bridge_filter), indent=1),
        "resolv.conf": f"nameserver {NODE_ADDRESS}\n",
    }.items():
        (node.config / name).write_text(text)
    make_cgroups(node.name)
    commands = pod_network_commands(bridge_filter)
    sandbox.run(["sh", "-c", mount_script(node) + "\n".join(" ".join(command) for command in commands)], env=ENVIRONMENT)


def make_cgroups(cluster: str, root: Path = CGROUP_ROOT) -> None:
    """The cluster's own folder in every hierarchy; the kubelet refuses to start without.

    A new cpuset has no CPUs until it is given some.
    """
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
    mark = node.store / IN_USE_MARK
    if mark.exists():
        _remove_containers(sandbox, node)
    mark.touch()
    sandbox.start_part(containerd)
    _await_runtime(sandbox, "containerd")
    if PAUSE_IMAGE not in ctr(sandbox, "images", "ls", "-q").split():
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


def _remove_containers(sandbox: Sandbox, node: Node) -> None:
    """Removes what a cluster that was killed has left in the store.

    Its Kubernetes plug-in reads them once, at its start, and would tell the kubelet of pods nobody knows: so before that start.
    """
    cleaning = Part("containerd-cleaning", ("containerd", "--config", str(node.config / "containerd-cleaning.toml")), ENVIRONMENT)
    sandbox.start_part(cleaning)
    _await_runtime(sandbox, cleaning.name)
    if containers := ctr(sandbox, "containers", "ls", "-q").split():
        ctr(sandbox, "containers", "rm", *containers)
    sandbox.stop_part(cleaning.name)
    for kind in ("containers", "sandboxes"):
        shutil.rmtree(node.store / "io.containerd.grpc.v1.cri" / kind, ignore_errors=True)


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
        if name == "containerd" and not ctr(sandbox, "containers", "ls", "-q", check=False).split():
            (node.store / IN_USE_MARK).unlink(missing_ok=True)
        sandbox.stop_part(name)


def _delete_pods(api: Api) -> None:
    """Deletes all pods of the node with the shortest grace and waits until the kubelet has confirmed them gone."""
    limit = time.monotonic() + PODS_GONE_LIMIT_SECONDS
    asked: set[str] = set()
    try:
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
