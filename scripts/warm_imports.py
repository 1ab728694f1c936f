"""Import what a job imports, so that its .pyc files exist; fails here, early, when the environment is broken."""

from __future__ import annotations

import importlib
import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

MODULES = (
    "torch._dynamo",
    "torch.utils.tensorboard",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "datasets",
    "pyarrow.parquet",
    "ray",
    "ray.util.placement_group",
    "deepspeed",
    "vllm",
    "vllm.entrypoints.llm",
    "vllm.v1.engine.llm_engine",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.qwen2",
    "vllm.model_executor.model_loader.reload",
    "matplotlib.pyplot",
    "pytest",
    "hypothesis",
)

if __name__ == "__main__":
    for module in MODULES:
        importlib.import_module(module)
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        importlib.import_module("vllm.v1.worker.cpu_worker")
