"""Addresses and settings of the cluster's network, and what forwards traffic to pods and Services: CNI and kube-proxy.

Every cluster has the same addresses, because each has a network namespace of its own; nothing here touches an interface of the host.
"""

from __future__ import annotations

from typing import Any

from e2e.cluster.init import NODE_ADDRESS, NODE_NAME

POD_RANGE = "10.244.0.0/24"
POD_BRIDGE = "cni0"
SERVICE_RANGE = "10.96.0.0/16"
CLUSTER_DOMAIN = "cluster.local"
REGISTRY_PORT = 5000
REGISTRY = f"{NODE_ADDRESS}:{REGISTRY_PORT}"
# Debian's containernetworking-plugins.
CNI_PLUGIN_FOLDER = "/usr/lib/cni"


def pod_network_commands(bridge_filter: bool) -> list[list[str]]:
    """What pods need beyond the node's own bridge; to be run inside the sandbox.

    IPv6 is off: its duplicate address detection would hold back every new pod's interface for seconds. `bridge_filter` says whether
    the kernel can show bridged packets to the firewall; then answers between two pods are rewritten back to the Service address
    that was asked.
    """
    settings = ["net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"]
    if bridge_filter:
        settings.append("net.bridge.bridge-nf-call-iptables=1")
    return [["sysctl", "-qw", *settings]]


def cni_config(address_folder: str) -> dict[str, Any]:
    """One bridge for all pods, and host ports. `address_folder` records which addresses are taken.

    No masquerading: pods talk only to pods and to the node, which both know the way back, and a test then sees true source addresses.
    """
    return {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": POD_BRIDGE,
                "isGateway": True,
                "ipMasq": False,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": address_folder,
                    "ranges": [[{"subnet": POD_RANGE}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def kube_proxy_config(kubeconfig: str, bridge_filter: bool) -> dict[str, Any]:
    """KubeProxyConfiguration in iptables mode, which needs no kernel module beyond those of containers.

    Connection tracking settings belong to the whole machine, so zeros leave all of them alone. Without `bridge_filter` every Service
    connection is masqueraded, or else the answer of a pod on the same bridge would bypass the rewriting.
    """
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig},
        "hostnameOverride": NODE_NAME,
        "mode": "iptables",
        "clusterCIDR": POD_RANGE,
        "detectLocalMode": "ClusterCIDR",
        "bindAddress": NODE_ADDRESS,
        "nodePortAddresses": ["primary"],
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "oomScoreAdj": 0,
        "iptables": {"masqueradeAll": not bridge_filter, "localhostNodePorts": False, "minSyncPeriod": "100ms", "syncPeriod": "30s"},
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
            "udpTimeout": "0s",
            "udpStreamTimeout": "0s",
        },
    }
