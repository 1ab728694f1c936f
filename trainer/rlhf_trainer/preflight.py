"""Data, tokenizer and reward code of a job tried on a few rows, before anything big is loaded.

``dry_run`` serves ``rlhf validate``: it reports every fault it can reach on this machine and leaves hub ids alone.
``check`` is the driver's first stage: hub data sets are read too, and the faults end the job.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_api.spec import DatasetSpec, DataSpec, ModelSpec, RLHFJob
from rlhf_api.violations import Violation
from rlhf_trainer import hub
from rlhf_trainer.data import prepare, sources
from rlhf_trainer.data.rendering import Renderer
from rlhf_trainer.data.sources import Table
from rlhf_trainer.errors import ConfigError, DataError, JobError
from rlhf_trainer.rewards.function_host import RewardContractError, RewardError
from rlhf_trainer.rewards.outcomes import evaluate
from rlhf_trainer.rewards.pipeline import columns_of, describe_row, host_of
from rlhf_trainer.types import Prompt, Rollout

log = logging.getLogger(__name__)

ROWS_READ = 32
ROWS_SCORED = 2
"""Of each data set. Two, so that one number for a whole batch shows as the wrong count."""


def dry_run(job: RLHFJob, base_dir: Path) -> list[Violation]:
    """Every fault of data, models and reward files that this machine can see; [] when none."""
    return [_violation(fault) for fault in _faults(job, base_dir, None, with_hub=False)]


def check(job: RLHFJob, base_dir: Path, tokenizer: Any | None = None) -> None:
    """Raise one ``ConfigError`` (if any fault is one) or ``DataError`` that lists every fault.

    With ``tokenizer`` the models are taken as checked by whoever loaded it.
    """
    faults = _faults(job, base_dir, tokenizer, with_hub=True)
    if len(faults) == 1:
        raise faults[0]
    if faults:
        kind = ConfigError if any(isinstance(fault, ConfigError) for fault in faults) else DataError
        raise kind("\n".join(str(fault) for fault in faults))


def _violation(fault: JobError) -> Violation:
    return fault.violation or Violation("spec", None, str(fault))


def _faults(job: RLHFJob, base_dir: Path, tokenizer: Any | None, *, with_hub: bool) -> list[JobError]:
    faults: list[JobError] = []
    if tokenizer is None:
        tokenizer = _check_models(job, base_dir, with_hub, faults)
    prompts = _check_data(job, base_dir, tokenizer, with_hub, faults)
    _check_rewards(job, base_dir, prompts, tokenizer, faults)
    return faults


def _check_models(job: RLHFJob, base_dir: Path, with_hub: bool, faults: list[JobError]) -> Any | None:
    """The actor's tokenizer when it can be had. A model that several roles start from is looked at once."""
    starts: dict[tuple[str, str | None], tuple[str, ModelSpec]] = {}
    for role, spec in _loaded_models(job).items():
        starts.setdefault((spec.path, spec.revision), (role, spec))
    # One model alone is left to whoever loads it: nothing to compare, and a hub is asked once.
    asks_hub = with_hub and len(starts) > 1
    actor: Any | None = None
    for role, spec in starts.values():
        field = f"spec.models.{role}.path"
        try:
            tokenizer = _tokenizer(spec, base_dir, field, asks_hub)
        except ConfigError as error:
            faults.append(error)
            continue
        if role == "actor":
            actor = tokenizer
        elif actor is not None and tokenizer is not None:
            difference = other_ids(actor.get_vocab(), tokenizer.get_vocab())
            if difference is not None:
                rule = f"the {role} reads the actor's token ids, and its tokenizer gives them another meaning: {difference}"
                faults.append(
                    ConfigError(Violation(field, spec.path, rule, f"a {role} model with the tokenizer of {job.spec.models.actor.path}"))
                )
    return actor


def _loaded_models(job: RLHFJob) -> dict[str, ModelSpec]:
    """By role, the actor first, those that the job loads."""
    models, rl = job.spec.models, job.spec.rl
    found: dict[str, ModelSpec | None] = {
        "actor": models.actor,
        "reference": models.reference if rl.kl.coef > 0 else None,
        "reward": models.reward,
        "critic": models.critic if rl.advantage.estimator == "gae" else None,
    }
    return {role: spec for role, spec in found.items() if spec is not None and spec.path}


def _tokenizer(spec: ModelSpec, base_dir: Path, field: str, asks_hub: bool) -> Any | None:
    """None when only the hub has it and is not to be asked."""
    is_hub_id = hub.is_hub_id(spec.path, base_dir)
    if is_hub_id:
        problem = hub.unreachable(spec.path, base_dir, spec.revision)
        if problem is not None:
            raise ConfigError(Violation(field, spec.path, problem, hub.NEAREST_MODEL))
        if not asks_hub and not hub.is_cached(spec.path, spec.revision):
            return None
    # Imports torch and transformers: seconds that a manifest with hub ids only doesn't pay.
    from rlhf_trainer.models.load import load_tokenizer

    try:
        return load_tokenizer(spec, base_dir, offline=is_hub_id and not asks_hub)
    except ConfigError as error:
        if is_hub_id and not asks_hub:
            return None  # a part of it is cached; the rest may well be on the hub
        raise ConfigError(Violation(field, spec.path, str(error))) from error


