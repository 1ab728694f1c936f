from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_trainer.errors import ConfigError
from rlhf_trainer.rollout.engine import RolloutEngine, engine_arguments, first_line
from rlhf_trainer.rollout.settings import EngineSettings, kv_bytes_per_token, kv_cache_bytes

SMOLLM2 = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
"""SmolLM2-135M: 46,080 bytes of keys and values a token in fp32."""


def test_kv_bytes_of_a_token() -> None:
    assert kv_bytes_per_token(SMOLLM2, 4) == 2 * 30 * 3 * 64 * 4 == 46_080
    assert kv_bytes_per_token(SMOLLM2 | {"head_dim": 32}, 2) == 2 * 30 * 3 * 32 * 2


def test_cache_holds_every_concurrent_sequence_within_the_limit() -> None:
    block = 46_080 * 32
    sized = kv_cache_bytes(SMOLLM2, dtype_bytes=4, max_length=96, concurrency=64, limit=1 << 40)
    assert sized == (64 * 4 + 2) * block
    assert kv_cache_bytes(SMOLLM2, dtype_bytes=4, max_length=96, concurrency=64, limit=100 << 20) == 100 << 20


def test_cache_always_holds_one_sequence() -> None:
    assert kv_cache_bytes(SMOLLM2, dtype_bytes=4, max_length=96, concurrency=64, limit=0) == 6 * 46_080 * 32


def test_cpu_and_gpu_arguments() -> None:
    cpu = engine_arguments(EngineSettings(model="m", max_length=96), SMOLLM2, 8 << 30)
    assert (cpu["block_size"], cpu["enforce_eager"], cpu["distributed_executor_backend"]) == (32, True, "uni")
    assert "gpu_memory_utilization" not in cpu
    gpu = engine_arguments(
        EngineSettings(
            model="m", max_length=96, device="gpu", tensor_parallel=2, sleep=True, gpu_memory_utilization=0.5, weight_sync="ipc"
        ),
        SMOLLM2,
        0,
    )
    assert gpu["enable_sleep_mode"] is True
    assert gpu["gpu_memory_utilization"] == 0.5
    assert gpu["distributed_executor_backend"] == "mp"
    assert gpu["weight_transfer_config"] == {"backend": "ipc"}
    assert "kv_cache_memory_bytes" not in gpu


def test_engine_args_reach_vllm() -> None:
    settings = EngineSettings(model="m", max_length=96, engine_args={"max_num_batched_tokens": 4096})
    assert engine_arguments(settings, SMOLLM2, 8 << 30)["max_num_batched_tokens"] == 4096


@pytest.mark.parametrize(("files", "fault"), [((), r"no config\.json"), (("config.json",), "no weights")])
def test_incomplete_folder_is_refused_before_anything_is_loaded(tmp_path: Path, files: tuple[str, ...], fault: str) -> None:
    for file in files:
        (tmp_path / file).write_text("{}")
    with pytest.raises(ConfigError, match=fault) as caught:
        RolloutEngine(EngineSettings(model=str(tmp_path), max_length=64)).start()
    assert len(str(caught.value).splitlines()) == 1


def test_long_errors_shrink_to_the_informative_line() -> None:
    error = ValueError("1 validation error for ModelConfig\n  Value error, max_model_len is too large [type=value_error]\n  see docs")
    assert first_line(error) == "Value error, max_model_len is too large [type=value_error]"
