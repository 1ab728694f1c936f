"""One vLLM engine behind a small interface.

A plain class; a job wraps it in a Ray actor. vLLM is imported in ``start`` only: it patches torch in its process, so it
never shares one with a trainer, and some of its settings are environment variables read at import.
"""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from rlhf_trainer.errors import ConfigError
from rlhf_trainer.gpus import check_gpu
from rlhf_trainer.rollout.sampling import FinishReason, GenerateRequest, GenerateResult
from rlhf_trainer.rollout.settings import CPU_BLOCK_TOKENS, EngineSettings, head_size, kv_cache_bytes

FINISH_REASONS: dict[str | None, FinishReason] = {"stop": "stop", "length": "length"}
INITIAL_VERSION = 0


@dataclass(frozen=True)
class EngineInfo:
    """What an engine found when it started."""

    vocab_size: int
    """Rows of the embedding; ids up to here can be sampled."""
    tokenizer_size: int
    kv_cache_bytes: int | None
    world_size: int
    """Processes that hold weights."""


class RolloutEngine:
    """Samples responses, takes new weights, sleeps and wakes. Call ``start`` first."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self._llm: Any = None

    def start(self) -> EngineInfo:
        """Load the model. Raises ConfigError in one line when the folder or a setting is at fault, and what ``check_gpu`` raises."""
        settings = self.settings
        check_folder(Path(settings.model), settings.load_weights)
        prepare_environment(settings)
        check_gpu(settings.device)
        from transformers import AutoConfig
        from vllm import LLM

        try:
            config = AutoConfig.from_pretrained(
                settings.model, revision=settings.revision, trust_remote_code=settings.trust_remote_code
            ).get_text_config()
            if settings.device == "cpu":
                check_head_size(settings.model, head_size(config.to_dict()))
            arguments = engine_arguments(settings, config.to_dict(), psutil.virtual_memory().available)
            self._llm = LLM(**arguments)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{settings.name}: vLLM cannot start with model {settings.model}: {first_line(error)}") from error
        tokenizer_size = len(self._llm.get_tokenizer())
        if tokenizer_size > config.vocab_size:
            raise ConfigError(
                f"model {settings.model}: the tokenizer has {tokenizer_size} ids, the embedding only {config.vocab_size} rows.\n"
                "  Nearest: resize the embedding to the tokenizer's size and save both in one folder."
            )
        return EngineInfo(config.vocab_size, tokenizer_size, arguments.get("kv_cache_memory_bytes"), settings.tensor_parallel)

    def generate(self, requests: Sequence[GenerateRequest]) -> list[GenerateResult]:
        """Sample every request; results in the order of the requests, each with its tag."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = [
            SamplingParams(
                max_tokens=request.sampling.max_tokens,
                temperature=request.sampling.temperature,
                top_p=request.sampling.top_p,
                top_k=request.sampling.top_k,
                min_p=request.sampling.min_p,
                seed=request.sampling.seed,
                stop=list(request.sampling.stop),
                stop_token_ids=list(request.sampling.stop_token_ids),
                logprobs=0,
                detokenize=bool(request.sampling.stop),
                skip_special_tokens=False,
                include_stop_str_in_output=True,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            for request in requests
        ]
        prompts = [{"prompt_token_ids": list(request.ids)} for request in requests]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        version, tokenizer = self.weight_version(), self._llm.get_tokenizer()
        return [result_of(request, output.outputs[0], version, tokenizer) for request, output in zip(requests, outputs, strict=True)]

    def logprobs_of(self, ids: Sequence[int]) -> np.ndarray:
        """Log-prob of each id given those before it, ``[L - 1]`` fp32, temperature 1. For checks."""
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=1, prompt_logprobs=0, temperature=0.0, detokenize=False)
        (output,) = self._llm.generate([{"prompt_token_ids": list(ids)}], [params], use_tqdm=False)
        entries = output.prompt_logprobs[1:]
        return np.array([entry[token].logprob for entry, token in zip(entries, ids[1:], strict=True)], dtype=np.float32)

    def sleep(self, level: int = 2) -> None:
        """Give GPU memory back; 1 keeps the weights in host memory, 2 drops them. Ignored by vLLM on CPU."""
        self._llm.sleep(level=level)

    def wake(self, tags: Sequence[str] | None = None) -> None:
        """Take GPU memory again: ``weights``, ``kv_cache``, or both."""
        self._llm.wake_up(tags=list(tags) if tags is not None else None)

    def reset_prefix_cache(self) -> None:
        self._llm.reset_prefix_cache()

    def weight_version(self) -> int:
        version = self._llm.get_weight_version()
        return int(version) if version.isdigit() else INITIAL_VERSION

    def init_sync(self, info: dict[str, Any]) -> None:
        self._llm.init_weight_transfer_engine({"init_info": info})

    def start_update(self) -> None:
        self._llm.start_weight_update()

    def update_weights(self, info: dict[str, Any]) -> None:
        """Receive one bucket."""
        self._llm.update_weights({"update_info": info})

    def finish_update(self, version: int) -> None:
        """Put the weights into service: finish, mark the version, forget prefixes computed with the old ones."""
        self._llm.finish_weight_update(weight_version=str(version))
        self.reset_prefix_cache()

    def workers(self, method: str, *args: Any) -> list[Any]:
        """Call ``method`` of the worker extension in every process that holds weights; results by rank."""
        return list(self._llm.collective_rpc(method, args=args))

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(self, *args)

    def ping(self) -> str:
        return self.settings.name

    def peak_memory_bytes(self) -> int:
        """Peak resident memory of this process."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def shutdown(self) -> None:
        if self._llm is not None:
            self._llm.llm_engine.engine_core.shutdown()
            self._llm = None
            gc.collect()


def check_folder(folder: Path, with_weights: bool) -> None:
    """What a local model folder must have; a hub id passes."""
    if not folder.is_dir():
        return
    if not (folder / "config.json").is_file():
        raise ConfigError(f"model folder {folder}: no config.json, so it is not a Hugging Face model folder")
    if with_weights and not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise ConfigError(f"model folder {folder}: no weights (*.safetensors or *.bin)")


def prepare_environment(settings: EngineSettings) -> None:
    """Variables that vLLM and torch read at import. Must run before either is imported in this process."""
    # The engine's core stays in this process (its workers may be children), so that calls into it need no serialiser.
    environment = {"VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    if settings.device == "cpu":
        # Without it the first log-probs compile a helper for 25 s, and fail where there is no C++ compiler.
        environment["TORCHDYNAMO_DISABLE"] = "1"
        if executor(settings) != "uni":
            # By default vLLM keeps one core a worker free of work and refuses to start when none is left.
            environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        if settings.num_threads is not None:
            environment["OMP_NUM_THREADS"] = str(settings.num_threads)
    os.environ.update(environment)
    # At the default level vLLM prints some forty lines a start, and on CPU a warning a layer.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if settings.num_threads is not None and settings.device == "cpu":
        import torch

        torch.set_num_threads(settings.num_threads)


def executor(settings: EngineSettings) -> str:
    if settings.executor != "auto":
        return settings.executor
    return "uni" if settings.tensor_parallel == 1 else "mp"


def engine_arguments(settings: EngineSettings, config: dict[str, Any], free_bytes: int) -> dict[str, Any]:
    """Arguments of vLLM's ``LLM``. ``config``: the model's configuration; ``free_bytes``: host memory for the cache on CPU."""
    arguments: dict[str, Any] = {
        "model": settings.model,
        "revision": settings.revision,
        "trust_remote_code": settings.trust_remote_code,
        "dtype": settings.dtype,
        "max_model_len": settings.max_length,
        "max_num_seqs": settings.max_concurrency,
        "load_format": "auto" if settings.load_weights else "dummy",
        "tensor_parallel_size": settings.tensor_parallel,
        "distributed_executor_backend": executor(settings),
        "enable_prefix_caching": settings.prefix_caching,
        "enforce_eager": settings.enforce_eager,
        "seed": settings.seed,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "weight_transfer_config": {"backend": settings.weight_sync},
        "worker_extension_cls": "rlhf_trainer.sync.receiver.WorkerExtension",
    }
    if settings.device == "cpu":
        limit = free_bytes // 3
        arguments |= {
            "enforce_eager": True,
            "block_size": CPU_BLOCK_TOKENS,
            "kv_cache_memory_bytes": settings.kv_cache_bytes
            or kv_cache_bytes(
                config,
                dtype_bytes=2 if settings.dtype == "bfloat16" else 4,
                max_length=settings.max_length,
                concurrency=settings.max_concurrency,
                limit=limit,
            ),
        }
    else:
        arguments |= {"gpu_memory_utilization": settings.gpu_memory_utilization, "enable_sleep_mode": settings.sleep}
    return arguments | dict(settings.engine_args)


def result_of(request: GenerateRequest, completion: Any, version: int, tokenizer: Any) -> GenerateResult:
    ids = np.array(completion.token_ids, dtype=np.int32)
    logprobs = np.array(
        [entry[token].logprob for entry, token in zip(completion.logprobs, completion.token_ids, strict=True)], dtype=np.float32
    )
    return GenerateResult(
        tag=request.tag,
        ids=ids,
        logprobs=logprobs,
        finish_reason=FINISH_REASONS.get(completion.finish_reason, "abort"),
        text=tokenizer.decode(ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False),
        weight_version=version,
    )


def check_head_size(model: str, size: int) -> None:
    """vLLM's CPU attention accepts other sizes at start and fails at the first request."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    known = CPUAttentionBackend.get_supported_head_sizes()
    if size not in known:
        raise ConfigError(
            f"model {model}: attention heads of {size} dimensions cannot be sampled from on CPU.\n"
            f"  Rule: one of {', '.join(map(str, known))}. Nearest: {min(known, key=lambda other: abs(other - size))}."
        )


def first_line(error: Exception) -> str:
    """The line of a long message that says what is wrong: pydantic prints a header first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    informative = [line for line in lines if line.startswith(("Value error", "Assertion failed"))]
    return (informative or lines or [type(error).__name__])[0]
