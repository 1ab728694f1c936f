from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_api import manifest
from rlhf_api.spec import RLHFJob
from rlhf_operator.build import config_map, on_cluster

MakeJob = Callable[..., RLHFJob]


def document(job: RLHFJob) -> dict[str, Any]:
    found = yaml.safe_load(config_map(job)["data"]["job.yaml"])
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("which", ["tiny", "infiniband", "separate"])
def test_trainer_reads_the_same_job(which: str, make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job(which)
    path = tmp_path / "job.yaml"
    path.write_text(config_map(job)["data"]["job.yaml"])
    assert manifest.load(path).job == on_cluster(job)


def test_identity_is_kept_and_what_changes_is_not(make_job: MakeJob) -> None:
    job = make_job()
    assert document(job)["metadata"] == {"name": "example", "namespace": "team", "uid": job.metadata.uid, "labels": {}, "annotations": {}}


def test_job_runs_on_gpus_and_saves_on_the_volume(make_job: MakeJob) -> None:
    spec = document(make_job("infiniband", {"checkpoint.path": "out"}))["spec"]
    assert spec["placement"]["accelerator"] == "gpu"
    assert spec["checkpoint"]["path"] == "/checkpoints"
    assert document(make_job("tiny"))["spec"]["placement"]["accelerator"] == "cpu"


def test_config_map_is_immutable_and_goes_with_its_job(make_job: MakeJob) -> None:
    job = make_job()
    found = config_map(job)
    assert found["immutable"] is True
    assert found["metadata"]["name"] == "example-config"
    assert found["metadata"]["namespace"] == "team"
    assert found["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "rlhf.dev/v1alpha1",
            "kind": "RLHFJob",
            "name": "example",
            "uid": job.metadata.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def test_job_without_a_uid_builds_nothing(make_job: MakeJob) -> None:
    job = make_job()
    unstored = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": None})})
    with pytest.raises(ValueError, match=r"no metadata\.uid"):
        config_map(unstored)
