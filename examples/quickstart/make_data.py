"""Write train.jsonl and heldout.jsonl: sums and differences of numbers from 0 to 20.

A prompt shows three worked examples of the operation and then asks: plain text, no chat template, because this small
model answers in sentences otherwise. Three examples also fill one 32-token block of the engine's prefix cache, so the
samples of a prompt share it. A held-out problem is never in the training file, nor is its commuted form.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

LARGEST = 20
NUM_HELD_OUT_EACH = 100
EXAMPLES = {"+": ((9, 4), (12, 5), (3, 8)), "-": ((13, 4), (17, 5), (11, 8))}


def answer(operation: str, left: int, right: int) -> int:
    return left + right if operation == "+" else left - right


def row(operation: str, left: int, right: int) -> dict[str, str]:
    shown = [f"{a} {operation} {b} = {answer(operation, a, b)}" for a, b in EXAMPLES[operation]]
    return {"prompt": "\n".join([*shown, f"{left} {operation} {right} ="]), "answer": str(answer(operation, left, right))}


def problems(seed: int) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """(training rows, held-out rows); sums appear in training in both orders, differences are never negative."""
    draw = random.Random(seed)
    train: list[dict[str, str]] = []
    held_out: list[dict[str, str]] = []
    for operation in "+-":
        shown = {frozenset(pair) for pair in EXAMPLES[operation]}
        pairs = [(a, b) for a in range(LARGEST + 1) for b in range(a + 1) if frozenset((a, b)) not in shown]
        draw.shuffle(pairs)
        for a, b in pairs[:NUM_HELD_OUT_EACH]:
            a, b = (b, a) if operation == "+" and draw.random() < 0.5 else (a, b)
            held_out.append(row(operation, a, b))
        for a, b in pairs[NUM_HELD_OUT_EACH:]:
            orders = {(a, b), (b, a)} if operation == "+" else {(a, b)}
            train.extend(row(operation, *order) for order in sorted(orders))
    draw.shuffle(train)
    draw.shuffle(held_out)
    return train, held_out


def write(folder: Path, seed: int) -> None:
    for name, rows in zip(("train", "heldout"), problems(seed), strict=True):
        text = "".join(json.dumps(item) + "\n" for item in rows)
        (folder / f"{name}.jsonl").write_text(text)
        print(f"{folder / name}.jsonl: {len(rows)} problems")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "data")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    write(arguments.folder, arguments.seed)
