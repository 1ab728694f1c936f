"""Data, lengths, models, evaluation, secrets."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Sequence

from rlhf_api.masking import find_secret
from rlhf_api.resolve import dataset_name
from rlhf_api.rules.registry import Cel, Finding, rule
from rlhf_api.spec import DatasetSpec, JobSpec

CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@rule(
    "response-leaves-room",
    "rollout.maxNewTokens is below data.maxLength, which also holds the prompt",
    cel=Cel("self.rl.rollout.maxNewTokens < self.data.maxLength", "rl.rollout.maxNewTokens"),
)
def response_leaves_room(spec: JobSpec) -> Iterator[Finding]:
    new, limit = spec.rl.rollout.max_new_tokens, spec.data.max_length
    if new >= limit:
        nearest = f"maxNewTokens: {max(1, limit // 2)}, or maxLength: {2 * new}"
        yield Finding("rl.rollout.maxNewTokens", new, nearest, f"maxLength is {limit}")


@rule(
    "response-minimum-fits",
    "data.minResponseTokens is at most rollout.maxNewTokens",
    cel=Cel("self.data.minResponseTokens <= self.rl.rollout.maxNewTokens", "data.minResponseTokens"),
)
def response_minimum_fits(spec: JobSpec) -> Iterator[Finding]:
    least, most = spec.data.min_response_tokens, spec.rl.rollout.max_new_tokens
    if least > most:
        yield Finding("data.minResponseTokens", least, f"minResponseTokens: {most}", f"maxNewTokens is {most}")


@rule(
    "chat-template-is-applied",
    "data.chatTemplate needs applyChatTemplate: true",
    cel=Cel("!has(self.data.chatTemplate) || self.data.applyChatTemplate", "data.chatTemplate"),
)
def chat_template_is_applied(spec: JobSpec) -> Iterator[Finding]:
    if spec.data.chat_template is not None and not spec.data.apply_chat_template:
        yield Finding("data.chatTemplate", spec.data.chat_template, "applyChatTemplate: true")


@rule("prompt-template-has-one-place", "data.promptTemplate contains {} exactly once, where the prompt goes")
def prompt_template_has_one_place(spec: JobSpec) -> Iterator[Finding]:
    template = spec.data.prompt_template
    if template is not None and template.count("{}") != 1:
        nearest = f"promptTemplate: {template + '{}'!r}" if "{}" not in template else "one {} in promptTemplate"
        yield Finding("data.promptTemplate", template, nearest, f"{template.count('{}')} times here")


@rule("paths-can-be-opened", "a path of a model, data set or reward file is more than spaces, and has no control characters")
def paths_can_be_opened(spec: JobSpec) -> Iterator[Finding]:
    for field, path in _paths(spec):
        if path and (not path.strip() or CONTROL.search(path)):
            plain = CONTROL.sub("", path).strip()
            yield Finding(field, path, plain or None)


def _paths(spec: JobSpec) -> Iterator[tuple[str, str]]:
    models = spec.models
    for role, model in (("actor", models.actor), ("reference", models.reference), ("critic", models.critic), ("reward", models.reward)):
        if model is not None:
            yield f"models.{role}.path", model.path
    yield from ((f"data.datasets[{index}].path", dataset.path) for index, dataset in enumerate(spec.data.datasets))
    if spec.evaluation is not None:
        yield from ((f"evaluation.datasets[{index}].path", dataset.path) for index, dataset in enumerate(spec.evaluation.datasets))
    for index, source in enumerate(spec.rl.reward.sources):
        if source.function is not None:
            yield f"rl.reward.sources[{index}].function.file", source.function.file


@rule(
    "relative-paths-stay-below",
    "on a cluster relative paths lead to the files of cluster.files, so none leads out of that folder",
    cluster=True,
)
def relative_paths_stay_below(spec: JobSpec) -> Iterator[Finding]:
    for field, path in _paths(spec):
        if not path.startswith("/") and posixpath.normpath(path).split("/")[0] == "..":
            name = path.rstrip("/").rpartition("/")[2]
            yield Finding(field, path, f"{name if name.strip('.') else 'NAME'} in cluster.files, or a path on one of cluster.volumes")


@rule("data-set-names-differ", "data sets that are listed together have different names; the default name is the last part of the path")
def data_set_names_differ(spec: JobSpec) -> Iterator[Finding]:
    yield from _same_names("data.datasets", spec.data.datasets)
    if spec.evaluation is not None:
        yield from _same_names("evaluation.datasets", spec.evaluation.datasets)


def _same_names(field: str, datasets: Sequence[DatasetSpec]) -> Iterator[Finding]:
    names = [dataset_name(dataset) for dataset in datasets]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield Finding(f"{field}[{index}].name", name, f"name: {name}-{index + 1}", f"{field}[{names.index(name)}] has the same")


@rule("seed-needs-random-init", "a model's seed has an effect with init: random only")
def seed_needs_random_init(spec: JobSpec) -> Iterator[Finding]:
    models = spec.models
    for role, model in (("actor", models.actor), ("reference", models.reference), ("critic", models.critic), ("reward", models.reward)):
        if model is not None and model.seed and model.init != "random":
            yield Finding(f"models.{role}.seed", model.seed, "init: random, or no seed")


@rule(
    "start-is-named",
    "init, seed, revision and trustRemoteCode of a reference or critic need its path; else they are those of its default start",
)
def start_is_named(spec: JobSpec) -> Iterator[Finding]:
    for role, model in (("reference", spec.models.reference), ("critic", spec.models.critic)):
        if model is None or model.path:
            continue
        if model.init != "pretrained" or model.seed or model.revision is not None or model.trust_remote_code:
            yield Finding(f"models.{role}.path", None, f"path: {spec.models.actor.path}")


@rule(
    "pass-at-within-samples",
    "every k of evaluation.passAt is at most evaluation.samplesPerPrompt",
    cel=Cel("!has(self.evaluation) || self.evaluation.passAt.all(k, k <= self.evaluation.samplesPerPrompt)", "evaluation.passAt"),
)
def pass_at_within_samples(spec: JobSpec) -> Iterator[Finding]:
    if spec.evaluation is None:
        return
    samples = spec.evaluation.samples_per_prompt
    for index, k in enumerate(spec.evaluation.pass_at):
        if k > samples:
            nearest = f"samplesPerPrompt: {k}, or passAt up to {samples}"
            yield Finding(f"evaluation.passAt[{index}]", k, nearest, f"samplesPerPrompt is {samples}")


@rule(
    "greedy-evaluation-is-one-sample",
    "evaluation.temperature 0 gives the same response each time, so samplesPerPrompt is 1",
    cel=Cel(
        "!has(self.evaluation) || self.evaluation.temperature > 0.0 || self.evaluation.samplesPerPrompt == 1", "evaluation.temperature"
    ),
)
def greedy_evaluation_is_one_sample(spec: JobSpec) -> Iterator[Finding]:
    evaluation = spec.evaluation
    if evaluation is not None and evaluation.temperature == 0 and evaluation.samples_per_prompt > 1:
        detail = f"samplesPerPrompt is {evaluation.samples_per_prompt}"
        yield Finding("evaluation.temperature", 0, "temperature: 0.6, or samplesPerPrompt: 1", detail)


@rule("no-literal-secrets", "secrets never stand in the spec, where everybody who can read the object can read them")
def no_literal_secrets(spec: JobSpec) -> Iterator[Finding]:
    texts: list[tuple[str, str | None]] = [("checkpoint.path", spec.checkpoint.path), *_paths(spec)]
    texts += [(f"placement.rollout.engineArgs.{name}", str(value)) for name, value in spec.placement.rollout.engine_args.items()]
    cluster = spec.cluster
    texts += [(f"cluster.env[{index}].value", variable.value) for index, variable in enumerate(cluster.env)]
    for field, entries in (("network.env", cluster.network.env), ("labels", cluster.labels), ("annotations", cluster.annotations)):
        texts += [(f"cluster.{field}.{name}", value) for name, value in entries.items()]
    texts.append(("cluster.podOverlay", json.dumps(cluster.pod_overlay)))
    for field, text in texts:
        kind = find_secret(text) if text else None
        if kind:
            yield Finding(
                field, text, "an environment variable such as HF_TOKEN, on a cluster from cluster.secretEnv", f"this looks like {kind}"
            )
