"""The resolved job, as the trainer reads it on a cluster."""

from __future__ import annotations

from rlhf_api.clusterplan import for_cluster
from rlhf_api.resolve import to_yaml
from rlhf_api.spec import Metadata, RLHFJob
from rlhf_operator import names
from rlhf_operator.build.metadata import Object, metadata, uid_of


def on_cluster(job: RLHFJob) -> RLHFJob:
    """``job`` as it runs in pods: on GPUs unless it says cpu, with its folder on the checkpoint volume.

    Labels and annotations stay behind: they change without a new generation, and kubectl keeps whole manifests there.
    """
    spec = for_cluster(job).spec
    placed = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"path": names.CHECKPOINTS_DIR})})
    identity = Metadata(name=job.metadata.name, namespace=job.metadata.namespace, uid=uid_of(job), labels={}, annotations={})
    return job.model_copy(update={"spec": placed, "metadata": identity})


def config_map(job: RLHFJob) -> Object:
    """Immutable: a job's spec does not change, and a running trainer must not see another one."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, names.config_map(job.metadata.name)),
        "immutable": True,
        "data": {names.CONFIG_KEY: to_yaml(on_cluster(job))},
    }
