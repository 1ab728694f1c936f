import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlhf_api.spec import DatasetSpec
from rlhf_trainer.data import sources
from rlhf_trainer.errors import DataError

ROWS = [{"question": "1 + 1 =", "answer": "2", "level": 1}, {"question": "2 + 3 =", "answer": "5", "level": 2}]
FIELD = "spec.data.datasets[0]"


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(folder: Path, path: str, **fields) -> sources.Table:
    return sources.read(DatasetSpec(path=path, **fields), folder, FIELD)


def fault_of(folder: Path, path: str, **fields) -> str:
    with pytest.raises(DataError) as caught:
        read(folder, path, **fields)
    assert caught.value.violation is not None
    assert caught.value.violation.field.startswith(FIELD)
    return str(caught.value)


def test_jsonl_relative_to_the_manifest_with_blank_lines_and_bom(tmp_path):
    text = "\ufeff" + json.dumps(ROWS[0]) + "\n\n" + json.dumps(ROWS[1])
    (tmp_path / "sums.jsonl").write_text(text, encoding="utf-8")
    table = read(tmp_path, "sums.jsonl")
    assert (table.name, table.rows, table.columns) == ("sums", ROWS, ["question", "answer", "level"])
    assert table.where(1).endswith("sums.jsonl, line 3")


def test_parquet_and_limit(tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "sums.parquet")
    assert read(tmp_path, "sums.parquet").rows == ROWS
    assert len(sources.read(DatasetSpec(path="sums.parquet"), tmp_path, FIELD, limit=1).rows) == 1


def test_saved_datasets_folder_with_splits(tmp_path):
    datasets = pytest.importorskip("datasets")
    split = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": split, "validation": split.select([1])}).save_to_disk(str(tmp_path / "saved"))
    assert read(tmp_path, "saved").rows == ROWS
    assert read(tmp_path, "saved", split="validation").rows == ROWS[1:]
    text = fault_of(tmp_path, "saved", split="valid")
    assert "train, validation" in text
    assert "Nearest: validation" in text


def test_folder_of_files_is_read_by_datasets(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "files"
    folder.mkdir()
    write_jsonl(folder / "train.jsonl", ROWS)
    assert read(tmp_path, "files").rows == ROWS


def test_missing_data_folder_is_no_hub_id(tmp_path):
    assert "does not exist" in fault_of(tmp_path, "data/train")
    (tmp_path / "mine").mkdir()
    assert "does not exist" in fault_of(tmp_path, "mine/train")


def test_hub_id_offline_says_so(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    text = fault_of(tmp_path, "nobody/nothing-of-this-name")
    assert "neither a file or folder here nor a data set" in text


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"a": 1}\n{"a": \n', ["line 2 of", "is not JSON", "column"]),
        (b'{"a": 1}\n[1, 2]\n', ["line 2 of", "JSON array, not an object"]),
        (b'{"a": 1}\n{"a": "\xff"}\n', ["line 2 of", "not UTF-8"]),
        (b"", ["has no rows"]),
        (b"\n\n", ["has no rows"]),
    ],
)
def test_bad_jsonl_names_file_and_line(tmp_path, content, expected):
    (tmp_path / "bad.jsonl").write_bytes(content)
    text = fault_of(tmp_path, "bad.jsonl")
    assert all(part in text for part in [*expected, "bad.jsonl"])


def test_missing_file_names_the_nearest(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", ROWS)
    text = fault_of(tmp_path, "trian.jsonl")
    assert "does not exist" in text
    assert "Nearest: train.jsonl" in text
    assert "nor does its folder" in fault_of(tmp_path, "./deep/trian.jsonl")


def test_broken_parquet_and_unknown_suffix(tmp_path):
    (tmp_path / "rows.parquet").write_bytes(b"not parquet")
    assert "can't be read as Parquet" in fault_of(tmp_path, "rows.parquet")
    (tmp_path / "rows.txt").write_text("x")
    assert "must be JSONL" in fault_of(tmp_path, "rows.txt")


def test_configuration_of_a_local_file_is_refused(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", ROWS)
    assert "only a hub id has configurations" in fault_of(tmp_path, "train.jsonl", config="main")
