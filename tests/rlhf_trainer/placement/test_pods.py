"""The pods that the contract plans are the ones in which Ray places the pools: on a real Ray of several nodes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table, remove_placement_group

from rlhf_api.clusterplan import NODE_GROUP_LABEL, worker_groups
from rlhf_api.plan import PoolPlan, plan
from rlhf_api.resolve import derive, resolve
from rlhf_api.spec import RLHFJob
from rlhf_trainer.errors import RetryError
from rlhf_trainer.placement import pools

PLACEMENTS: dict[str, dict[str, Any]] = {
    "all": {"actor": {"nodes": 2, "gpusPerNode": 2}, "rollout": {"engines": 2, "tensorParallel": 2}},
    # The rollout's pod has room for the actor; an actor there would leave no two devices together for the second engine.
    "none": {
        "colocate": "none",
        "actor": {"gpusPerNode": 3},
        "reference": {"gpusPerNode": 1},
        "rollout": {"engines": 2, "tensorParallel": 2},
    },
}


def job(placement: dict[str, Any]) -> RLHFJob:
    raw = {
        "apiVersion": "rlhf.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": "pods"},
        "spec": {
            "rl": {"algorithm": "grpo", "reward": {"sources": [{"function": {"file": "reward.py"}}]}},
            "models": {"actor": {"path": "a"}},
            "data": {"datasets": [{"path": "d.jsonl"}]},
            "placement": {"accelerator": "cpu", **placement},
        },
    }
    return derive(RLHFJob.model_validate(resolve(raw)))


@pytest.fixture
def pods(request: pytest.FixtureRequest) -> Iterator[RLHFJob]:
    """A Ray cluster with the nodes that KubeRay would start for the job: the head offers nothing."""
    given = job(PLACEMENTS[request.param])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for group in worker_groups(given):
            for _ in range(group.pods):
                cluster.add_node(num_cpus=group.cpus_per_pod, labels={NODE_GROUP_LABEL: group.name})
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield given
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("pods", PLACEMENTS, indirect=True)
def test_every_pool_fits_the_pods_that_were_made_for_it(pods: RLHFJob) -> None:
    layout = plan(pods)
    reserved = pools.reserve(layout, "cpu", timeout_seconds=20)
    labels = {node["NodeID"]: node["Labels"][NODE_GROUP_LABEL] for node in ray.nodes() if node["Resources"].get("CPU")}
    for group in worker_groups(pods):
        nodes: dict[int, str] = placement_group_table(reserved[group.pool])["bundles_to_node_id"]
        assert {labels[node] for node in nodes.values()} == {group.name}
        assert len(set(nodes.values())) == group.pods
    assert pools.hosts() == sum(group.pods for group in worker_groups(pods))
    for reservation in reserved.values():
        remove_placement_group(reservation)


def test_a_pool_keeps_to_its_own_nodes_where_there_are_any() -> None:
    rollout = PoolPlan("rollout", 4, bundle=2)
    assert pools.own_nodes(rollout, ["headgroup", "actor", "rollout"]) == [{NODE_GROUP_LABEL: "rollout"}] * 2
    assert pools.own_nodes(rollout, ["", ""]) is None
    assert pools.own_nodes(PoolPlan("all", 1, shared=True), ["workers"]) == [{NODE_GROUP_LABEL: "workers"}]


@pytest.mark.slow
def test_devices_of_workers_that_join_late_are_waited_for_and_missing_ones_are_a_reason_to_retry() -> None:
    given = job(PLACEMENTS["none"])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        with pytest.raises(RetryError, match=r"needs 8 CPUs .*, there are 0 .*\n.*\n  Waited 1 s for worker pods to join Ray"):
            pools.await_devices(plan(given), "cpu", 1.0)
        with ThreadPoolExecutor(1) as executor:
            waiting = executor.submit(pools.await_devices, plan(given), "cpu", 60.0)
            cluster.add_node(num_cpus=8)
            waiting.result()
        assert ray.cluster_resources()["CPU"] == 8.0
    finally:
        ray.shutdown()
        cluster.shutdown()
