"""Rows of a data set, wherever it lies: a JSONL or Parquet file, a `datasets` folder, a hub id.

Every fault is a ``DataError`` whose violation names the manifest field, the file, and the line or row.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_api.spec import DatasetSpec
from rlhf_api.violations import Violation
from rlhf_trainer import hub
from rlhf_trainer.errors import DataError

Row = dict[str, Any]

JSON_SUFFIXES = frozenset({".jsonl", ".ndjson", ".json"})
PARQUET_SUFFIXES = frozenset({".parquet", ".pq"})


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of one data set, in the order of its source."""

    name: str
    source: str
    """Path or hub id as messages show it."""
    field: str
    """Manifest field of the data set, ``spec.data.datasets[0]``."""
    rows: list[Row]
    lines: list[int] | None = None
    """1-based line of each row, for JSONL."""

    @property
    def columns(self) -> list[str]:
        """Union of the rows' columns, in order of appearance."""
        return list(dict.fromkeys(itertools.chain.from_iterable(self.rows)))

    def where(self, index: int) -> str:
        if self.lines is not None:
            return f"{self.source}, line {self.lines[index]}"
        return f"{self.source}, row {index} (counted from 0)"


def read(dataset: DatasetSpec, base_dir: Path, field: str, limit: int | None = None) -> Table:
    """Read at most ``limit`` first rows. Relative paths are taken from ``base_dir``; hub access follows HF_HUB_OFFLINE."""
    path = locate(dataset.path, base_dir)
    name = default_name(dataset)
    if path is None:
        rows = _hub_rows(dataset, field, limit)
        return _filled(Table(name, dataset.path, field, rows), dataset)
    if dataset.config is not None:
        raise DataError(
            Violation(f"{field}.config", dataset.config, f"only a hub id has configurations, and {path} is local", "remove config")
        )
    if not path.exists():
        raise DataError(_missing_path(dataset.path, path, base_dir, field))
    if path.is_dir():
        return _filled(Table(name, str(path), field, _folder_rows(dataset, path, field, limit)), dataset)
    if path.suffix in JSON_SUFFIXES:
        numbered = list(itertools.islice(_json_rows(path, field), limit))
        return _filled(Table(name, str(path), field, [row for _, row in numbered], [line for line, _ in numbered]), dataset)
    if path.suffix in PARQUET_SUFFIXES:
        return _filled(Table(name, str(path), field, list(itertools.islice(_parquet_rows(path, field), limit))), dataset)
    raise DataError(
        Violation(f"{field}.path", dataset.path, "a data file must be JSONL (.jsonl, .json) or Parquet (.parquet)", "convert it to .jsonl")
    )


def locate(path: str, base_dir: Path) -> Path | None:
    """The local path that is meant, existing or not; None when it can only be a hub id."""
    local = base_dir / Path(path).expanduser()
    looks_local = path.startswith((".", "/", "~")) or local.suffix in JSON_SUFFIXES | PARQUET_SUFFIXES
    in_folder = "/" in path and (local.parent.is_dir() or path.split("/")[0].casefold() in hub.LOCAL_NAMES)
    if local.exists() or looks_local or in_folder or not hub.HUB_ID.match(path):
        return local
    return None


def default_name(dataset: DatasetSpec) -> str:
    """``name``, else the file, folder or repository name without suffix, in characters that a metric key may have."""
    if dataset.name is not None:
        return dataset.name
    path = Path(dataset.path)
    stem = path.stem if path.suffix in JSON_SUFFIXES | PARQUET_SUFFIXES else path.name
    return re.sub(r"[^A-Za-z0-9._-]", "_", stem) or "data"


def nearest(word: str, known: Sequence[str]) -> str | None:
    """The likeliest intended word, or None."""
    folded = {candidate.casefold(): candidate for candidate in known}
    hits = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return folded[hits[0]] if hits else None


def shorten(value: object, limit: int = 120) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def _filled(table: Table, dataset: DatasetSpec) -> Table:
    if not table.rows:
        raise DataError(Violation(f"{table.field}.path", dataset.path, f"{table.source} has no rows", "a data set with at least one row"))
    return table


def _missing_path(written: str, path: Path, base_dir: Path, field: str) -> Violation:
    folder = path.parent
    if not folder.is_dir():
        rule = f"{path} does not exist, nor does its folder (relative paths start at {base_dir.resolve()})"
        return Violation(f"{field}.path", written, rule)
    names = sorted(entry.name for entry in folder.iterdir() if entry.suffix in JSON_SUFFIXES | PARQUET_SUFFIXES or entry.is_dir())
    guess = nearest(path.name, names)
    listing = ", ".join(names[:8]) or "no data files"
    return Violation(f"{field}.path", written, f"{path} does not exist; the folder holds {listing}", guess)


def _json_rows(path: Path, field: str) -> Iterator[tuple[int, Row]]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if not text:
                    continue
                row = json.loads(text)
            except UnicodeDecodeError as error:
                rule = f"line {number} of {path} is not UTF-8 (byte {error.start})"
                raise DataError(Violation(f"{field}.path", str(path), rule, "save the file as UTF-8")) from error
            except json.JSONDecodeError as error:
                rule = f"line {number} of {path} is not JSON: {error.msg} at column {error.colno}, near {shorten(text, 60)!r}"
                hint = "one JSON object on each line"
                raise DataError(Violation(f"{field}.path", str(path), rule, hint)) from error
            if not isinstance(row, dict):
                rule = f"line {number} of {path} holds a JSON {_json_type(row)}, not an object"
                raise DataError(Violation(f"{field}.path", str(path), rule, 'one object on each line, {"prompt": ...}'))
            yield number, row


def _json_type(value: object) -> str:
    names = {list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _parquet_rows(path: Path, field: str) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise DataError(Violation(f"{field}.path", str(path), f"{path} can't be read as Parquet: {_first_line(error)}")) from error


def _folder_rows(dataset: DatasetSpec, path: Path, field: str, limit: int | None) -> list[Row]:
    import datasets

    is_saved = (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists()
    try:
        if not is_saved:
            return _first_rows(datasets.load_dataset(str(path), split=dataset.split), limit)
        saved = datasets.load_from_disk(str(path))
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        rule = f"the folder {path} can't be read as a data set: {_first_line(error)}"
        raise DataError(Violation(f"{field}.path", dataset.path, rule, "a folder of .jsonl or .parquet files")) from error
    if isinstance(saved, datasets.DatasetDict):
        if dataset.split not in saved:
            splits = ", ".join(saved)
            raise DataError(
                Violation(f"{field}.split", dataset.split, f"{path} has the splits {splits}", nearest(dataset.split, list(saved)))
            )
        saved = saved[dataset.split]
    return _first_rows(saved, limit)


def _hub_rows(dataset: DatasetSpec, field: str, limit: int | None) -> list[Row]:
    import datasets

    try:
        return _first_rows(datasets.load_dataset(dataset.path, dataset.config, split=dataset.split), limit)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        rule = f"neither a file or folder here nor a data set that can be loaded from the hub: {_first_line(error)}"
        hint = "a local .jsonl file, or a hub id that this machine reaches"
        raise DataError(Violation(f"{field}.path", dataset.path, rule, hint)) from error


def _first_rows(rows: Any, limit: int | None) -> list[Row]:
    """``datasets.Dataset`` -> plain rows, without decoding images or audio."""
    if limit is not None and limit < len(rows):
        rows = rows.select(range(limit))
    plain: list[Row] = rows.to_list()
    return plain


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {shorten(text.splitlines()[0], 300) if text else 'no message'}"
