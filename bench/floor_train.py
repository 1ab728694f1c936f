"""Bare forward and backward over the rows that floor_rollout.py sampled, packed as the trainer packs them.

    python bench/floor_train.py SETTINGS.json ROWS.npz OUT.json

No DeepSpeed, no clipping, no statistics: the log-prob of each sampled token, a weighted sum, backward. A plain AdamW step
and the copy of all weights in memory are timed beside it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

from rlhf_api.spec import ModelSpec
from rlhf_trainer.models.attention import choose
from rlhf_trainer.models.heads import PolicyModel
from rlhf_trainer.models.load import load_actor
from rlhf_trainer.models.packing import pack
from rlhf_trainer.training.batching import plan
from rlhf_trainer.types import TokenRow

MEMCPY_ROUNDS = 5


def token_rows(groups: list) -> list[TokenRow]:
    rows: list[TokenRow] = []
    for group_id, (prompt, answers) in enumerate(groups):
        for answer in answers:
            ids = np.array(prompt + answer, np.int32)
            mask = np.arange(1, len(ids)) >= len(prompt)
            rows.append(TokenRow(len(rows), group_id, ids, len(prompt), mask))
    return rows


def main(settings: dict, groups_of_steps: list, out: Path) -> None:
    torch.set_num_threads(settings["threads"])
    dtype = getattr(torch, settings["dtype"])
    device = "cpu" if settings["device"] == "cpu" else "cuda"
    attention = choose("auto", device)
    policy = PolicyModel(load_actor(ModelSpec(path=settings["model"]), Path.cwd(), dtype, attention)).to(device)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)
    seconds, step_seconds = [], []
    for groups in groups_of_steps:
        rows = token_rows(groups)
        (micro_batches,) = plan(rows, 1, micro_batch_size=settings["micro_batch_size"], share_prompt=True)
        start = time.perf_counter()
        for micro in micro_batches:
            packed = pack(micro, attention=attention, device=device, dtype=dtype)
            logprobs, _ = policy(**packed.inputs(), targets=packed.targets, temperature=1.0, want_entropy=False)
            (-logprobs.sum() / len(rows)).backward()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        step_seconds.append(time.perf_counter() - start)
    out.write_text(json.dumps({"seconds": seconds, "optimizer_seconds": step_seconds, "memcpy_gb_per_second": memcpy(policy)}))


def memcpy(policy: torch.nn.Module) -> float:
    """Best of a few copies of every weight, tensor by tensor, into memory that was touched before."""
    weights = [parameter.detach() for parameter in policy.parameters()]
    copies = [weight.clone() for weight in weights]
    size = sum(weight.numel() * weight.element_size() for weight in weights)
    best = float("inf")
    for _ in range(MEMCPY_ROUNDS):
        start = time.perf_counter()
        for copy, weight in zip(copies, weights, strict=True):
            copy.copy_(weight)
        if weights[0].is_cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return size / best / 1e9


if __name__ == "__main__":
    with np.load(sys.argv[2]) as stored:
        sampled = json.loads(str(stored["rows"]))
    main(json.loads(Path(sys.argv[1]).read_text()), sampled, Path(sys.argv[3]))