def other_ids(actor: Mapping[str, int], other: Mapping[str, int]) -> str | None:
    """Where the actor's ids mean something else to another tokenizer, in words; None when nowhere.

    More tokens than the actor's are harmless: all ids come from the actor.
    """
    for token, token_id in sorted(actor.items(), key=lambda item: item[1]):
        if other.get(token) != token_id:
            here = f"{other[token]} here" if token in other else "not in it"
            return f"{len(other)} tokens, the actor's {len(actor)}; {token!a} is id {token_id} for the actor and {here}"
    return None


def _check_data(job: RLHFJob, base_dir: Path, tokenizer: Any | None, with_hub: bool, faults: list[JobError]) -> list[Prompt]:
    """A few prompts of each training set, whatever of them could be read."""
    data = job.spec.data
    try:
        renderer = Renderer(data, tokenizer)
    except ConfigError as error:
        faults.append(error)
        renderer = Renderer(data.model_copy(update={"prompt_template": None, "apply_chat_template": False}), None)
    found: list[Prompt] = []
    held_out = job.spec.evaluation.datasets if job.spec.evaluation is not None else []
    for field, group in (("spec.data.datasets", data.datasets), ("spec.evaluation.datasets", held_out)):
        try:
            prepare.check_names(group, field)
        except ConfigError as error:
            faults.append(error)
        for index, dataset in enumerate(group):
            if sources.locate(dataset.path, base_dir) is None and not with_hub:
                continue
            try:
                prompts = _sample(dataset, base_dir, f"{field}[{index}]", data, renderer)
            except JobError as error:
                faults.append(error)
                continue
            if field == "spec.data.datasets":
                found += prompts[:ROWS_SCORED]
    return found


def _sample(dataset: DatasetSpec, base_dir: Path, field: str, data: DataSpec, renderer: Renderer) -> list[Prompt]:
    limit = min(ROWS_READ, data.max_samples or ROWS_READ)
    table: Table = sources.read(dataset, base_dir, field, limit)
    prepare.check_columns(table, data)
    rows = range(len(table.rows))
    texts = [prepare.render(table, index, data, renderer) for index in rows]
    ids = renderer.ids(texts) if renderer.has_tokenizer else [[] for _ in texts]
    return [
        Prompt(table.name, i, texts[i], tuple(ids[i]), prepare.label_of(table, i, data), prepare.metadata_of(table.rows[i], data))
        for i in rows
    ]


def _check_rewards(job: RLHFJob, base_dir: Path, prompts: Sequence[Prompt], tokenizer: Any | None, faults: list[JobError]) -> None:
    rollouts = [_placeholder(group_id, prompt, tokenizer) for group_id, prompt in enumerate(prompts)]
    columns = columns_of(rollouts, job.spec.data.label_key)
    for index, source in enumerate(job.spec.rl.reward.sources):
        if source.function is None:
            continue
        field = f"spec.rl.reward.sources[{index}]"
        try:
            with host_of(source.function, base_dir, field) as host:
                host.start()
                if rollouts:
                    outcomes = evaluate(host, columns, True, [describe_row(rollout) for rollout in rollouts])
                    problem = next((outcome.problem for outcome in outcomes if outcome.problem is not None), None)
                    if problem is not None and source.function.on_error == "fail":
                        raise problem
                    if problem is not None:
                        log.warning("%s: %s. The job goes on, onError: %s", field, str(problem).rstrip("."), source.function.on_error)
        except RewardError as error:
            hint = None if isinstance(error, RewardContractError) else "accept these rows: each row's label stands in for the response"
            faults.append(DataError(Violation(f"{field}.function.file", source.function.file, str(error).rstrip("."), hint)))
        except DataError as error:
            faults.append(error)


def _placeholder(group_id: int, prompt: Prompt, tokenizer: Any | None) -> Rollout:
    """A rollout as the engine could have made it, with the label as its text."""
    # No engine can make a lone surrogate, and no tokenizer reads one.
    text = prompt.label.encode(errors="replace").decode() if isinstance(prompt.label, str) else ""
    response = tokenizer(text, add_special_tokens=False)["input_ids"] if tokenizer is not None else []
    ids = np.array([*prompt.ids, *response], dtype=np.int32)
    is_action = np.arange(len(ids)) >= len(prompt.ids)
    zeros = np.zeros(len(ids), dtype=np.float32)
    version = np.where(is_action, 0, -1).astype(np.int32)
    return Rollout(group_id, 0, prompt, ids, is_action, zeros, version, "stop", False, text)
