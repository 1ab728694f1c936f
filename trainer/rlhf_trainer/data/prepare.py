"""Data sets of a job -> prompts: keys, templates, ids, and what is done with prompts that are too long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rlhf_api.spec import DatasetSpec, DataSpec, RLHFJob
from rlhf_api.violations import Violation
from rlhf_trainer.data import sources
from rlhf_trainer.data.rendering import Renderer, RowError
from rlhf_trainer.data.sources import Row, Table
from rlhf_trainer.errors import ConfigError, DataError
from rlhf_trainer.types import Prompt

TOKENIZE_ROWS = 1024


@dataclass(frozen=True, slots=True)
class PreparedData:
    prompts: Mapping[str, Sequence[Prompt]]
    """By data set name, in the order of the manifest and of the source's rows."""

    counts: Mapping[str, int]
    """Over all sets: ``rows`` read, ``prompts`` kept, ``overlong_filtered``, ``overlong_truncated``, ``empty_filtered``."""


def prepare(
    job: RLHFJob,
    base_dir: Path,
    tokenizer: Any,
    datasets: Sequence[DatasetSpec] | None = None,
    *,
    field: str = "spec.data.datasets",
    max_rows: int | None = None,
) -> PreparedData:
    """Read, render and tokenise.

    ``datasets`` other than ``spec.data.datasets`` (evaluation sets, with their ``field``) use the same keys and
    templates. ``max_rows`` reads only the first rows of each set, for dry runs.
    """
    data = job.spec.data
    chosen = data.datasets if datasets is None else list(datasets)
    limit = min((n for n in (data.max_samples, max_rows) if n is not None), default=None)
    check_names(chosen, field)
    renderer = Renderer(data, tokenizer)
    prompts: dict[str, list[Prompt]] = {}
    counts: Counter[str] = Counter(rows=0, prompts=0, overlong_filtered=0, overlong_truncated=0, empty_filtered=0)
    for index, dataset in enumerate(chosen):
        table = sources.read(dataset, base_dir, f"{field}[{index}]", limit)
        check_columns(table, data)
        prompts[table.name] = _prompts(table, data, renderer, counts)
    return PreparedData(prompts, dict(counts))


def check_names(datasets: Sequence[DatasetSpec], field: str) -> None:
    """Names are metric keys and resume positions, so two sets may not share one."""
    seen: set[str] = set()
    for index, dataset in enumerate(datasets):
        name = sources.default_name(dataset)
        if name in seen:
            raise ConfigError(Violation(f"{field}[{index}].name", name, "another data set has this name", f"name: {name}-{index}"))
        seen.add(name)


def check_columns(table: Table, data: DataSpec) -> None:
    columns = table.columns
    for field, key in (("promptKey", data.prompt_key), ("labelKey", data.label_key)):
        if key is not None and key not in columns:
            rule = f"{table.source} has no such column; it has {', '.join(columns)}"
            raise DataError(Violation(f"spec.data.{field}", key, rule, sources.nearest(key, columns)))


def cell(table: Table, index: int, key: str, field: str) -> Any:
    row = table.rows[index]
    if key not in row:
        rule = f"{table.where(index)} lacks this column; the row has {', '.join(row) or 'no columns'}"
        raise DataError(Violation(f"spec.data.{field}", key, rule, sources.nearest(key, list(row))))
    return row[key]


def render(table: Table, index: int, data: DataSpec, renderer: Renderer) -> str:
    try:
        return renderer.text(cell(table, index, data.prompt_key, "promptKey"))
    except RowError as error:
        raise DataError(Violation("spec.data.promptKey", data.prompt_key, f"{table.where(index)}: the prompt {error}")) from error


def label_of(table: Table, index: int, data: DataSpec) -> Any:
    return None if data.label_key is None else cell(table, index, data.label_key, "labelKey")


def metadata_of(row: Row, data: DataSpec) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in (data.prompt_key, data.label_key)}


def _prompts(table: Table, data: DataSpec, renderer: Renderer, counts: Counter[str]) -> list[Prompt]:
    room = data.max_length - data.min_response_tokens
    if room < 1:
        rule = f"maxLength {data.max_length} leaves no token for the prompt"
        raise ConfigError(Violation("spec.data.minResponseTokens", data.min_response_tokens, rule, str(data.max_length - 1)))
    kept: list[Prompt] = []
    shortest: int | None = None
    empty = 0
    for index, text, ids in _tokenized(table, data, renderer):
        if not ids:
            empty += 1
            continue
        shortest = len(ids) if shortest is None else min(shortest, len(ids))
        if len(ids) > room:
            if data.overlong_prompts == "filter":
                counts["overlong_filtered"] += 1
                continue
            counts["overlong_truncated"] += 1
            ids = renderer.cut_left(ids, room)
            text = renderer.decode(ids)
        row = table.rows[index]
        kept.append(Prompt(table.name, index, text, tuple(ids), label_of(table, index, data), metadata_of(row, data)))
    counts["rows"] += len(table.rows)
    counts["prompts"] += len(kept)
    counts["empty_filtered"] += empty
    if not kept:
        raise DataError(_nothing_left(table, data, room, shortest, empty))
    return kept


def _tokenized(table: Table, data: DataSpec, renderer: Renderer) -> Iterator[tuple[int, str, list[int]]]:
    indices = iter(range(len(table.rows)))
    while chunk := list(islice(indices, TOKENIZE_ROWS)):
        texts = [render(table, index, data, renderer) for index in chunk]
        yield from zip(chunk, texts, renderer.ids(texts), strict=True)


def _nothing_left(table: Table, data: DataSpec, room: int, shortest: int | None, empty: int) -> Violation:
    total = len(table.rows)
    if shortest is None:
        return Violation("spec.data.promptKey", data.prompt_key, f"all {total} prompts of {table.source} are empty")
    rule = (
        f"no prompt of {table.source} is left: {total - empty} of {total} rows are longer than "
        f"maxLength - minResponseTokens = {room} tokens, {empty} are empty; the shortest has {shortest} tokens"
    )
    nearest = f"{shortest + data.min_response_tokens} or more, or overlongPrompts: truncate"
    return Violation("spec.data.maxLength", data.max_length, rule, nearest)
