"""Which claims get a volume, what it looks like, and when it goes."""

import datetime
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.addons.storage import PROVISIONER, is_due, is_to_delete, refusal, refusal_event, storage_classes, volume_for

CLASSES = {item["metadata"]["name"]: item for item in storage_classes()} | {
    "foreign": {"metadata": {"name": "foreign"}, "provisioner": "example.com/disks", "volumeBindingMode": "Immediate"}
}
UID = "0123456789abcdef"
NODE = {"annotations": {"volume.kubernetes.io/selected-node": "node1"}}


def claim(storage_class: str = "local-immediate", metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "team", "name": "data", "uid": UID, **(metadata or {})},
        "spec": {
            "storageClassName": storage_class,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "2Gi"}},
            **spec,
        },
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (claim(), True),
        (claim("local"), False),
        (claim("local", NODE), True),
        (claim("local-retain", NODE), True),
        (claim("foreign"), False),
        (claim("no-such-class"), False),
        (claim(volumeName="pvc-1"), False),
        (claim(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), False),
    ],
)
def test_a_claim_is_due_when_its_class_is_ours_and_its_pod_has_a_node(given: dict[str, Any], expected: bool) -> None:
    assert is_due(given, CLASSES) is expected


@pytest.mark.parametrize("modes", [["ReadWriteOnce"], ["ReadWriteMany"], ["ReadOnlyMany", "ReadWriteOnce"]])
def test_a_folder_serves_these_access_modes(modes: list[str]) -> None:
    assert refusal(claim(accessModes=modes)) is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"accessModes": ["ReadWriteOncePod"]}, "accessModes: ReadWriteOncePod"),
        ({"volumeMode": "Block"}, "volumeMode: Block"),
        ({"selector": {"matchLabels": {"a": "b"}}}, "selector"),
        ({"dataSource": {"kind": "VolumeSnapshot", "name": "s"}}, "dataSource"),
        ({"dataSourceRef": {"kind": "VolumeSnapshot", "name": "s"}}, "dataSourceRef"),
    ],
)
def test_what_a_folder_cannot_do_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    message = refusal(claim(**given))
    assert message is not None
    assert message.startswith(named)
    event = refusal_event(claim(**given), message, datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC))
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "ProvisioningFailed", message)
    assert event["involvedObject"]["uid"] == UID


def test_volume_can_only_be_bound_by_its_claim() -> None:
    assert volume_for(claim("local-retain", NODE, accessModes=["ReadWriteMany"]), CLASSES["local-retain"], Path("/volumes")) == {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"pvc-{UID}", "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER}},
        "spec": {
            "capacity": {"storage": "2Gi"},
            "accessModes": ["ReadWriteMany"],
            "volumeMode": "Filesystem",
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "local-retain",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "team", "name": "data", "uid": UID},
            "hostPath": {"path": "/volumes/team-data-01234567", "type": "Directory"},
        },
    }


@pytest.mark.parametrize(
    ("storage_class", "phase", "expected"),
    [("local", "Released", True), ("local", "Bound", False), ("local", "Available", False), ("local-retain", "Released", False)],
)
def test_files_go_when_the_claim_is_gone_and_the_class_says_delete(storage_class: str, phase: str, expected: bool) -> None:
    volume = volume_for(claim(storage_class, NODE), CLASSES[storage_class], Path("/volumes"))
    assert is_to_delete(volume | {"status": {"phase": phase}}) is expected


def test_volumes_of_others_are_left_alone() -> None:
    volume = volume_for(claim(), CLASSES["local"], Path("/volumes"))
    volume["metadata"]["annotations"] = {}
    assert not is_to_delete(volume | {"status": {"phase": "Released"}})


def test_one_class_is_the_default_and_waits_for_a_pod() -> None:
    defaults = [item for item in storage_classes() if item["metadata"]["annotations"]]
    assert [(item["metadata"]["name"], item["volumeBindingMode"]) for item in defaults] == [("local", "WaitForFirstConsumer")]
