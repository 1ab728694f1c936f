"""Real engines for tests, in Ray actors: vLLM changes torch in its process, so it never runs in the test's own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from transformers import AutoModelForCausalLM

from rlhf_trainer.models import tiny
from rlhf_trainer.rollout.engine import RolloutEngine
from rlhf_trainer.rollout.sampling import GenerateRequest, GenerateResult, Sampling, request_seed
from rlhf_trainer.rollout.settings import EngineSettings

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
START_TIMEOUT_SECONDS = 240.0


@contextmanager
def local_ray() -> Iterator[None]:
    """A small Ray of this test's own. Its folder is short: socket paths are limited to 107 bytes."""
    paths = [str(ROOT / part) for part in ("crds", "trainer")] + [str(HERE), str(HERE.parent / "sync")]
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        env = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=200 << 20,
            _temp_dir=folder,
            runtime_env={"env_vars": env},
            log_to_driver=False,
        )
        try:
            yield
        finally:
            ray.shutdown()


def make_model(folder: Path, family: str, *, tied: bool, vocab_size: int | None = None) -> Any:
    """A tiny fp32 model in ``folder`` whose log-probs differ well from uniform."""
    tiny.make(folder, family=family, tied=tied, layers=2, vocab_size=vocab_size)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    perturb(model, 0.1, seed=7)
    model.save_pretrained(folder)
    return model


def perturb(model: Any, size: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * size)


def start_engine(folder: Path, **settings: Any) -> Any:
    actor = ray.remote(num_cpus=0)(RolloutEngine).remote(
        EngineSettings(model=str(folder), **{"max_length": 64, "max_concurrency": 16, "num_threads": 1} | settings)
    )
    ray.get(actor.start.remote(), timeout=START_TIMEOUT_SECONDS)
    return actor


def requests_of(
    *, prompts: int = 3, samples: int = 2, tokens: int = 12, temperature: float = 1.0, first_id: int = 40, **sampling: Any
) -> list[GenerateRequest]:
    return [
        GenerateRequest(
            tag=(group, index),
            ids=tuple(range(first_id + group, first_id + group + 20)),
            sampling=Sampling(max_tokens=tokens, temperature=temperature, seed=request_seed(0, group, index), **sampling),
        )
        for group in range(prompts)
        for index in range(samples)
    ]


def gap(model: Any, requests: list[GenerateRequest], results: list[GenerateResult], temperature: float = 1.0) -> float:
    """Largest difference between the engine's log-probs and those of ``model`` for the same ids."""
    worst = 0.0
    for request, result in zip(requests, results, strict=True):
        ids = torch.tensor([[*request.ids, *result.ids.tolist()]])
        with torch.no_grad():
            logprobs = torch.log_softmax(model(ids).logits[0, :-1].float() / temperature, dim=-1)
        own = logprobs.gather(1, ids[0, 1:, None])[len(request.ids) - 1 :, 0].numpy()
        worst = max(worst, float(np.abs(own - result.logprobs).max()))
    return worst
