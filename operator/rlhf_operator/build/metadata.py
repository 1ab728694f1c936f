"""Metadata that all children share."""

from __future__ import annotations

from typing import Any

from rlhf_api import API_VERSION, KIND
from rlhf_api.spec import RLHFJob
from rlhf_operator import names

Object = dict[str, Any]
"""A Kubernetes object, or a part of one, as JSON has it."""


def uid_of(job: RLHFJob) -> str:
    """UID that the API server gave. Raises ValueError for a job that was never stored: nothing may be built for it."""
    if job.metadata.uid is None:
        raise ValueError(f"RLHFJob {job.metadata.name} has no metadata.uid")
    return job.metadata.uid


def labels(job: RLHFJob) -> dict[str, str]:
    return {
        names.JOB_LABEL: job.metadata.name,
        names.JOB_UID_LABEL: uid_of(job),
        names.MANAGED_BY_LABEL: names.MANAGED_BY,
    }


def owner(job: RLHFJob) -> Object:
    """What makes a child go with its job, also while the operator is down."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.metadata.name,
        "uid": uid_of(job),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def metadata(job: RLHFJob, name: str, *, owned: bool = True) -> Object:
    found: Object = {"name": name, "namespace": job.metadata.namespace, "labels": labels(job)}
    if owned:
        found["ownerReferences"] = [owner(job)]
    return found
