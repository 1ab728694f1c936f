"""Trainer and a real vLLM engine, before and after syncs (fp32)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray
from engine_support import gap, make_model, perturb, requests_of, start_engine
from sync_fakes import HfWorker

from rlhf_trainer.sync.coordinator import WeightMismatchError, WeightSync

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
