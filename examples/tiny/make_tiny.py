"""Make what the examples of this folder read: model/actor, model/reward and data/*.jsonl, in half a minute.

The reward model is fitted to the reward function on random texts; it stands for one that was trained elsewhere.
"""

from __future__ import annotations

import json
import random
import string
from pathlib import Path

import torch
from reward import LENGTH, share
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rlhf_trainer.models import tiny

HERE = Path(__file__).resolve().parent
ACTOR, REWARD = HERE / "model" / "actor", HERE / "model" / "reward"
NOISE = string.ascii_letters + string.digits + string.punctuation
FIT_STEPS = 300
BATCH = 64


def prompt(draw: random.Random) -> str:
    return draw.choice("#@") + "".join(draw.choices(NOISE, k=3))


def write_data(folder: Path, seed: int = 0) -> None:
    draw = random.Random(seed)
    folder.mkdir(exist_ok=True)
    for name, rows in (("train", 1024), ("heldout", 64)):
        lines = [json.dumps({"prompt": prompt(draw)}) + "\n" for _ in range(rows)]
        (folder / f"{name}.jsonl").write_text("".join(lines))


def answer(draw: random.Random) -> str:
    """Digits, letters and the rest in proportions that differ from text to text, so that every reward occurs.

    From few or many different characters: a policy in training repeats itself, and must be judged right then, too.
    """
    shares = [draw.random() ** 2 for _ in range(3)]
    pools = [draw.sample(pool, draw.choice((1, 2, len(pool)))) for pool in (string.digits, string.ascii_letters, string.punctuation + " ")]
    length = draw.choice((LENGTH, draw.randint(0, LENGTH)))
    return "".join(draw.choice(pool) for pool in draw.choices(pools, weights=shares, k=length))


def fit_reward_model(folder: Path, seed: int = 1) -> float:
    """Regress the scalar head on the reward function, read at the last token; returns the last mean absolute error."""
    tiny.make(folder, value=True, seed=seed, layers=2)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draw = random.Random(seed)
    error = torch.zeros(())
    for _ in range(FIT_STEPS):
        texts = [(prompt(draw), answer(draw)) for _ in range(BATCH)]
        # Short ones ended by themselves; one that was cut at the length limit has no end token.
        ended = [len(b) < LENGTH or draw.random() < 0.5 for _, b in texts]
        ids = [tokenizer(a + b).input_ids + [tokenizer.eos_token_id] * end for (a, b), end in zip(texts, ended, strict=True)]
        batch = tokenizer.pad({"input_ids": ids}, return_tensors="pt")
        target = torch.tensor([share(a, b) for a, b in texts])
        error = model(**batch).logits[:, 0] - target
        optimizer.zero_grad()
        error.square().mean().backward()
        optimizer.step()
    model.save_pretrained(folder)
    return float(error.abs().mean())


if __name__ == "__main__":
    write_data(HERE / "data")
    tiny.make(ACTOR, seed=0)
    print(f"{ACTOR}\n{REWARD}: mean error of the fitted reward {fit_reward_model(REWARD):.3f}")
