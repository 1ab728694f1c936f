"""TRL's GRPOTrainer on the same model, prompts, lengths, type, micro-batch and threads, with Hugging Face generate.

    python bench/trl_grpo.py SETTINGS.json OUT.json
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Clock(TrainerCallback):
    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.lengths: list[float] = []

    def on_step_begin(self, args, state, control, **_):
        self.start = time.perf_counter()

    def on_step_end(self, args, state, control, **_):
        self.seconds.append(time.perf_counter() - self.start)

    def on_log(self, args, state, control, logs, **_):
        if "completions/mean_length" in logs:
            self.lengths.append(logs["completions/mean_length"])


def reward(prompts, completions, **_):
    return [sum(map(ord, completion)) % 997 / 997 for completion in completions]


def main(settings: dict, out: Path) -> None:
    torch.set_num_threads(settings["threads"])
    on_cpu = settings["device"] == "cpu"
    rollouts = settings["prompts_per_step"] * settings["samples"]
    model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=getattr(torch, settings["dtype"]))
    tokenizer = AutoTokenizer.from_pretrained(settings["model"])
    clock = Clock()
    with tempfile.TemporaryDirectory() as scratch:
        config = GRPOConfig(
            output_dir=scratch,
            use_cpu=on_cpu,
            bf16=settings["dtype"] == "bfloat16",
            per_device_train_batch_size=settings["micro_batch_size"],
            gradient_accumulation_steps=rollouts // settings["micro_batch_size"],
            num_generations=settings["samples"],
            max_completion_length=settings["max_new_tokens"],
            max_steps=settings["steps"],
            temperature=1.0,
            beta=0.0,
            learning_rate=1e-6,
            gradient_checkpointing=False,
            shuffle_dataset=False,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        data = Dataset.from_dict({"prompt": settings["prompts"]})
        trainer = GRPOTrainer(model, reward, args=config, train_dataset=data, processing_class=tokenizer, callbacks=[clock])
        trainer.train()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    out.write_text(json.dumps({"seconds": clock.seconds, "mean_length": clock.lengths, "peak_bytes": peak}))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
