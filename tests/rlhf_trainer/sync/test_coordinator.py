"""The order of calls and what fails how, over Ray with engines that are plain dictionaries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray
import torch
from sync_fakes import TensorEngine, TensorWorker

from rlhf_trainer.errors import RetryError
from rlhf_trainer.sync.coordinator import WeightSync

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("sync_ray")]


@pytest.fixture(scope="module")
def workers(sync_ray: None) -> Iterator[list[Any]]:
    actors = [ray.remote(num_cpus=0)(TensorWorker).remote() for _ in range(2)]
    ray.get([actor.weight_metadata.remote("actor") for actor in actors], timeout=300)
    yield actors
    for actor in actors:
        ray.kill(actor)


@pytest.fixture(scope="module")
def engine_pair(sync_ray: None) -> Iterator[list[Any]]:
    actors = [ray.remote(num_cpus=0)(TensorEngine).remote() for _ in range(2)]
    yield actors
    for actor in actors:
        ray.kill(actor)


@pytest.fixture
def engines(engine_pair: list[Any]) -> list[Any]:
    ray.get([engine.reset.remote() for engine in engine_pair], timeout=300)
    return engine_pair


def connected(workers: list[Any], engines: list[Any], timeout_seconds: float = 60) -> WeightSync:
    sync = WeightSync(workers, engines, backend="shm", timeout_seconds=timeout_seconds)
    sync.connect()
    return sync


def test_every_engine_gets_every_tensor_under_the_new_version(workers: list[Any], engines: list[Any]) -> None:
    sync = connected(workers, engines)
    for version in (1, 2):
        expected, _ = ray.get([worker.train.remote() for worker in workers])
        stats = sync.push(version)
        for calls, held, held_version in ray.get([one.recorded.remote() for one in engines]):
            assert held_version == version
            assert held.keys() == expected.keys()
            assert all(torch.equal(held[name], expected[name]) for name in expected)
            assert calls == ["init"] + (["start"] + ["update"] * 5 + ["finish"]) * version
        assert (stats.buckets, stats.tensors, len(stats.checked)) == (5, 5, 4)
        assert stats.bytes == sum(tensor.nbytes for tensor in expected.values())


@pytest.mark.parametrize("stage", ["start", "update", "finish"])
def test_failure_names_engine_version_and_cause(workers: list[Any], engines: list[Any], stage: str) -> None:
    sync = connected(workers, engines)
    ray.get(engines[1].reset.remote(fails_at=stage))
    with pytest.raises(
        RetryError, match=rf"version 7 .*, {'bucket 0' if stage == 'update' else stage}: engine 1 failed: OSError: device lost"
    ):
        sync.push(7)


def test_a_sync_after_a_failed_one_is_whole(workers: list[Any], engines: list[Any]) -> None:
    sync = connected(workers, engines)
    ray.get(engines[0].reset.remote(fails_at="update"))
    with pytest.raises(RetryError):
        sync.push(1)
    ray.get([engine.reset.remote() for engine in engines])
    stats = sync.push(2)
    assert [len(ray.get(engine.recorded.remote())[1]) for engine in engines] == [stats.tensors] * 2


def test_hung_and_lost_engines_are_named(workers: list[Any], engines: list[Any]) -> None:
    """Last: it takes engines out of use."""
    sync = connected(workers, engines)
    ray.get(engines[0].reset.remote(hangs_at="update"))
    sync.timeout_seconds = 2.0
    with pytest.raises(RetryError, match=r"version 7 \(limit 2 s\), bucket 0: no answer in time from engine 0$"):
        sync.push(7)
    sync.timeout_seconds = 60.0
    ray.kill(engines[1])
    with pytest.raises(RetryError, match="lost engine 1"):
        sync.push(8)
