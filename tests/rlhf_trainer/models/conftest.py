from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from rlhf_trainer.models import tiny
from rlhf_trainer.types import TokenRow


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with qwen2-tied, qwen2-untied, llama-tied, llama-untied and the value model qwen2-value."""
    root = tmp_path_factory.mktemp("models")
    for family in ("qwen2", "llama"):
        tiny.make(root / f"{family}-tied", family=family, hidden=32, layers=2)
        tiny.make(root / f"{family}-untied", family=family, hidden=32, layers=2, tied=False)
    tiny.make(root / "qwen2-value", value=True, hidden=32, layers=2)
    return root


@pytest.fixture
def make_rows() -> Callable[..., list[TokenRow]]:
    def make(lengths: Sequence[Sequence[int]], prompt_lengths: Sequence[int], *, seed: int = 0, gaps: bool = False) -> list[TokenRow]:
        """``lengths[g]``: response lengths of group g. ``gaps`` masks the second response token, as a tool's answer would be."""
        rng = np.random.default_rng(seed)
        rows = []
        for group_id, (responses, prompt_length) in enumerate(zip(lengths, prompt_lengths, strict=True)):
            prompt = rng.integers(4, 128, prompt_length).astype(np.int32)
            for length in responses:
                ids = np.concatenate([prompt, rng.integers(4, 128, length).astype(np.int32)])
                action = np.arange(len(ids)) >= prompt_length
                if gaps and length > 2:
                    action[prompt_length + 1] = False
                rows.append(TokenRow(len(rows), group_id, ids, prompt_length, action[1:]))
        return rows

    return make
