"""Volumes of every pod, and where they are mounted."""

from __future__ import annotations

from rlhf_api.owned import VOLUME_PREFIX
from rlhf_api.spec import RLHFJob
from rlhf_api.spec.cluster import HF_CACHE
from rlhf_operator import names
from rlhf_operator.build.claim import claim_name
from rlhf_operator.build.metadata import Object

JOB, FILES, CHECKPOINTS, SHM, HOME = (f"{VOLUME_PREFIX}{name}" for name in ("job", "files", "checkpoints", "shm", "home"))


def volumes(job: RLHFJob) -> list[Object]:
    cluster = job.spec.cluster
    shm: Object = {"medium": "Memory"}
    if cluster.shm_size is not None:
        shm["sizeLimit"] = cluster.shm_size
    found: list[Object] = [
        {"name": JOB, "configMap": {"name": names.config_map(job.metadata.name)}},
        {"name": CHECKPOINTS, "persistentVolumeClaim": {"claimName": claim_name(job)}},
        {"name": SHM, "emptyDir": shm},
        {"name": HOME, "emptyDir": {}},
        {"name": FILES, **_files(job)},
    ]
    found += [_claim_volume(volume.name, volume.existing_claim, volume.read_only) for volume in cluster.volumes]
    return found


def mounts(job: RLHFJob) -> list[Object]:
    """The job is mounted as one file: a folder mount could not hold the one of ``files``, since both are read-only."""
    found: list[Object] = [
        {"name": JOB, "mountPath": names.CONFIG_PATH, "subPath": names.CONFIG_KEY, "readOnly": True},
        {"name": CHECKPOINTS, "mountPath": names.CHECKPOINTS_DIR},
        {"name": SHM, "mountPath": names.SHM_DIR},
        {"name": HOME, "mountPath": names.HOME_DIR},
        {"name": FILES, "mountPath": names.FILES_DIR, "readOnly": True},
    ]
    for volume in job.spec.cluster.volumes:
        mount: Object = {"name": volume.name, "mountPath": volume.mount_path}
        found.append({**mount, "readOnly": True} if volume.read_only else mount)
    return found


def hugging_face_home(job: RLHFJob) -> str | None:
    """Mount path of the volume that is called ``hf-cache``."""
    return next((volume.mount_path for volume in job.spec.cluster.volumes if volume.name == HF_CACHE), None)


def _files(job: RLHFJob) -> Object:
    """An empty folder without files: the entry point names it in any case."""
    files = job.spec.cluster.files
    if files is None:
        return {"emptyDir": {}}
    source: Object = {"name": files.config_map}
    if files.items:
        source["items"] = [{"key": item.key, "path": item.path} for item in files.items]
    return {"configMap": source}


def _claim_volume(name: str, claim: str, read_only: bool) -> Object:
    source: Object = {"claimName": claim}
    return {"name": name, "persistentVolumeClaim": {**source, "readOnly": True} if read_only else source}
