"""The checkpoint volume's claim, where the job asks for one."""

from __future__ import annotations

from rlhf_api.spec import RLHFJob
from rlhf_operator import names
from rlhf_operator.build.metadata import Object, metadata


def claim(job: RLHFJob) -> Object | None:
    """None where the volume exists already. One that is retained has no owner: it outlives its job, and a job of the same name finds it."""
    volume = job.spec.checkpoint.volume
    if volume is None or volume.create is None:
        return None
    create = volume.create
    spec: Object = {
        "accessModes": list(create.access_modes),
        "resources": {"requests": {"storage": create.size}},
    }
    if create.storage_class_name is not None:
        spec["storageClassName"] = create.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(job, names.checkpoint_claim(job.metadata.name), owned=not create.retain),
        "spec": spec,
    }


def claim_name(job: RLHFJob) -> str:
    """Claim that holds the checkpoints. Raises ValueError for a job without a volume, which the rules refuse on a cluster."""
    volume = job.spec.checkpoint.volume
    if volume is None:
        raise ValueError(f"RLHFJob {job.metadata.name} has no spec.checkpoint.volume")
    return volume.existing_claim or names.checkpoint_claim(job.metadata.name)
