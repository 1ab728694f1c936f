"""Fake capacities and nodes without a kubelet."""

import datetime
import json
from typing import Any

import pytest

from e2e.cluster.addons.nodes import (
    BASE_CAPACITY,
    CAPACITY,
    STATUS_ONLY,
    beats,
    capacity_patch,
    lease,
    state_patch,
    status_change,
    status_only_node,
)

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=datetime.UTC)
GPUS = {"nvidia.com/gpu": "8", "rdma/hca_shared_devices_a": "1"}


def kubelet_node(capacity: dict[str, str], **annotations: str) -> dict[str, Any]:
    return {"metadata": {"name": "node1", "annotations": annotations}, "status": {"capacity": capacity, "allocatable": dict(capacity)}}


def test_capacity_is_added_to_what_the_kubelet_reports() -> None:
    node = kubelet_node({"cpu": "2"}) | capacity_patch(GPUS) | {"status": {"capacity": {"cpu": "2"}, "allocatable": {"cpu": "2"}}}
    assert status_change(node, NOW) == {"status": {"capacity": GPUS, "allocatable": GPUS}}


def test_only_what_the_kubelet_has_reset_is_written_again() -> None:
    node = kubelet_node({"cpu": "2", **GPUS, "nvidia.com/gpu": "0"}, **{CAPACITY: json.dumps(GPUS)})
    assert status_change(node, NOW) == {"status": {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"}}}


def test_nothing_is_written_when_all_is_as_asked() -> None:
    assert status_change(kubelet_node({"cpu": "2", **GPUS}, **{CAPACITY: json.dumps(GPUS)}), NOW) is None
    assert status_change(kubelet_node({"cpu": "2"}), NOW) is None


def test_node_without_kubelet_gets_a_whole_status() -> None:
    node = status_only_node("node2", GPUS, {"zone": "a"})
    change = status_change(node, NOW)
    assert change is not None
    assert change["status"]["capacity"] == BASE_CAPACITY | GPUS
    assert {condition["type"]: condition["status"] for condition in change["status"]["conditions"]} == {
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
        "Ready": "True",
    }
    assert status_change(node | change, NOW) is None


def test_flip_changes_the_ready_condition() -> None:
    node = status_only_node("node2", GPUS)
    node |= status_change(node, NOW) or {}
    node["metadata"]["annotations"] |= state_patch("not-ready")["metadata"]["annotations"]
    change = status_change(node, NOW)
    assert change is not None
    assert list(change["status"]) == ["conditions"]
    assert change["status"]["conditions"][-1]["status"] == "False"


def test_status_that_the_control_plane_took_back_is_written_again() -> None:
    node = status_only_node("node2", GPUS)
    node |= status_change(node, NOW) or {}
    node["status"]["conditions"][-1]["status"] = "Unknown"
    assert status_change(node, NOW) is not None


@pytest.mark.parametrize(("state", "expected"), [("ready", True), ("not-ready", True), ("silent", False)])
def test_silent_nodes_have_no_heartbeat(state: str, expected: bool) -> None:
    assert beats(status_only_node("node2", GPUS, state=state)) is expected


def test_silent_nodes_keep_their_last_status() -> None:
    assert status_change(status_only_node("node2", GPUS, state="silent"), NOW) is None


def test_nodes_with_a_kubelet_get_no_heartbeat() -> None:
    assert not beats(kubelet_node({}))


@pytest.mark.parametrize("text", ["8 GPUs", '{"nvidia.com/gpu": 8}', "[]"])
def test_bad_capacity_names_annotation_value_and_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"e2e\.rlhf\.dev/capacity: .*for example \{\"nvidia\.com/gpu\": \"8\"\}"):
        status_change(kubelet_node({}, **{CAPACITY: text}), NOW)


def test_unknown_state_is_refused_with_the_possible_ones() -> None:
    with pytest.raises(ValueError, match="ready, not-ready, silent"):
        state_patch("gone")
    with pytest.raises(ValueError, match="ready, not-ready, silent"):
        status_only_node("node2", {}, state="gone")
    with pytest.raises(ValueError, match="ready, not-ready, silent"):
        status_change(kubelet_node({}, **{STATUS_ONLY: "gone"}), NOW)


def test_lease_is_owned_by_its_node() -> None:
    made = lease({"metadata": {"name": "node2", "uid": "u2"}}, NOW)
    assert made["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": "node2", "uid": "u2"}]
    assert made["spec"]["renewTime"] == "2026-01-02T03:04:05.678000Z"
