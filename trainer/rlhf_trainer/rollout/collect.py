"""Groups to engines and results back to rollouts. Everything is matched by tag; order of arrival plays no part (RC-53)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from rlhf_api.spec import RolloutSpec
from rlhf_trainer.errors import RetryError
from rlhf_trainer.placement.groups import gather
from rlhf_trainer.rollout.sampling import GenerateRequest, GenerateResult, requests
from rlhf_trainer.types import PromptGroup, Rollout


class Engines(Protocol):
    """Where requests are sampled: Ray actors in a job, anything in a test."""

    def __len__(self) -> int: ...

    def generate(self, shares: Sequence[Sequence[GenerateRequest]], timeout_seconds: float) -> list[GenerateResult]:
        """Engine i samples ``shares[i]``; all results, in any order. Raises RetryError naming a late or lost engine."""
        ...


class RayEngines:
    """Engines as Ray actors of ``RolloutEngine``."""

    def __init__(self, handles: Sequence[Any]) -> None:
        self.handles = list(handles)

    def __len__(self) -> int:
        return len(self.handles)

    def generate(self, shares: Sequence[Sequence[GenerateRequest]], timeout_seconds: float) -> list[GenerateResult]:
        busy = [index for index, share in enumerate(shares) if share]
        refs = [self.handles[index].generate.remote(list(shares[index])) for index in busy]
        parts = gather(refs, [f"engine {index}" for index in busy], "rollout", timeout_seconds)
        return [result for part in parts for result in part]


def distribute(groups: Sequence[PromptGroup], engines: int, room: int) -> list[list[PromptGroup]]:
    """Whole groups to engines so that the longest share is short; ``room`` is the response length assumed for balance.

    Longest first onto the least loaded engine; ties go to the lower index, so the result depends on the input only.
    """
    shares: list[list[PromptGroup]] = [[] for _ in range(engines)]
    loads = [0] * engines
    for group in sorted(groups, key=lambda group: (-len(group.prompt.ids), group.group_id)):
        target = loads.index(min(loads))
        shares[target].append(group)
        loads[target] += len(group.prompt.ids) + room
    # An engine serves its requests in this order: neighbours in the batch stay neighbours there.
    return [sorted(share, key=lambda group: group.group_id) for share in shares]


def collect(
    engines: Engines | Sequence[Any],
    groups: Sequence[PromptGroup],
    spec: RolloutSpec,
    *,
    samples: int,
    seed: int,
    version: int,
    max_length: int,
    timeout_seconds: float,
    eos_ids: Sequence[int] = (),
) -> list[Rollout]:
    """Sample ``samples`` responses for every group; rollouts by group (in the order given), then sample index.

    ``engines``: Ray handles, or an ``Engines``. ``version``: the weights that must answer; another one is an error, since
    it means an engine missed a sync. Temperature 0 is greedy, for evaluation.
    """
    if not groups:
        return []
    pool = RayEngines(engines) if isinstance(engines, Sequence) else engines
    by_id = {group.group_id: group for group in groups}
    if len(by_id) != len(groups):
        raise ValueError("group ids are not unique")
    shares = [
        [
            request
            for group in share
            for request in requests(group, spec, samples=samples, seed=seed, max_length=max_length, eos_ids=eos_ids)
        ]
        for share in distribute(groups, len(pool), spec.max_new_tokens)
    ]
    results = {result.tag: result for result in pool.generate(shares, timeout_seconds)}
    wanted = [(group.group_id, index) for group in groups for index in range(samples)]
    if set(results) != set(wanted):
        odd = sorted(set(wanted) ^ set(results))
        raise RuntimeError(f"engines answered {len(results)} of {len(wanted)} requests; missing or unasked: {odd[:5]}")
    aborted = [tag for tag, result in results.items() if result.finish_reason == "abort"]
    if aborted:
        raise RetryError(f"rollout: the engine aborted {len(aborted)} of {len(wanted)} requests, first group {aborted[0][0]}")
    stale = {result.weight_version for result in results.values()} - {version}
    if stale:
        raise RuntimeError(f"engines sampled with weight version {sorted(stale)}, expected {version}: a sync is missing")
    return [rollout_of(by_id[tag[0]], results[tag]) for tag in wanted]


def rollout_of(group: PromptGroup, result: GenerateResult) -> Rollout:
    """Ids, mask and log-probs from spans: prompt first, then exactly what was sampled."""
    prompt = group.prompt
    start, length = len(prompt.ids), len(prompt.ids) + len(result.ids)
    mask = np.zeros(length, dtype=np.bool_)
    mask[start:] = True
    logprobs = np.zeros(length, dtype=np.float32)
    logprobs[start:] = result.logprobs
    return Rollout(
        group_id=group.group_id,
        sample_index=result.tag[1],
        prompt=prompt,
        ids=np.concatenate([np.asarray(prompt.ids, dtype=np.int32), result.ids]),
        action_mask=mask,
        engine_logprobs=logprobs,
        weight_version=np.where(mask, np.int32(result.weight_version), np.int32(-1)).astype(np.int32),
        finish_reason=result.finish_reason,
        truncated=result.finish_reason == "length",
        response_text=result.text,
    )
