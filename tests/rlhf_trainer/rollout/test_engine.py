"""One real vLLM engine on the CPU, shared by these tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from engine_support import gap, make_model, requests_of, start_engine

from rlhf_api.spec import RolloutSpec
from rlhf_trainer.errors import ConfigError, RetryError
from rlhf_trainer.models import tiny
from rlhf_trainer.rollout.collect import collect
from rlhf_trainer.types import Prompt, PromptGroup

EOS = 3


@pytest.fixture(scope="module")
def served(rollout_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    folder = tmp_path_factory.mktemp("engine") / "model"
    model = make_model(folder, "llama", tied=True)
    engine = start_engine(folder)
    yield engine, model
    ray.kill(engine)


def generate(engine: Any, requests: list) -> list:
    return ray.get(engine.generate.remote(requests), timeout=60)


def test_a_seed_gives_the_same_response_in_any_order_or_batch(served: tuple[Any, Any]) -> None:
    engine, _ = served
    requests = requests_of()
    first = {result.tag: result for result in generate(engine, requests)}
    ray.get(engine.reset_prefix_cache.remote())
    again = generate(engine, requests[::-1]) + generate(engine, requests[:1])
    assert len({tuple(result.ids.tolist()) for result in first.values()}) == len(requests)
    for result in again:
        assert np.array_equal(result.ids, first[result.tag].ids)
        assert np.array_equal(result.logprobs, first[result.tag].logprobs)


@pytest.mark.parametrize("temperature", [0.01, 0.7, 1.0, 2.0])
def test_f9_rc68_logprobs_are_the_trainers_at_every_accepted_temperature(served: tuple[Any, Any], temperature: float) -> None:
    """Rounding of the logits is divided by the temperature too."""
    engine, model = served
    requests = requests_of(temperature=temperature)
    assert gap(model, requests, generate(engine, requests), temperature) < 1e-4 / min(1.0, temperature)


def test_logprobs_of_a_prompt_agree_with_the_model(served: tuple[Any, Any]) -> None:
    import torch

    engine, model = served
    ids = list(range(40, 60))
    with torch.no_grad():
        own = torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1], dim=-1).gather(1, torch.tensor(ids)[1:, None])[:, 0]
    assert np.abs(ray.get(engine.logprobs_of.remote(ids)) - own.numpy()).max() < 1e-4


def test_greedy_is_the_likeliest_id(served: tuple[Any, Any]) -> None:
    import torch

    engine, model = served
    (request,) = requests_of(prompts=1, samples=1, tokens=1, temperature=0.0)
    (result,) = generate(engine, [request])
    with torch.no_grad():
        assert result.ids.tolist() == [model(torch.tensor([request.ids])).logits[0, -1].argmax().item()]


def test_rc02_ids_are_exactly_as_sampled(served: tuple[Any, Any]) -> None:
    """Cut at the limit: no end-of-sequence id is put in; ended early: the id that ended it is the last one."""
    engine, _ = served
    cut = generate(engine, requests_of(prompts=4, samples=4, tokens=5))
    for result in cut:
        if result.finish_reason == "length":
            assert len(result.ids) == 5
            assert EOS not in result.ids
        else:
            assert result.ids.tolist().index(EOS) == len(result.ids) - 1
    sampled = next(result for result in cut if result.finish_reason == "length")
    stop = int(sampled.ids[2])
    ended = next(
        result
        for result in generate(engine, requests_of(prompts=4, samples=4, tokens=5, stop_token_ids=(stop,)))
        if result.tag == sampled.tag
    )
    first = sampled.ids.tolist().index(stop)
    assert ended.finish_reason == "stop"
    assert ended.ids.tolist() == sampled.ids[: first + 1].tolist()
    assert np.array_equal(ended.logprobs, sampled.logprobs[: first + 1])


def test_stop_string_stays_in_ids_and_text(served: tuple[Any, Any]) -> None:
    engine, _ = served
    results = generate(engine, requests_of(prompts=4, samples=4, tokens=12))
    plain = next(r for r in results if r.finish_reason == "length" and r.text[4].isascii() and r.text[4].isprintable())
    stop = plain.text[4]
    ended = next(r for r in generate(engine, requests_of(prompts=4, samples=4, tokens=12, stop=(stop,))) if r.tag == plain.tag)
    end = plain.text.index(stop) + 1
    assert ended.finish_reason == "stop"
    assert ended.text == plain.text[:end]
    assert ended.ids.tolist() == plain.ids[:end].tolist()


def test_collect_over_a_real_engine(served: tuple[Any, Any]) -> None:
    engine, _ = served
    groups = [PromptGroup(group_id, Prompt("d", group_id, "", tuple(range(40, 40 + length)))) for group_id, length in ((4, 20), (9, 58))]
    spec = RolloutSpec(prompts_per_step=2, samples_per_prompt=3, max_new_tokens=12)
    rollouts = collect([engine], groups, spec, samples=3, seed=1, version=0, max_length=64, timeout_seconds=60)
    assert [(r.group_id, r.sample_index) for r in rollouts] == [(4, 0), (4, 1), (4, 2), (9, 0), (9, 1), (9, 2)]
    assert all(len(r.ids) <= 64 for r in rollouts)
    assert all(r.truncated == (r.finish_reason == "length") for r in rollouts)
    assert any(r.response_length == 6 for r in rollouts[3:])


def test_late_engine_is_named(served: tuple[Any, Any]) -> None:
    engine, _ = served
    group = PromptGroup(4, Prompt("d", 4, "", tuple(range(40, 60))))
    spec = RolloutSpec(prompts_per_step=1, samples_per_prompt=1, max_new_tokens=40)
    with pytest.raises(RetryError, match="rollout: no answer from engine 0"):
        collect([engine], [group], spec, samples=8, seed=1, version=0, max_length=64, timeout_seconds=0.001)


@pytest.mark.slow
def test_rc38_tokenizer_larger_than_the_embedding_is_refused_with_both_numbers(rollout_ray: None, tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "small", layers=2, vocab_size=100)
    with pytest.raises(ConfigError, match=r"tokenizer has 128 ids, the embedding only 100 rows"):
        start_refused(folder)


def start_refused(folder: Path) -> None:
    try:
        start_engine(folder)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
