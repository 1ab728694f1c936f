"""Data, tokenizer and reward code of a job tried on a few rows, before anything big is loaded.

``dry_run`` serves ``rlhf validate``: it reports every fault it can reach on this machine and leaves hub ids alone.
``check`` is the driver's first stage: hub data sets are read too, and the faults end the job.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_api.spec import DatasetSpec, DataSpec, RLHFJob
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
        tokenizer = _check_models(job, base_dir, faults)
    prompts = _check_data(job, base_dir, tokenizer, with_hub, faults)
    _check_rewards(job, base_dir, prompts, tokenizer, faults)
    return faults


def _check_models(job: RLHFJob, base_dir: Path, faults: list[JobError]) -> Any | None:
    """The actor's tokenizer when it lies on this machine."""
    models = job.spec.models
    tokenizer = None
    for role, spec in (("actor", models.actor), ("reference", models.reference), ("critic", models.critic), ("reward", models.reward)):
        if spec is None:
            continue
        if hub.is_hub_id(spec.path, base_dir):
            problem = hub.unreachable(spec.path, base_dir, spec.revision)
            if problem is not None:
                faults.append(ConfigError(Violation(f"spec.models.{role}.path", spec.path, problem, hub.NEAREST_MODEL)))
            continue
        # Imports torch and transformers: seconds that a manifest with hub ids only doesn't pay.
        from rlhf_trainer.models.load import load_config, load_tokenizer

        try:
            if role == "actor":
                tokenizer = load_tokenizer(spec, base_dir)
            else:
                load_config(spec, base_dir)
        except ConfigError as error:
            faults.append(ConfigError(Violation(f"spec.models.{role}.path", spec.path, str(error))))
    return tokenizer


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
