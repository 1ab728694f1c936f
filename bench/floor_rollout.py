"""Bare vLLM on the job's prompts: nothing between the prompts and `LLM.generate`.

    python bench/floor_rollout.py SETTINGS.json OUT.npz

Writes seconds a step, sampled tokens a step, and the token ids for floor_train.py.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from transformers import AutoConfig
from vllm import LLM, SamplingParams

from rlhf_trainer.rollout.settings import CPU_BLOCK_TOKENS, kv_cache_bytes


def main(settings: dict, out: Path) -> None:
    on_cpu = settings["device"] == "cpu"
    samples, steps, width = settings["samples"], settings["steps"], settings["prompts_per_step"]
    cpu_arguments = {
        "block_size": CPU_BLOCK_TOKENS,
        "enforce_eager": True,
        "kv_cache_memory_bytes": kv_cache_bytes(
            AutoConfig.from_pretrained(settings["model"]).to_dict(),
            dtype_bytes=4 if settings["dtype"] == "float32" else 2,
            max_length=settings["max_length"],
            concurrency=samples * width,
            limit=4 << 30,
        ),
    }
    llm = LLM(
        model=settings["model"],
        dtype=settings["dtype"],
        max_model_len=settings["max_length"],
        max_num_seqs=samples * width,
        enable_prefix_caching=True,
        seed=0,
        **(cpu_arguments if on_cpu else {"gpu_memory_utilization": 0.5}),
    )
    tokenizer = llm.get_tokenizer()
    prompts = [{"prompt_token_ids": tokenizer(prompt).input_ids} for prompt in settings["prompts"]]
    params = SamplingParams(n=samples, max_tokens=settings["max_new_tokens"], temperature=1.0, logprobs=0, seed=0, detokenize=False)
    llm.generate(prompts[:2], params, use_tqdm=False)
    seconds, tokens, rows = [], [], []
    for step in range(steps):
        part = prompts[step * width : (step + 1) * width]
        llm.reset_prefix_cache()
        start = time.perf_counter()
        outputs = llm.generate(part, params, use_tqdm=False)
        seconds.append(time.perf_counter() - start)
        tokens.append(sum(len(completion.token_ids) for output in outputs for completion in output.outputs))
        rows.append([(list(output.prompt_token_ids), [list(c.token_ids) for c in output.outputs]) for output in outputs])
    np.savez(out, seconds=seconds, tokens=tokens, rows=np.array(json.dumps(rows)))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
