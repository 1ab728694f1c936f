"""Volumes, checkpoints and files of a job on a cluster."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from rlhf_api import quantity
from rlhf_api.clusterplan import worker_pods
from rlhf_api.owned import MOUNT_PATHS, SYSTEM_PATHS, VOLUME_NAMES, VOLUME_PREFIX, is_owned_volume, is_within, taken_path
from rlhf_api.resolve import DATA_SUFFIXES
from rlhf_api.rules.data import CONTROL
from rlhf_api.rules.registry import Cel, Finding, rule
from rlhf_api.spec import DatasetSpec, FilesSpec, JobSpec

_VOLUMES = "!has(self.cluster.volumes) || self.cluster.volumes"
_TAKEN = [*MOUNT_PATHS, *SYSTEM_PATHS]
_FILE_NAME_BYTES = 255
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_ITEMS = "!has(self.cluster.files) || !has(self.cluster.files.items) || self.cluster.files.items"


@rule(
    "volumes-differ",
    "cluster.volumes have different names, and folders of which none is another or lies in another",
    cel=Cel(
        f"{_VOLUMES}.all(v, self.cluster.volumes.exists_one(w, w.name == v.name) "
        "&& self.cluster.volumes.exists_one(w, (w.mountPath + '/').startsWith(v.mountPath + '/')))",
        "cluster.volumes",
    ),
)
def volumes_differ(spec: JobSpec) -> Iterator[Finding]:
    volumes = spec.cluster.volumes
    for index, volume in enumerate(volumes):
        before = volumes[:index]
        if volume.name in [other.name for other in before]:
            yield Finding(f"cluster.volumes[{index}].name", volume.name, f"name: {volume.name}-{index + 1}")
        path = volume.mount_path
        other = next((each for each in before if is_within(path, each.mount_path) or is_within(each.mount_path, path)), None)
        if other is not None:
            detail = f"{other.name} has {other.mount_path}"
            yield Finding(f"cluster.volumes[{index}].mountPath", path, f"mountPath: /mnt/{volume.name}", detail)


@rule(
    "volumes-are-free",
    f"cluster.volumes take neither a name that begins with {VOLUME_PREFIX} or is {' or '.join(sorted(VOLUME_NAMES))}, nor a folder that "
    f"hides or lies in {', '.join(_TAKEN)}",
    cel=Cel(
        f"{_VOLUMES}.all(v, !v.name.startsWith('{VOLUME_PREFIX}') && !(v.name in {sorted(VOLUME_NAMES)}) "
        f"&& {_TAKEN}.all(p, v.mountPath != p && !v.mountPath.startsWith(p + '/') && !p.startsWith(v.mountPath + '/')))",
        "cluster.volumes",
    ),
)
def volumes_are_free(spec: JobSpec) -> Iterator[Finding]:
    for index, volume in enumerate(spec.cluster.volumes):
        if is_owned_volume(volume.name):
            plain = volume.name.removeprefix(VOLUME_PREFIX)
            nearest = f"name: {plain if plain and plain != volume.name else 'my-' + volume.name}"
            yield Finding(f"cluster.volumes[{index}].name", volume.name, nearest)
        path = volume.mount_path
        taken = taken_path(path)
        if taken is not None:
            detail = f"{taken} is taken" if path != taken else None
            yield Finding(f"cluster.volumes[{index}].mountPath", path, f"mountPath: /mnt/{volume.name}", detail)


@rule(
    "checkpoint-volume-is-one",
    "checkpoint.volume has exactly one of existingClaim and create",
    cel=Cel(
        "!has(self.checkpoint.volume) || has(self.checkpoint.volume.existingClaim) != has(self.checkpoint.volume.create)",
        "checkpoint.volume",
    ),
)
def checkpoint_volume_is_one(spec: JobSpec) -> Iterator[Finding]:
    volume = spec.checkpoint.volume
    if volume is None:
        return
    has_claim, has_create = volume.existing_claim is not None, volume.create is not None
    if has_claim == has_create:
        yield Finding("checkpoint.volume", "both" if has_claim else "neither", "{create: {size: 100Gi}}, or {existingClaim: NAME}")


@rule("claim-size-is-whole", "checkpoint.volume.create.size is a whole number of bytes below 2^63")
def claim_size_is_whole(spec: JobSpec) -> Iterator[Finding]:
    create = spec.checkpoint.volume.create if spec.checkpoint.volume is not None else None
    if create is None:
        return
    size = quantity.parse(create.size)
    if size != size.to_integral_value() or size >= 2**63:
        yield Finding("checkpoint.volume.create.size", create.size, "size: 100Gi")


@rule(
    "checkpoint-volume-is-there",
    "on a cluster a job needs checkpoint.volume: pods come and go, their own disks with them",
    cel=Cel("has(self.checkpoint.volume)", "checkpoint.volume"),
    cluster=True,
)
def checkpoint_volume_is_there(spec: JobSpec) -> Iterator[Finding]:
    if spec.checkpoint.volume is None:
        yield Finding("checkpoint.volume", None, "volume: {create: {size: 100Gi}}, or {existingClaim: NAME}")


@rule(
    "checkpoint-volume-is-shared",
    "every worker pod writes checkpoints, so a volume that one node alone can mount (no ReadWriteMany) needs a job of one worker pod",
)
def checkpoint_volume_is_shared(spec: JobSpec) -> Iterator[Finding]:
    volume = spec.checkpoint.volume
    create = volume.create if volume is not None else None
    if create is None or "ReadWriteMany" in create.access_modes:
        return
    pods = worker_pods(spec)
    if pods > 1:
        yield Finding("checkpoint.volume.create.accessModes", list(create.access_modes), "[ReadWriteMany]", f"{pods} worker pods here")


@rule(
    "file-items-differ",
    "cluster.files.items put each file at a path of its own, below the folder",
    cel=Cel(
        f"{_ITEMS}.all(i, self.cluster.files.items.exists_one(j, j.path == i.path) && !i.path.matches('(^|/)[.]{{1,2}}(/|$)'))",
        "cluster.files.items",
    ),
)
def file_items_differ(spec: JobSpec) -> Iterator[Finding]:
    files = spec.cluster.files
    if files is None:
        return
    paths = [item.path for item in files.items]
    for index, item in enumerate(files.items):
        parts = item.path.split("/")
        field, nearest = f"cluster.files.items[{index}].path", f"path: {item.key}"
        if item.path in paths[:index] or {".", ".."} & set(parts):
            yield Finding(field, item.path, nearest)
        elif any(path.startswith(f"{item.path}/") for path in paths):
            yield Finding(field, item.path, f"path: {item.path}-file", "another item makes it a folder")
        elif CONTROL.search(item.path) or any(len(part.encode()) > _FILE_NAME_BYTES for part in parts):
            yield Finding(field, item.path, nearest, f"a file name has at most {_FILE_NAME_BYTES} bytes and no control characters")


@rule(
    "relative-paths-need-files",
    "on a cluster relative paths refer to the files of cluster.files: the paths of its items or, without items, the keys of its ConfigMap",
    cluster=True,
)
def relative_paths_need_files(spec: JobSpec) -> Iterator[Finding]:
    files = spec.cluster.files
    for field, path, is_file in _relative_paths(spec):
        plain = posixpath.normpath(path)
        if plain.split("/")[0] == "..":
            continue  # relative-paths-stay-below tells it
        if files is None:
            nearest = "files: {configMap: NAME} (`rlhf files FILE` prints the ConfigMap), or a path on one of cluster.volumes"
            yield Finding(field, path, nearest, "cluster.files is absent here")
        elif not _holds(files, plain, is_file=is_file):
            item = plain if is_file else f"{plain}/NAME"
            nearest = f"items: [{{key: KEY, path: {item}}}] (`rlhf files FILE` prints them), or a path on one of cluster.volumes"
            yield Finding(field, path, nearest, "no item leads there" if files.items else "a key is a plain file name")


def _relative_paths(spec: JobSpec) -> Iterator[tuple[str, str, bool]]:
    """Field, path, and whether a file stands there, not a folder. What may be a hub id is none."""
    for index, source in enumerate(spec.rl.reward.sources):
        if source.function is not None and not source.function.file.startswith("/"):
            yield f"rl.reward.sources[{index}].function.file", source.function.file, True
    datasets: list[tuple[str, DatasetSpec]] = [(f"data.datasets[{index}]", each) for index, each in enumerate(spec.data.datasets)]
    if spec.evaluation is not None:
        datasets += [(f"evaluation.datasets[{index}]", each) for index, each in enumerate(spec.evaluation.datasets)]
    for field, dataset in datasets:
        is_file = PurePosixPath(dataset.path).suffix in DATA_SUFFIXES
        if dataset.path.startswith(".") or (is_file and not dataset.path.startswith("/")):
            yield f"{field}.path", dataset.path, is_file
    models = spec.models
    told: set[str] = set()
    # A reference or critic that is not named starts from the actor's or reward model's path: told once.
    for role, model in (("actor", models.actor), ("reward", models.reward), ("reference", models.reference), ("critic", models.critic)):
        if model is not None and model.path.startswith(".") and model.path not in told:
            told.add(model.path)
            yield f"models.{role}.path", model.path, False


def _holds(files: FilesSpec, path: str, *, is_file: bool) -> bool:
    """Whether the folder of ``files`` can have ``path``, which is normal; which keys a ConfigMap has is not known here."""
    if path == ".":
        return not is_file
    if not files.items:
        return is_file and _KEY.fullmatch(path) is not None
    paths = [posixpath.normpath(item.path) for item in files.items]
    return path in paths if is_file else any(each.startswith(f"{path}/") for each in paths)
