"""Roles, process groups and devices of the placement plan."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.plan import plan, roles_of
from rlhf_api.resolve import derive, resolve
from rlhf_api.spec import RLHFJob


def job(algorithm: str = "ppo", placement: dict[str, Any] | None = None, **spec: Any) -> RLHFJob:
    raw = {
        "apiVersion": "rlhf.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": "plan"},
        "spec": {
            "rl": {"algorithm": algorithm, "reward": {"sources": [{"model": "reward"}]}},
            "models": {"actor": {"path": "a"}, "reward": {"path": "r"}},
            "data": {"datasets": [{"path": "d.jsonl"}]},
            "placement": placement or {},
            **spec,
        },
    }
    return derive(RLHFJob.model_validate(resolve(raw)))


def test_colocate_all_is_one_group_that_shares_every_device_with_the_engines() -> None:
    result = plan(job(placement={"actor": {"nodes": 2, "gpusPerNode": 4}, "rollout": {"engines": 4, "tensorParallel": 2}}))
    (pool,) = result.pools
    (group,) = result.groups
    assert (pool.devices, pool.shared, result.devices) == (8, True, 8)
    assert group.roles == ("actor", "reference", "critic", "reward")
    assert (group.ranks, group.ranks_per_node) == (8, 4)
    assert (result.engine_pool, result.engines, result.tensor_parallel) == ("all", 4, 2)


@pytest.mark.parametrize(
    ("colocate", "groups", "devices"),
    [
        ("none", [("actor",), ("reference",), ("critic",), ("reward",)], 5),
        ("actorReference", [("actor", "reference"), ("critic",), ("reward",)], 4),
        ("criticReward", [("actor",), ("reference",), ("critic", "reward")], 4),
        (["actorReference", "criticReward"], [("actor", "reference"), ("critic", "reward")], 3),
    ],
)
def test_pairs_share_a_group_and_engines_stand_alone(colocate: Any, groups: list[tuple[str, ...]], devices: int) -> None:
    result = plan(job(placement={"colocate": colocate}))
    assert [group.roles for group in result.groups] == groups
    assert result.engine_pool == "rollout"
    assert result.devices == devices
    assert not any(pool.shared for pool in result.pools)


def test_a_pair_of_which_one_role_is_absent_is_no_pair() -> None:
    grpo = job("grpo", placement={"colocate": "criticReward"})
    assert roles_of(grpo) == ("actor", "reference", "reward")
    assert [group.roles for group in plan(grpo).groups] == [("actor",), ("reference",), ("reward",)]


def test_kl_off_loads_no_reference() -> None:
    assert "reference" not in roles_of(job("dr-grpo"))


def test_roles_without_a_size_of_their_own_take_the_actors() -> None:
    result = plan(job(placement={"colocate": "none", "actor": {"gpusPerNode": 2}, "critic": {"gpusPerNode": 4}}))
    assert {group.name: group.ranks for group in result.groups} == {"actor": 2, "reference": 2, "critic": 4, "reward": 2}
    assert result.group_of("critic").ranks == 4
