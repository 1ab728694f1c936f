"""``metrics.jsonl``: one object a step, on disk when ``append`` returns; the same numbers as TensorBoard events.

A resumed run continues after its checkpoint, so what a lost attempt wrote beyond it is cut off in both.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rlhf_trainer.checkpoint import durable

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FILE_NAME = "metrics.jsonl"
TENSORBOARD_DIR = "tensorboard"


def finite(metrics: Mapping[str, Any]) -> dict[str, int | float | None]:
    """Python and numpy numbers as JSON numbers; what is not finite becomes None, since JSON has no NaN."""
    return {key: _number(value) for key, value in metrics.items()}


def _number(value: Any) -> int | float | None:
    if value is None:
        return None
    if isinstance(value, int):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else None


def read(path: Path) -> list[dict[str, Any]]:
    """All complete rows; a torn last line (a kill while writing) is left out."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1] if line]


class MetricsLog:
    """Appends to ``<job>/metrics.jsonl`` and, with ``tensorboard``, to ``<job>/tensorboard/``.

    Call ``truncate_after`` before the first ``append`` when a run resumes.
    """

    def __init__(self, job_dir: Path, tensorboard: bool) -> None:
        self.path = job_dir / FILE_NAME
        self._events_dir = job_dir / TENSORBOARD_DIR if tensorboard else None
        self._purge_step: int | None = None
        self._writer: SummaryWriter | None = None

    def truncate_after(self, step: int) -> None:
        """Drop rows beyond ``step`` (-1 drops all) and a torn last line; TensorBoard hides its events beyond ``step``."""
        rows = read(self.path)
        kept = [row for row in rows if row["step"] <= step]
        if self.path.exists():
            durable.write_text(self.path, "".join(_line(row) for row in kept))
        if self._events_dir is not None and self._events_dir.exists():
            self._purge_step = step + 1

    def append(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write one row. Values that are not finite are null in the file and absent in TensorBoard."""
        row = {"step": step, **finite(metrics)}
        with durable.full_disk_named(self.path), self.path.open("ab") as file:
            file.write(_line(row).encode())
            file.flush()
            os.fsync(file.fileno())
        writer = self._events()
        if writer is not None:
            for key, value in row.items():
                if value is not None and key != "step":
                    writer.add_scalar(key, value, step)
            writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _events(self) -> SummaryWriter | None:
        if self._writer is None and self._events_dir is not None:
            # Imported late: it takes two seconds, and reading or truncating the log needs none of it.
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._events_dir), purge_step=self._purge_step)
        return self._writer


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"
