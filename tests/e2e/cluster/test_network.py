"""Addresses and forwarding: what must hold on a machine whose kernel settings are shared with everything else."""

import ipaddress

import pytest

from e2e.cluster.init import NODE_ADDRESS
from e2e.cluster.network import POD_RANGE, REGISTRY, SERVICE_RANGE, cni_config, kube_proxy_config, pod_network_commands


def test_pods_services_and_node_do_not_overlap() -> None:
    ranges = [ipaddress.ip_network(text) for text in (POD_RANGE, SERVICE_RANGE, f"{NODE_ADDRESS}/32")]
    assert not any(one.overlaps(other) for one in ranges for other in ranges if one is not other)


def test_connection_tracking_of_the_machine_is_left_alone() -> None:
    conntrack = kube_proxy_config("/kubeconfig", bridge_filter=True)["conntrack"]
    assert set(conntrack.values()) == {0, "0s"}


@pytest.mark.parametrize("bridge_filter", [True, False])
def test_service_answers_between_pods_find_back(bridge_filter: bool) -> None:
    """Either bridged packets pass the firewall, or every Service connection is masqueraded."""
    settings = pod_network_commands(bridge_filter)[0]
    assert ("net.bridge.bridge-nf-call-iptables=1" in settings) is bridge_filter
    assert kube_proxy_config("/kubeconfig", bridge_filter)["iptables"]["masqueradeAll"] is not bridge_filter


def test_kube_proxy_uses_no_ipvs() -> None:
    config = kube_proxy_config("/kubeconfig", bridge_filter=True)
    assert (config["mode"], config["clientConnection"]["kubeconfig"]) == ("iptables", "/kubeconfig")


def test_pod_addresses_are_recorded_where_asked() -> None:
    bridge, portmap = cni_config("/run/addresses")["plugins"]
    assert bridge["ipam"]["dataDir"] == "/run/addresses"
    assert bridge["ipam"]["ranges"] == [[{"subnet": POD_RANGE}]]
    assert portmap["type"] == "portmap"


def test_registry_is_on_the_node() -> None:
    assert REGISTRY.split(":") == [NODE_ADDRESS, "5000"]
