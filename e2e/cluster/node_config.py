"""Configuration of the node's programs. Pure: paths and names in, texts out."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import Any

from e2e.cluster.init import NODE_ADDRESS
from e2e.cluster.network import CLUSTER_DOMAIN, CNI_PLUGIN_FOLDER, REGISTRY
from e2e.cluster.pause import PAUSE_IMAGE

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"


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


def kubelet_config(cgroup: str, client_ca: str, config_folder: str) -> dict[str, Any]:
    """KubeletConfiguration. Evictions and image collection only when the disk is all but full; pod logs stay after the cluster."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
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


def mount_script(kubelet: Path, pod_logs: Path) -> str:
    """Shell commands for inside the sandbox: private folders over the fixed places that kubelet and CNI write to.

    The kubelet's folder stays on disk, because pods' emptyDir volumes are in it. Of the machine itself only two mount points are used,
    which stay, empty.
    """
    return f"""set -e
mkdir -p /var/lib/kubelet /var/lib/cni
mount --bind {quote(str(kubelet))} /var/lib/kubelet
mount -t tmpfs tmpfs /var/lib/cni
mount -t tmpfs tmpfs /var/log
mkdir /var/log/pods
mount --bind {quote(str(pod_logs))} /var/log/pods
"""
