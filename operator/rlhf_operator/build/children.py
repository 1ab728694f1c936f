"""Everything that a job owns, at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_api.spec import RLHFJob
from rlhf_operator.build.claim import claim
from rlhf_operator.build.configmap import config_map
from rlhf_operator.build.disruptionbudget import disruption_budget
from rlhf_operator.build.metadata import Object
from rlhf_operator.build.networkpolicy import network_policy
from rlhf_operator.build.raycluster import ray_cluster
from rlhf_operator.build.refusal import Refused
from rlhf_operator.build.token import token_secret
from rlhf_operator.settings import OperatorSettings


@dataclass(frozen=True, slots=True)
class Children:
    config_map: Object
    token_secret: Object
    claim: Object | None
    """None where the checkpoint volume exists already."""
    network_policy: Object | None
    """None where the job does without."""
    disruption_budget: Object | None
    """None where the operator's settings do without."""
    ray_cluster: Object | Refused

    @property
    def objects(self) -> tuple[Object, ...]:
        """All that can be created, in the order in which they are needed."""
        found = (self.config_map, self.token_secret, self.claim, self.network_policy, self.disruption_budget, self.ray_cluster)
        return tuple(each for each in found if each is not None and not isinstance(each, Refused))


def children(job: RLHFJob, settings: OperatorSettings, avoid_nodes: Sequence[str] = ()) -> Children:
    """``job`` has passed the rules, with derived defaults filled in, and carries the API server's UID and namespace."""
    return Children(
        config_map=config_map(job),
        token_secret=token_secret(job, settings.token_key),
        claim=claim(job),
        network_policy=network_policy(job, settings),
        disruption_budget=disruption_budget(job, settings),
        ray_cluster=ray_cluster(job, settings, avoid_nodes),
    )
