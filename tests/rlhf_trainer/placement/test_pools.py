"""What a pool asks Ray for, and what is said when it cannot be had."""

from __future__ import annotations

from rlhf_api.plan import GroupPlan, PlacementPlan, PoolPlan
from rlhf_trainer.placement import pools

SEPARATE = PlacementPlan(
    pools=(PoolPlan("actor", 4), PoolPlan("rollout", 2)),
    groups=(GroupPlan("actor", ("actor",), 1, 4),),
    engine_pool="rollout",
    engines=2,
    tensor_parallel=1,
)


def test_every_device_is_a_bundle_of_its_own() -> None:
    assert pools.bundles(PoolPlan("all", 2, shared=True), "gpu") == [{"CPU": 1.0, "GPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}]
    assert pools.bundles(PoolPlan("all", 1), "cpu") == [{"CPU": 1.0}]


def test_a_shared_device_is_split_in_halves() -> None:
    assert pools.resources(PoolPlan("all", 2, shared=True), "gpu") == {"num_cpus": 0.5, "num_gpus": 0.5}
    assert pools.resources(PoolPlan("actor", 2), "gpu") == {"num_cpus": 1.0, "num_gpus": 1.0}
    assert pools.resources(PoolPlan("all", 2, shared=True), "cpu") == {"num_cpus": 0.5}


def test_a_shortage_names_what_is_needed_what_is_there_and_what_would_help() -> None:
    message = pools.shortage(SEPARATE, "gpu", {"GPU": 4.0, "CPU": 64.0}, [{"GPU": 4.0}])
    assert message is not None
    for part in ("needs 6 GPUs", "actor 4, rollout 2", "there are 4", "node 1: 4", "colocate: all"):
        assert part in message


def test_enough_devices_are_no_shortage() -> None:
    assert pools.shortage(SEPARATE, "gpu", {"GPU": 6.0}, [{"GPU": 6.0}]) is None
    assert pools.shortage(SEPARATE, "cpu", {"CPU": 6.0}, []) is None


def test_a_shortage_of_cpus_offers_to_share_cores() -> None:
    assert "--cpus" in str(pools.shortage(SEPARATE, "cpu", {"CPU": 2.0}, [{"CPU": 2.0}]))
