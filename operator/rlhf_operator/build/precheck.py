"""What ``rlhf validate --cluster`` can know of the builders' refusals, without a cluster and without an operator's settings."""

from __future__ import annotations

from rlhf_api.spec import RLHFJob
from rlhf_api.violations import Violation
from rlhf_operator.build.raycluster import ray_cluster
from rlhf_operator.build.refusal import Refused
from rlhf_operator.settings import TOKEN_KEY_MIN_BYTES, OperatorSettings

_SETTINGS = OperatorSettings(
    namespace="default", pod_name="-", default_image="-", default_ray_version="0.0.0", token_key=bytes(TOKEN_KEY_MIN_BYTES)
)
"""Nothing that a refusal says comes from settings."""


def refusals(job: RLHFJob) -> list[Violation]:
    """Where the pod overlay of ``job`` (which has passed the rules of clusters) fights the operator or KubeRay, in the operator's words."""
    stored = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": job.metadata.uid or "none"})})
    built = ray_cluster(stored, _SETTINGS)
    return list(built.violations) if isinstance(built, Refused) else []
