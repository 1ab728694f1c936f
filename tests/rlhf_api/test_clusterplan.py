"""Placement as pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.clusterplan import GROUPS_MAX, WorkerGroup, for_cluster, group_name, total_gpus, worker_groups, worker_pods
from rlhf_api.plan import plan
from rlhf_api.resolve import derive, resolve
from rlhf_api.spec import RLHFJob

Placement = Mapping[str, Any]


def job(placement: Placement, algorithm: str = "ppo") -> RLHFJob:
    raw = {
        "apiVersion": "rlhf.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": "pods"},
        "spec": {
            "rl": {"algorithm": algorithm, "reward": {"sources": [{"model": "reward"}]}},
            "models": {"actor": {"path": "a"}, "reward": {"path": "r"}},
            "data": {"datasets": [{"path": "d.jsonl"}]},
            "placement": dict(placement),
        },
    }
    return derive(RLHFJob.model_validate(resolve(raw)))


@dataclass(frozen=True)
class Case:
    name: str
    placement: Placement
    expected: list[tuple[str, int, int, int]]
    """Group, pods, GPUs and Ray CPUs of each."""


CASES = [
    Case(
        "all",
        {"actor": {"nodes": 2, "gpusPerNode": 8}, "rollout": {"engines": 8, "tensorParallel": 2}},
        [("workers", 2, 8, 8)],
    ),
    Case("all on CPU", {"accelerator": "cpu", "actor": {"gpusPerNode": 2}, "rollout": {"engines": 2}}, [("workers", 1, 0, 2)]),
    Case(
        "none",
        {
            "colocate": "none",
            "actor": {"nodes": 2, "gpusPerNode": 8},
            "critic": {"nodes": 1, "gpusPerNode": 8},
            "reward": {"nodes": 1, "gpusPerNode": 2},
            "rollout": {"engines": 4, "tensorParallel": 4},
        },
        [("actor", 2, 8, 8), ("reference", 2, 8, 8), ("critic", 1, 8, 8), ("reward", 1, 2, 2), ("rollout", 2, 8, 8)],
    ),
    Case(
        "none on CPU",
        {"accelerator": "cpu", "colocate": "none"},
        [("actor", 1, 0, 1), ("reference", 1, 0, 1), ("critic", 1, 0, 1), ("reward", 1, 0, 1), ("rollout", 1, 0, 1)],
    ),
    Case(
        "both pairs",
        {"colocate": ["actorReference", "criticReward"], "actor": {"gpusPerNode": 4}, "rollout": {"engines": 3, "tensorParallel": 2}},
        [("actor-reference", 1, 4, 4), ("critic-reward", 1, 4, 4), ("rollout", 3, 2, 2)],
    ),
    Case(
        "one pair, an engine larger than a worker's node",
        {"colocate": "actorReference", "actor": {"gpusPerNode": 2}, "rollout": {"engines": 2, "tensorParallel": 8}},
        [("actor-reference", 1, 2, 2), ("critic", 1, 2, 2), ("reward", 1, 2, 2), ("rollout", 2, 8, 8)],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_pool_is_one_group_of_equal_pods(case: Case) -> None:
    groups = worker_groups(job(case.placement))
    assert [(group.name, group.pods, group.gpus_per_pod, group.cpus_per_pod) for group in groups] == case.expected


def test_automatic_accelerator_is_gpu_on_a_cluster() -> None:
    auto, cpu = job({"colocate": "none"}), job({"accelerator": "cpu"})
    assert for_cluster(auto).spec.placement.accelerator == "gpu"
    assert for_cluster(cpu) is cpu
    assert (total_gpus(auto), worker_pods(auto.spec)) == (5, 5)
    assert (total_gpus(cpu), worker_pods(cpu.spec)) == (0, 1)


roles = st.fixed_dictionaries({"nodes": st.integers(1, 4), "gpusPerNode": st.integers(1, 8)})


@settings(max_examples=200)
@given(
    colocate=st.sampled_from(["none", "actorReference", "criticReward", ["actorReference", "criticReward"]]),
    actor=roles,
    critic=roles,
    rollout=st.fixed_dictionaries({"engines": st.integers(1, 12), "tensorParallel": st.integers(1, 8)}),
)
def test_pods_hold_exactly_the_bundles_of_their_pool(colocate: Any, actor: Any, critic: Any, rollout: Any) -> None:
    given_job = job({"colocate": colocate, "actor": actor, "critic": critic, "reward": critic, "rollout": rollout})
    groups, pools = worker_groups(given_job), plan(given_job).pools
    assert [group.pool for group in groups] == [pool.name for pool in pools]
    for group, pool in zip(groups, pools, strict=True):
        assert group.pods * group.gpus_per_pod == group.pods * group.cpus_per_pod == pool.devices
        assert group.gpus_per_pod % pool.bundle == 0
    assert_kuberay_takes(groups)


def assert_kuberay_takes(groups: tuple[WorkerGroup, ...]) -> None:
    names = [group.name for group in groups]
    assert len(set(names)) == len(names) <= GROUPS_MAX
    assert "head" not in names
    assert all(name.replace("-", "").isalpha() and name.islower() for name in names)


def test_group_names_keep_pools_apart() -> None:
    assert [group_name(pool) for pool in ("all", "actor+reference", "rollout")] == ["workers", "actor-reference", "rollout"]
