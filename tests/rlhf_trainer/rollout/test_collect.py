from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest

from rlhf_api.spec import RolloutSpec
from rlhf_trainer.rollout.collect import collect, distribute
from rlhf_trainer.rollout.sampling import GenerateRequest, GenerateResult
from rlhf_trainer.types import Prompt, PromptGroup

SPEC = RolloutSpec(prompts_per_step=5, samples_per_prompt=4, max_new_tokens=8)


class DelayedEngines:
    """Engines that answer after random delays, in random order; each id tells the tag and the engine it came from."""

    def __init__(self, count: int, version: int = 3, seed: int = 0) -> None:
        self.count, self.version = count, version
        self.random = random.Random(seed)
        self.served: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return self.count

    def generate(self, shares: Sequence[Sequence[GenerateRequest]], timeout_seconds: float) -> list[GenerateResult]:
        results: list[GenerateResult] = []
        lock = threading.Lock()

        def serve(engine: int, share: Sequence[GenerateRequest]) -> None:
            for request in self.random.sample(list(share), len(share)):
                time.sleep(self.random.random() * 0.003)
                group_id, index = request.tag
                length = (group_id + index) % 3 + 1
                with lock:
                    self.served[request.tag] = engine
                    results.append(
                        GenerateResult(
                            tag=request.tag,
                            ids=np.full(length, 1000 + 10 * group_id + index, dtype=np.int32),
                            logprobs=np.full(length, -1.0 - group_id - index / 10, dtype=np.float32),
                            finish_reason="length" if index == 3 else "stop",
                            text=f"{group_id}/{index}",
                            weight_version=self.version,
                        )
                    )

        threads = [threading.Thread(target=serve, args=pair) for pair in enumerate(shares)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


def groups() -> list[PromptGroup]:
    """Five draws; the second and the last have the same text and other labels; draw 3 was filtered."""
    prompts = [("a", "x"), ("same", "left"), ("b", "y"), ("c", "z"), ("same", "right")]
    ids = [10, 11, 12, 14, 15]
    return [
        PromptGroup(group_id, Prompt(dataset="d", row=row, text=text, ids=(7, 8, 9)[: row % 3 + 1], label=label))
        for (row, (text, label)), group_id in zip(enumerate(prompts), ids, strict=True)
    ]


def take(engines: DelayedEngines) -> list:
    return collect(engines, groups(), SPEC, samples=4, seed=1, version=3, max_length=64, timeout_seconds=10)


def test_rc53_samples_stay_with_their_group_whatever_the_order() -> None:
    for seed in range(3):
        engines = DelayedEngines(3, seed=seed)
        rollouts = take(engines)
        assert [(r.group_id, r.sample_index) for r in rollouts] == [(g.group_id, i) for g in groups() for i in range(4)]
        for rollout in rollouts:
            tag = (rollout.group_id, rollout.sample_index)
            assert rollout.response_text == f"{tag[0]}/{tag[1]}"
            assert set(rollout.ids[rollout.action_mask].tolist()) == {1000 + 10 * tag[0] + tag[1]}
            assert np.allclose(rollout.engine_logprobs[rollout.action_mask], -1.0 - tag[0] - tag[1] / 10)
        labels = {r.group_id: r.prompt.label for r in rollouts if r.prompt.text == "same"}
        assert labels == {11: "left", 15: "right"}


def test_samples_of_a_group_go_to_one_engine() -> None:
    engines = DelayedEngines(3)
    take(engines)
    for group in groups():
        assert len({engines.served[(group.group_id, i)] for i in range(4)}) == 1
    assert set(engines.served.values()) == {0, 1, 2}


def test_groups_are_balanced_by_length_and_reproducible() -> None:
    long = [PromptGroup(i, Prompt("d", i, "", tuple(range(size)))) for i, size in enumerate([90, 10, 10, 10, 90, 10, 10, 10])]
    shares = distribute(long, 2, room=0)
    assert sorted(sum(len(g.prompt.ids) for g in share) for share in shares) == [120, 120]
    assert distribute(list(reversed(long)), 2, room=0) == shares


def test_masks_logprobs_and_versions_lie_on_sampled_ids_only() -> None:
    rollout = take(DelayedEngines(1))[0]
    start = len(rollout.prompt.ids)
    assert rollout.ids[:start].tolist() == list(rollout.prompt.ids)
    assert rollout.action_mask.tolist() == [False] * start + [True] * rollout.response_length
    assert not rollout.engine_logprobs[:start].any()
    assert rollout.weight_version.tolist() == [-1] * start + [3] * rollout.response_length


def test_rc02_truncation_follows_the_finish_reason() -> None:
    rollouts = take(DelayedEngines(2))
    assert [r.truncated for r in rollouts] == [r.sample_index == 3 for r in rollouts]


def test_engine_with_old_weights_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"weight version \[2\], expected 3"):
        take(DelayedEngines(2, version=2))
