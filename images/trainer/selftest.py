"""Does this image hold a working stack? Imports it, generates with vLLM and takes one DeepSpeed step, on a random model made on the spot.

Runs while the image is built, because what an image lacks shows late otherwise: without libnuma1 vLLM fails at its first engine, without a
compiler torch's dynamo and DeepSpeed's just-in-time operators fail at their first use. Needs no network, no GPU and no root:

    docker run --rm rlhf-trainer /opt/rlhf/selftest.py
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROMPTS = [[5, 6, 7, 8], [9, 10, 11]]
NEW_TOKENS = 8
VOCABULARY = 128

# As the engine sets them on CPU: no compiler in the image, one process, no report to anyone.
ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}


def check_user() -> str:
    """The home folder takes files and the user has a name, whatever uid the container was given."""
    import getpass

    with tempfile.NamedTemporaryFile(dir=Path.home()):
        return f"uid {os.getuid()}, user {getpass.getuser()}, home {Path.home()}"


def check_commands() -> str:
    """A login shell, which KubeRay may start, finds the same Python and Ray."""
    script = "command -v ray && command -v python && ray --version"
    shell = {name: value for name, value in os.environ.items() if name != "PATH"}
    done = subprocess.run(["/bin/bash", "-lc", script], env=shell, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`bash -lc '{script}'` failed: {done.stdout}{done.stderr}")
    return ", ".join(done.stdout.split("\n")[:-1])


def make_model(folder: Path) -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def check_rollout(folder: Path) -> str:
    """Greedy tokens and log-probabilities of vLLM agree with transformers."""
    import torch
    from transformers import AutoModelForCausalLM
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=str(folder),
        dtype="float32",
        skip_tokenizer_init=True,
        max_model_len=64,
        max_num_seqs=4,
        block_size=32,
        kv_cache_memory_bytes=64 << 20,
        enforce_eager=True,
        disable_log_stats=True,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False, logprobs=0)
    outputs = engine.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], sampling, use_tqdm=False)
    engine.llm_engine.engine_core.shutdown()

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    worst = 0.0
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        answer = list(output.outputs[0].token_ids)
        with torch.no_grad():
            logprobs = model(torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
        for position, (token, entry) in enumerate(zip(answer, output.outputs[0].logprobs, strict=True)):
            worst = max(worst, abs(entry[token].logprob - float(logprobs[len(prompt) + position - 1, token])))
    if worst > 1e-4:
        raise RuntimeError(f"log-probabilities of vLLM and transformers differ by {worst:.1e}, more than 1e-4")
    return f"{len(PROMPTS)} prompts, {NEW_TOKENS} tokens each, log-probabilities within {worst:.0e} of transformers"


def check_training(folder: Path) -> str:
    """One ZeRO-2 step lowers the loss."""
    import deepspeed
    import torch
    from transformers import AutoModelForCausalLM

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    # DeepSpeed 0.19.8 would compile a shared-memory operator here; the engine switches it off the same way.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": 2, "overlap_comm": False},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**31,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), config=config)
    batch = torch.arange(5, 37).unsqueeze(0)
    losses = []
    for _ in range(2):
        loss = engine(input_ids=batch, labels=batch).loss
        losses.append(loss.item())
        engine.backward(loss)
        engine.step()
    torch.distributed.destroy_process_group()
    if losses[1] >= losses[0]:
        raise RuntimeError(f"a training step did not lower the loss: {losses[0]:.4f}, then {losses[1]:.4f}")
    return f"ZeRO-2 step, loss {losses[0]:.4f} to {losses[1]:.4f}"


def main() -> int:
    """0 when all checks pass; a failing check raises."""
    os.environ.update(ENVIRONMENT)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    folder = Path(tempfile.mkdtemp(prefix="selftest-"))
    checks = [
        ("user", check_user),
        ("commands", check_commands),
        ("model", lambda: make_model(folder)),
        ("rollout", lambda: check_rollout(folder)),
        ("training", lambda: check_training(folder)),
    ]
    try:
        for name, check in checks:
            start = time.monotonic()
            result = check()
            print(f"selftest: {name}: {result or 'made'} ({time.monotonic() - start:.1f} s)", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
