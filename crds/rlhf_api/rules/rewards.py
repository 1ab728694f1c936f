"""Reward sources and what is done to their values."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator

from rlhf_api.rules.registry import Cel, Finding, rule
from rlhf_api.spec import JobSpec


@rule(
    "reward-has-a-source",
    "rewards come from at least one of reward.sources, or from models.reward",
    cel=Cel("(has(self.rl.reward.sources) && size(self.rl.reward.sources) > 0) || has(self.models.reward)", "rl.reward"),
)
def reward_has_a_source(spec: JobSpec) -> Iterator[Finding]:
    if not spec.rl.reward.sources and spec.models.reward is None:
        yield Finding("rl.reward.sources", None, "sources: [{function: {file: reward.py}}]")


@rule(
    "source-is-one-thing",
    "a reward source is exactly one of function and model",
    cel=Cel("!has(self.rl.reward.sources) || self.rl.reward.sources.all(s, has(s.function) != has(s.model))", "rl.reward.sources"),
)
def source_is_one_thing(spec: JobSpec) -> Iterator[Finding]:
    for index, source in enumerate(spec.rl.reward.sources):
        if (source.function is None) == (source.model is None):
            nearest = "{function: {file: reward.py}}" if source.function is None else "two sources, one with each"
            value = "neither" if source.function is None else "both"
            yield Finding(f"rl.reward.sources[{index}]", value, nearest)


@rule("function-is-named", "the name of a reward function is one that Python can define")
def function_is_named(spec: JobSpec) -> Iterator[Finding]:
    for index, source in enumerate(spec.rl.reward.sources):
        name = source.function.name if source.function is not None else ""
        if name and (not name.isidentifier() or keyword.iskeyword(name)):
            nearest = re.sub(r"\W+", "_", name).strip("_")
            yield Finding(f"rl.reward.sources[{index}].function.name", name, nearest if nearest.isidentifier() else "reward_func")


@rule(
    "model-source-needs-model",
    "a source with model: reward needs models.reward",
    cel=Cel(
        "has(self.models.reward) || !has(self.rl.reward.sources) || self.rl.reward.sources.all(s, !has(s.model))",
        "rl.reward.sources",
    ),
)
def model_source_needs_model(spec: JobSpec) -> Iterator[Finding]:
    for index, source in enumerate(spec.rl.reward.sources):
        if source.model is not None and spec.models.reward is None:
            yield Finding(f"rl.reward.sources[{index}].model", source.model, "models.reward: {path: ...}, or a function source")


@rule(
    "reward-model-is-used",
    "models.reward is one of the reward sources",
    cel=Cel(
        "!has(self.models.reward) || !has(self.rl.reward.sources) || size(self.rl.reward.sources) == 0"
        " || self.rl.reward.sources.exists(s, has(s.model))",
        "models.reward",
    ),
)
def reward_model_is_used(spec: JobSpec) -> Iterator[Finding]:
    reward, sources = spec.models.reward, spec.rl.reward.sources
    if reward is not None and sources and all(source.model is None for source in sources):
        nearest = "a source {model: reward}, or no models.reward (models.critic.path for a critic that starts from it)"
        yield Finding("models.reward", reward.path, nearest)


@rule(
    "some-source-counts",
    "at least one reward source has a weight other than 0",
    cel=Cel(
        "!has(self.rl.reward.sources) || size(self.rl.reward.sources) == 0 || self.rl.reward.sources.exists(s, s.weight != 0.0)",
        "rl.reward.sources",
    ),
)
def some_source_counts(spec: JobSpec) -> Iterator[Finding]:
    sources = spec.rl.reward.sources
    if sources and all(source.weight == 0 for source in sources):
        yield Finding("rl.reward.sources[0].weight", 0, "weight: 1.0")


@rule("reward-clip-bounds", "reward.clip is [low, high] with low below high")
def reward_clip_bounds(spec: JobSpec) -> Iterator[Finding]:
    clip = spec.rl.reward.clip
    if clip is not None and clip[0] >= clip[1]:
        nearest = f"clip: [{clip[1]}, {clip[0]}]" if clip[0] > clip[1] else "clip: [-10, 10], or null for none"
        yield Finding("rl.reward.clip", list(clip), nearest)


@rule(
    "overlong-buffer-fits",
    "reward.overlong.bufferTokens is below rollout.maxNewTokens",
    cel=Cel(
        "!has(self.rl.reward.overlong) || self.rl.reward.overlong.bufferTokens < self.rl.rollout.maxNewTokens",
        "rl.reward.overlong.bufferTokens",
    ),
)
def overlong_buffer_fits(spec: JobSpec) -> Iterator[Finding]:
    overlong, limit = spec.rl.reward.overlong, spec.rl.rollout.max_new_tokens
    if overlong is not None and overlong.buffer_tokens >= limit:
        nearest = f"bufferTokens: {limit - 1}" if limit > 1 else "no overlong"
        yield Finding("rl.reward.overlong.bufferTokens", overlong.buffer_tokens, nearest, f"maxNewTokens is {limit}")


@rule("truncation-penalty-survives-clip", "a reward.truncation.penalty below 0 lies inside reward.clip when clipAt is beforeBaseline")
def truncation_penalty_survives_clip(spec: JobSpec) -> Iterator[Finding]:
    reward = spec.rl.reward
    penalty = reward.truncation.penalty
    if penalty is not None and reward.clip is not None and reward.clip_at == "beforeBaseline" and penalty < min(0.0, reward.clip[0]):
        yield Finding("rl.reward.truncation.penalty", penalty, f"penalty: {reward.clip[0]}", f"clip is {list(reward.clip)}")


@rule(
    "truncation-factor-helps-negative",
    "a reward.truncation.penalty from 0 to 1 is a factor, so it helps a truncated rollout whose reward is negative",
    warning=True,
)
def truncation_factor_helps_negative(spec: JobSpec) -> Iterator[Finding]:
    penalty = spec.rl.reward.truncation.penalty
    if penalty is not None and 0 <= penalty < 1:
        yield Finding("rl.reward.truncation.penalty", penalty, "a negative penalty, or rewards that are never below 0")
