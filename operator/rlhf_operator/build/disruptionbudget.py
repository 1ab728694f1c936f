"""What keeps a drain of its node from evicting a job's head: with it the Ray cluster and the attempt would go."""

from __future__ import annotations

from rlhf_api.spec import RLHFJob
from rlhf_operator import names
from rlhf_operator.build.metadata import Object, metadata, uid_of
from rlhf_operator.settings import OperatorSettings


def disruption_budget(job: RLHFJob, settings: OperatorSettings) -> Object | None:
    """None where jobs do without (``settings.head_disruption_budget``).

    Kubernetes counts maxUnavailable through a controller with a scale subresource, which a RayCluster is not, so the head is counted from
    below. One that is not ready trains nothing and may be evicted.
    """
    if not settings.head_disruption_budget:
        return None
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(job, names.disruption_budget(job.metadata.name)),
        "spec": {
            "minAvailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": {names.JOB_UID_LABEL: uid_of(job), names.NODE_TYPE_LABEL: names.HEAD_NODE}},
        },
    }
