from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_api.resolve import resolve
from rlhf_api.spec import RLHFJob
from tests.rlhf_api.jobs import changed

RawJob = Callable[..., dict[str, Any]]


@pytest.fixture
def raw_job() -> RawJob:
    """``raw_job({"rl.kl.coef": 0})`` is BASE with fields below ``spec`` (or ``metadata``) set; list items by number."""

    def build(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return changed(changes or {})

    return build


@pytest.fixture
def valid_job(raw_job: RawJob) -> Callable[..., RLHFJob]:
    """The same as a model: preset merged, schema checked, rules not."""

    def build(changes: Mapping[str, Any] | None = None) -> RLHFJob:
        return RLHFJob.model_validate(resolve(raw_job(changes)), by_alias=True, by_name=False)

    return build


@pytest.fixture
def write_manifest(tmp_path: Path, raw_job: RawJob) -> Callable[..., Path]:
    """Writes ``raw_job(changes)`` as job.yaml and returns its path."""

    def write(changes: Mapping[str, Any] | None = None) -> Path:
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(raw_job(changes), sort_keys=False))
        return path

    return write
