"""Trainer and a real vLLM engine, before and after syncs (fp32)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from engine_support import gap, make_model, perturb, requests_of, start_engine
from hf_worker import HfWorker, shift

from rlhf_api.spec import RLHFJob
from rlhf_trainer.placement.spawn import environment, free_port
from rlhf_trainer.sync.coordinator import WeightMismatchError, WeightSync
from rlhf_trainer.training.worker import ModelWorker, WorkerSettings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("sync_ray")]


def without_repack(engine: Any) -> None:
    """Fault: leave the prepacked copy of a tied head as it was."""
    from rlhf_trainer.sync import receiver

    receiver.repack_heads = lambda model: None


@pytest.mark.parametrize(
    ("family", "tied", "backend"), [("qwen2", True, "shm"), ("qwen2", False, "gloo"), ("llama", True, "gloo"), ("llama", False, "shm")]
)
def test_logprobs_agree_after_each_sync(tmp_path: Path, family: str, tied: bool, backend: str) -> None:
    model = make_model(tmp_path / "model", family, tied=tied)
    worker = ray.remote(num_cpus=0)(HfWorker).remote(str(tmp_path / "model"))
    ray.get(worker.weight_metadata.remote("actor"), timeout=300)
    engine = start_engine(tmp_path / "model", weight_sync=backend)
    sync = WeightSync([worker], [engine], backend=backend, timeout_seconds=60, bucket_bytes=64 << 10)
    sync.connect()
    assert ray.get(engine.weight_version.remote()) == 0
    requests = requests_of()
    assert gap(model, requests, ray.get(engine.generate.remote(requests))) < 1e-4
    for version in (1, 2, 3):
        ray.get(worker.train.remote(version))
        perturb(model, 0.02, version)
        stale = ray.get(engine.generate.remote(requests))
        assert gap(model, requests, stale) > 1e-2
        stats = sync.push(version, check_all=version == 3)
        assert "lm_head.weight" in stats.checked
        assert stats.buckets > 2
        fresh = ray.get(engine.generate.remote(requests))
        assert {result.weight_version for result in fresh} == {version}
        assert gap(model, requests, fresh) < 1e-4
    # numerics F9: the engine's log-probs are those after the temperature.
    cooler = requests_of(temperature=0.7)
    assert gap(model, cooler, ray.get(engine.generate.remote(cooler)), temperature=0.7) < 1e-3
    if tied:
        ray.get(engine.call.remote(without_repack))
        ray.get(worker.train.remote(4))
        with pytest.raises(WeightMismatchError, match=r"(?s)version 4 .*engine 0: lm_head.weight: "):
            sync.push(4)
    ray.kill(engine)
    ray.kill(worker)


def test_sharded_trainer_of_two_ranks_reaches_the_engine(tmp_path: Path) -> None:
    """DeepSpeed ZeRO-3: parameters are gathered by both ranks, bucket by bucket, and sent by the first."""
    model = make_model(tmp_path / "model", "qwen2", tied=True)
    job = RLHFJob.model_validate(
        {
            "apiVersion": "rlhf.dev/v1alpha1",
            "kind": "RLHFJob",
            "metadata": {"name": "test"},
            "spec": {
                "rl": {"algorithm": "grpo"},
                "models": {"actor": {"path": str(tmp_path / "model")}},
                "data": {"datasets": [{"path": "x.jsonl"}]},
                "training": {"precision": "fp32", "deepspeed": {"zeroStage": 3}},
            },
        }
    )
    hosted = ray.remote(num_cpus=0)(ModelWorker).options(runtime_env={"env_vars": environment("cpu", 1)})
    workers = [hosted.remote(WorkerSettings(job, str(tmp_path), ("actor",), rank, 2, local_rank=rank)) for rank in range(2)]
    port = ray.get(workers[0].call.remote(free_port), timeout=300)
    ray.get([worker.setup.remote("127.0.0.1", port) for worker in workers], timeout=300)
    ray.get([worker.load.remote("actor", 10) for worker in workers], timeout=300)
    engine = start_engine(tmp_path / "model", load_weights=False)
    sync = WeightSync(workers, [engine], backend="shm", timeout_seconds=120, bucket_bytes=128 << 10)
    sync.connect()
    requests = requests_of()
    for version in (1, 2):
        stats = sync.push(version, check_all=True)
        assert stats.bytes == sum(parameter.nbytes for parameter in model.parameters())
        assert gap(model, requests, ray.get(engine.generate.remote(requests))) < 1e-4
        ray.get([worker.call.remote(shift, 0.02) for worker in workers])
        shift_model(model, 0.02)
    for actor in (*workers, engine):
        ray.kill(actor)


def test_rc38_padded_embedding_reaches_an_engine_of_two_ranks(tmp_path: Path) -> None:
    """150 rows for a tokenizer of 128 ids: kept whole, although vLLM pads them to 192 and splits them over two processes."""
    model = make_model(tmp_path / "model", "llama", tied=True, vocab_size=150)
    worker = ray.remote(num_cpus=0)(HfWorker).remote(str(tmp_path / "model"))
    ray.get(worker.weight_metadata.remote("actor"), timeout=300)
    engine = start_engine(tmp_path / "model", weight_sync="gloo", tensor_parallel=2)
    sync = WeightSync([worker], [engine], backend="gloo", timeout_seconds=120, bucket_bytes=128 << 10, engine_ranks=2)
    sync.connect()
    requests = requests_of(first_id=125)
    for version in (1, 2):
        ray.get(worker.train.remote(version))
        perturb(model, 0.02, version)
        assert "lm_head.weight" in sync.push(version, check_all=True).checked
        assert gap(model, requests, ray.get(engine.generate.remote(requests))) < 1e-4
    ray.get(engine.shutdown.remote())
    for actor in (worker, engine):
        ray.kill(actor)


def shift_model(model: Any, size: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + size)
