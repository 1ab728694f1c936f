"""Write data/train.jsonl and data/test.jsonl with the columns `question` and `answer`.

    python examples/gsm8k/prepare.py                       # from the Hugging Face hub (openai/gsm8k)
    python examples/gsm8k/prepare.py --train FILE --test FILE   # from JSONL files that are already here
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent


def rows(split: str, file: Path | None) -> Iterable[Mapping[str, str]]:
    if file is not None:
        with file.open() as lines:
            return [json.loads(line) for line in lines]
    from datasets import load_dataset

    return load_dataset("openai/gsm8k", "main", split=split)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path)
    parser.add_argument("--test", type=Path)
    arguments = parser.parse_args()
    (HERE / "data").mkdir(exist_ok=True)
    for split in ("train", "test"):
        found = rows(split, getattr(arguments, split))
        lines = [json.dumps({"question": row["question"], "answer": row["answer"]}) + "\n" for row in found]
        target = HERE / "data" / f"{split}.jsonl"
        target.write_text("".join(lines))
        print(f"{target}: {len(lines)} problems")
