"""Pure builders: a job and the operator's settings become Kubernetes objects."""

from rlhf_operator.build.children import Children, children
from rlhf_operator.build.claim import claim, claim_name
from rlhf_operator.build.configmap import config_map, on_cluster
from rlhf_operator.build.disruptionbudget import disruption_budget
from rlhf_operator.build.networkpolicy import network_policy
from rlhf_operator.build.raycluster import ray_cluster
from rlhf_operator.build.refusal import Refused
from rlhf_operator.build.token import token, token_of, token_secret

__all__ = [
    "Children",
    "Refused",
    "children",
    "claim",
    "claim_name",
    "config_map",
    "disruption_budget",
    "network_policy",
    "on_cluster",
    "ray_cluster",
    "token",
    "token_of",
    "token_secret",
]
