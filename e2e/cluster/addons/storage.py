"""Volumes for claims, as folders of this machine: `python -m e2e.cluster.addons.storage --kubeconfig FILE --folder FOLDER`.

Three StorageClasses. The default, `local`, waits for the first pod, like the default class of the large clouds: an operator that waits
for a bound claim before it makes its pods then hangs here as it would there. `local-immediate` binds at once, like most shared file
systems. `local-retain` keeps volume and files when the claim goes.

A volume is a folder that everyone may write (mode 0777), because the kubelet does not apply `fsGroup` to hostPath volumes. Its size is
not enforced.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.cluster.addons.watching import CONNECTION_ERRORS, Api, ApiError, Copy, Object, settle

PROVISIONER = "rlhf.dev/local-folder"
DEFAULT_CLASS = "local"
CLAIMS = "/api/v1/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
ACCESS_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany")
LOOK_AGAIN_SECONDS = 5.0
_PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
_SELECTED_NODE = "volume.kubernetes.io/selected-node"


def storage_classes() -> list[Object]:
    """The three classes; see the module's text."""

    def one(name: str, reclaim: str, binding: str, default: bool = False) -> Object:
        return {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}},
            "provisioner": PROVISIONER,
            "reclaimPolicy": reclaim,
            "volumeBindingMode": binding,
            "allowVolumeExpansion": False,
        }

    return [
        one(DEFAULT_CLASS, "Delete", "WaitForFirstConsumer", default=True),
        one("local-immediate", "Delete", "Immediate"),
        one("local-retain", "Retain", "WaitForFirstConsumer"),
    ]


def is_due(claim: Object, classes: Mapping[str, Object]) -> bool:
    """Whether the claim waits for a volume of ours now."""
    spec = claim["spec"]
    storage_class = classes.get(spec.get("storageClassName", ""))
    if storage_class is None or storage_class["provisioner"] != PROVISIONER or spec.get("volumeName"):
        return False
    if claim["metadata"].get("deletionTimestamp"):
        return False
    waits = storage_class.get("volumeBindingMode") == "WaitForFirstConsumer"
    return not waits or _SELECTED_NODE in claim["metadata"].get("annotations", {})


def refusal(claim: Object) -> str | None:
    """Why a claim that is due gets no volume, for people; None when it gets one."""
    spec = claim["spec"]
    if unknown := [mode for mode in spec["accessModes"] if mode not in ACCESS_MODES]:
        return f"accessModes: {', '.join(unknown)}: a folder of the node cannot keep that; possible are {', '.join(ACCESS_MODES)}"
    if spec.get("volumeMode", "Filesystem") != "Filesystem":
        return f"volumeMode: {spec['volumeMode']}: volumes here are folders; use Filesystem"
    if spec.get("selector"):
        return "selector: volumes are made anew for each claim and carry no labels to select by; leave the selector out"
    for source in ("dataSource", "dataSourceRef"):
        if spec.get(source):
            return f"{source}: copies and snapshots are not made here; start from an empty volume"
    return None


def volume_for(claim: Object, storage_class: Object, folder: Path) -> Object:
    """The PersistentVolume for a claim: a hostPath that only this claim can bind."""
    metadata = claim["metadata"]
    name = f"pvc-{metadata['uid']}"
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {_PROVISIONED_BY: PROVISIONER}},
        "spec": {
            "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
            "accessModes": claim["spec"]["accessModes"],
            "volumeMode": "Filesystem",
            "persistentVolumeReclaimPolicy": storage_class["reclaimPolicy"],
            "storageClassName": storage_class["metadata"]["name"],
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "hostPath": {"path": str(folder / f"{metadata['namespace']}-{metadata['name']}-{metadata['uid'][:8]}"), "type": "Directory"},
        },
    }


def is_to_delete(volume: Object) -> bool:
    """Whether the volume is ours, its claim is gone, and its policy says that the files go too."""
    return (
        volume["metadata"].get("annotations", {}).get(_PROVISIONED_BY) == PROVISIONER
        and volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
        and volume.get("status", {}).get("phase") == "Released"
        and not volume["metadata"].get("deletionTimestamp")
    )


def refusal_event(claim: Object, message: str, now: datetime.datetime) -> Object:
    """What `kubectl describe pvc` shows; one per claim and text, so that saying it again changes nothing."""
    metadata = claim["metadata"]
    moment = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{metadata['uid'][:8]}.refused", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": "Warning",
        "reason": "ProvisioningFailed",
        "message": message,
        "count": 1,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "source": {"component": PROVISIONER},
        "reportingComponent": PROVISIONER,
    }


class Provisioner:
    """Makes what is due and removes what is to go; every pass looks at everything anew, so a missed event costs only time."""

    def __init__(self, api: Api, folder: Path) -> None:
        self.api = api
        self.folder = folder
        self.changed = asyncio.Event()
        self.claims = Copy(api, CLAIMS, self.changed.set)
        self.volumes = Copy(api, VOLUMES, self.changed.set)
        self.classes = Copy(api, CLASSES, self.changed.set)

    async def run(self) -> None:
        """Runs for ever."""
        await asyncio.gather(self.claims.follow(), self.volumes.follow(), self.classes.follow(), self._passes())

    async def _passes(self) -> None:
        installed = False
        while True:
            try:
                if not installed:
                    for storage_class in storage_classes():
                        await self._create(CLASSES, storage_class)
                    installed = True
                if self.claims.complete and self.volumes.complete and self.classes.complete:
                    await self._pass()
            except (ApiError, *CONNECTION_ERRORS) as error:
                print(f"{type(error).__name__}: {error}; again soon", flush=True)
            await settle(self.changed, LOOK_AGAIN_SECONDS)

    async def _pass(self) -> None:
        classes = {name: item for (_, name), item in self.classes.objects.items()}
        for claim in list(self.claims.objects.values()):
            if is_due(claim, classes):
                await self._provision(claim, classes[claim["spec"]["storageClassName"]])
        for volume in list(self.volumes.objects.values()):
            if is_to_delete(volume):
                await self._delete(volume)

    async def _provision(self, claim: Object, storage_class: Object) -> None:
        if message := refusal(claim):
            event = refusal_event(claim, message, datetime.datetime.now(datetime.UTC))
            await self._create(f"/api/v1/namespaces/{claim['metadata']['namespace']}/events", event)
            return
        volume = volume_for(claim, storage_class, self.folder)
        if ("", volume["metadata"]["name"]) in self.volumes.objects:
            return
        path = Path(volume["spec"]["hostPath"]["path"])
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o777)
        if await self._create(VOLUMES, volume):
            print(f"{claim['metadata']['namespace']}/{claim['metadata']['name']}: {path}", flush=True)

    async def _delete(self, volume: Object) -> None:
        name, path = volume["metadata"]["name"], Path(volume["spec"]["hostPath"]["path"])
        if path.parent == self.folder and path.exists():
            await asyncio.to_thread(shutil.rmtree, path)
        try:
            await self.api.call("DELETE", f"{VOLUMES}/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
        print(f"{name}: deleted with {path}", flush=True)

    async def _create(self, path: str, body: dict[str, Any]) -> bool:
        """Creates; False when it was there already."""
        try:
            await self.api.call("POST", path, body)
        except ApiError as error:
            if error.status != 409:
                raise
            return False
        return True


async def serve(kubeconfig: Path, folder: Path) -> None:
    """Runs for ever."""
    async with Api(kubeconfig) as api:
        await Provisioner(api, folder).run()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="where the volumes' folders are made")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.kubeconfig, arguments.folder))


if __name__ == "__main__":
    main()
