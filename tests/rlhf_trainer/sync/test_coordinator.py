"""The order of calls and what fails how, over Ray with engines that are plain dictionaries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from sync_fakes import HfWorker, TensorEngine

from rlhf_trainer.errors import RetryError
from rlhf_trainer.models import tiny
from rlhf_trainer.sync.coordinator import WeightSync

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("sync_ray")]


@pytest.fixture(scope="module")
def workers(sync_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    folder: Path = tiny.make(tmp_path_factory.mktemp("sync") / "model", layers=2)
    actors = [ray.remote(num_cpus=0)(HfWorker).remote(str(folder)) for _ in range(2)]
    yield actors
    for actor in actors:
        ray.kill(actor)


def engine(**faults: str) -> Any:
    return ray.remote(num_cpus=0)(TensorEngine).remote(**faults)


def connected(workers: list[Any], engines: list[Any], timeout_seconds: float = 60) -> WeightSync:
    sync = WeightSync(workers, engines, backend="shm", timeout_seconds=timeout_seconds, bucket_bytes=256 << 10)
    sync.connect()
    return sync


def test_every_engine_gets_every_tensor_under_the_new_version(workers: list[Any]) -> None:
    engines = [engine(), engine()]
    sync = connected(workers, engines)
    for version in (1, 2):
        stats = sync.push(version)
        expected = {name: tensor for bucket in ray.get(workers[0].call.remote(all_buckets)) for name, tensor in bucket}
        for calls, held, held_version in ray.get([one.recorded.remote() for one in engines]):
            assert held_version == version
            assert held.keys() == expected.keys()
            assert all(torch.equal(held[name], expected[name]) for name in expected)
            assert calls == ["init"] + (["start"] + ["update"] * stats.buckets + ["finish"]) * version
        assert stats.buckets > 3
        assert stats.bytes == sum(tensor.nbytes for tensor in expected.values())
        assert len(stats.checked) == 4
        ray.get([worker.train.remote(version) for worker in workers])


@pytest.mark.parametrize("stage", ["start", "update", "finish"])
def test_failure_names_engine_version_and_cause(workers: list[Any], stage: str) -> None:
    sync = connected(workers, [engine(), engine(fails_at=stage)])
    with pytest.raises(
        RetryError, match=rf"version 7 .*, {'bucket 0' if stage == 'update' else stage}: engine 1 failed: OSError: device lost"
    ):
        sync.push(7)


def test_hang_ends_at_the_deadline_and_names_who_is_late(workers: list[Any]) -> None:
    sync = connected(workers, [engine(hangs_at="update"), engine()])
    sync.timeout_seconds = 2.0
    with pytest.raises(RetryError, match=r"version 7 \(limit 2 s\), bucket 0: no answer in time from engine 0$"):
        sync.push(7)


def test_lost_engine_is_named(workers: list[Any]) -> None:
    gone = engine()
    sync = connected(workers, [engine(), gone])
    ray.kill(gone)
    with pytest.raises(RetryError, match="lost engine 1"):
        sync.push(7)


def test_a_sync_after_a_failed_one_is_whole(workers: list[Any]) -> None:
    with pytest.raises(RetryError):
        connected(workers, [engine(fails_at="update")]).push(1)
    healthy = engine()
    stats = connected(workers, [healthy]).push(2)
    assert len(ray.get(healthy.recorded.remote())[1]) == stats.tensors


def all_buckets(worker: HfWorker) -> list[list[tuple[str, torch.Tensor]]]:
    return list(worker.iter_buckets("actor", 1 << 30))
