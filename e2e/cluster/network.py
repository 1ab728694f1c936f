"""The cluster's network: one bridge with the node's address, inside the sandbox's own network namespace.

Every cluster has the same addresses, because each has a namespace of its own; nothing here touches an interface of the host.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

NODE_ADDRESS = "10.200.0.1"
NODE_PREFIX_LENGTH = 24
NODE_BRIDGE = "node0"
POD_RANGE = "10.244.0.0/24"
POD_BRIDGE = "cni0"
SERVICE_RANGE = "10.96.0.0/16"
CLUSTER_DOMAIN = "cluster.local"
REGISTRY_PORT = 5000
REGISTRY = f"{NODE_ADDRESS}:{REGISTRY_PORT}"

# Only there when the kernel has br_netfilter; the folder belongs to the network namespace of the process that looks.
BRIDGE_FILTER_FOLDER = Path("/proc/sys/net/bridge")


def set_up_commands() -> list[list[str]]:
    """The commands that make the network, in order; to be run inside the sandbox, as root.

    A default route is needed although nothing is reached by it: without one, a packet to a Service address has no route and is refused
    before the rule that rewrites it is looked at. IPv6 is off, since its duplicate address detection delays every new pod's interface.
    """
    return [
        ["ip", "link", "set", "lo", "up"],
        ["sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"],
        ["ip", "link", "add", NODE_BRIDGE, "type", "bridge"],
        ["ip", "addr", "add", f"{NODE_ADDRESS}/{NODE_PREFIX_LENGTH}", "dev", NODE_BRIDGE],
        ["ip", "link", "set", NODE_BRIDGE, "up"],
        ["ip", "route", "add", "default", "dev", NODE_BRIDGE],
        ["sysctl", "-qw", "net.ipv4.ip_forward=1"],
    ]


def bridge_filter_command() -> list[str]:
    """Sends traffic between two pods through the packet filter too, so that an answer by way of a Service address is rewritten back."""
    return ["sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=1"]


def set_up(run: Callable[[Sequence[str]], object]) -> None:
    """Makes the network. `run` runs one command inside the sandbox and raises when it fails."""
    for command in set_up_commands():
        run(command)
