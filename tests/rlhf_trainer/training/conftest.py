from __future__ import annotations

import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_api.spec import RLHFJob
from rlhf_trainer.models import tiny
from rlhf_trainer.training.worker import ModelWorker, WorkerSettings
from rlhf_trainer.types import TokenRow


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def model_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("training-models")
    for name, arguments in {
        "qwen2-tied": {},
        "qwen2-untied": {"tied": False},
        "llama-tied": {"family": "llama"},
        "llama-untied": {"family": "llama", "tied": False},
        "value": {"value": True},
    }.items():
        tiny.make(root / name, hidden=32, layers=2, **arguments)
    return root


@pytest.fixture(scope="session")
def make_job() -> Callable[..., RLHFJob]:
    def make(actor: str = "qwen2-tied", *, stage: int = 0, rl: dict | None = None, models: dict | None = None, **training: Any) -> RLHFJob:
        """A job in fp32. ``eps`` 1 makes Adam's step nearly proportional to the gradient, so weights show gradient errors."""
        optimizer = {"betas": [0.9, 0.99], "eps": 1.0, "weightDecay": 0.1}
        return RLHFJob.model_validate(
            {
                "apiVersion": "rlhf.dev/v1alpha1",
                "kind": "RLHFJob",
                "metadata": {"name": "test"},
                "spec": {
                    "rl": {"algorithm": "grpo", **(rl or {})},
                    "models": {"actor": {"path": actor}, **(models or {})},
                    "data": {"datasets": [{"path": "x.jsonl"}]},
                    "training": {"precision": "fp32", "optimizer": optimizer, "deepspeed": {"zeroStage": stage}, **training},
                },
            }
        )

    return make


@pytest.fixture(scope="session")
def worker_of(model_root: Path) -> Callable[..., ModelWorker]:
    """A loaded one-rank worker; all of the session share one process group."""
    joined = []

    def make(job: RLHFJob, *roles: str, resume: str | None = None) -> ModelWorker:
        worker = ModelWorker(WorkerSettings(job=job, base_dir=str(model_root), roles=roles, rank=0, world_size=1))
        if not joined:
            worker.setup("127.0.0.1", free_port())
            joined.append(True)
        for role in roles:
            worker.load(role, total_updates=10, resume_dir=resume)
        return worker

    return make


@pytest.fixture(scope="session")
def make_training_rows() -> Callable[..., list[TokenRow]]:
    def make(lengths: Sequence[Sequence[int]] = ([3, 7, 1, 5], [5, 2, 8, 4], [6, 0, 9, 3]), seed: int = 0) -> list[TokenRow]:
        """Groups of uneven rows with every field that a loss reads, NaN at masked positions."""
        rng = np.random.default_rng(seed)
        rows = []
        for group_id, responses in enumerate(lengths):
            prompt = rng.integers(4, 128, 4 + group_id).astype(np.int32)
            for length in responses:
                ids = np.concatenate([prompt, rng.integers(4, 128, length).astype(np.int32)])
                mask = np.arange(1, len(ids)) >= len(prompt)

                def values(center: float, spread: float, mask: np.ndarray = mask) -> np.ndarray:
                    return np.where(mask, rng.normal(center, spread, len(mask)), np.nan).astype(np.float32)

                fields = {
                    "advantages": values(0.0, 1.0),
                    "returns": values(0.0, 1.0),
                    "old_values": values(0.0, 0.3),
                    "old_logprobs": values(-4.85, 0.2),
                    "ref_logprobs": values(-4.85, 0.2),
                    "engine_logprobs": values(-4.85, 0.2),
                }
                rows.append(TokenRow(len(rows), group_id, ids, len(prompt), mask, fields))
        return rows

    return make


@pytest.fixture
def run_ranks(model_root: Path, tmp_path: Path) -> Callable[..., list[list[Any]]]:
    def run(jobs: Sequence[RLHFJob], roles: tuple[str, ...], calls: Sequence[Sequence[tuple[str, tuple[Any, ...]]]]) -> list[list[Any]]:
        """One process a rank, ``calls[rank]`` on a fresh worker for each job; ``[rank][job]`` -> the results of its calls."""
        port, world = free_port(), len(calls)
        processes = []
        for rank in range(world):
            settings = [WorkerSettings(job=job, base_dir=str(model_root), roles=roles, rank=rank, world_size=world) for job in jobs]
            given, result = tmp_path / f"given-{rank}.pkl", tmp_path / f"result-{rank}.pkl"
            result.unlink(missing_ok=True)
            given.write_bytes(pickle.dumps((settings, port, list(calls[rank]), str(result))))
            script = Path(__file__).with_name("rank_process.py")
            processes.append(subprocess.Popen([sys.executable, str(script), str(given)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        try:
            outputs = [process.communicate(timeout=240)[0].decode() for process in processes]
        finally:
            for process in processes:
                process.kill()
        for process, output in zip(processes, outputs, strict=True):
            assert process.returncode == 0, output[-4000:]
        return [pickle.loads((tmp_path / f"result-{rank}.pkl").read_bytes()) for rank in range(world)]

    return run


def weights_of(worker: ModelWorker, role: str = "actor") -> dict[str, np.ndarray]:
    return {name: tensor.float().numpy().copy() for bucket in worker.iter_buckets(role, 1 << 14) for name, tensor in bucket}


@pytest.fixture(scope="session")
def weights() -> Callable[..., dict[str, np.ndarray]]:
    return weights_of
