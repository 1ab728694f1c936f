"""A stored RLHFJob -> the view that decisions read. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from rlhf_api import manifest, rules
from rlhf_api.clusterplan import worker_groups
from rlhf_api.resolve import derive, to_yaml
from rlhf_api.spec import RLHFJob
from rlhf_api.status import RLHFJobStatus
from rlhf_operator import build
from rlhf_operator.decide.observation import JobView
from rlhf_operator.runtime.views import EPOCH, mapping, number, text, time

EDITABLE = ("spec.suspend", "spec.lifecycle")
FREE_MAPS = frozenset({"podOverlay", "affinity", "engineArgs"})
"""Fields whose content the API server does not look into, so that no transition rule guards it."""


def job_view(body: Mapping[str, Any], known: JobView | None) -> JobView:
    """``known``: the view of the same generation, whose parsed spec is taken over."""
    meta = mapping(body.get("metadata"))
    if known is None:
        spec, problems = parse(body)
        groups = worker_groups(spec) if spec is not None else ()
        known = JobView(
            namespace=text(meta.get("namespace")),
            name=text(meta.get("name")),
            uid=text(meta.get("uid")),
            generation=number(meta.get("generation")),
            created_at=time(meta.get("creationTimestamp")) or EPOCH,
            deleting=False,
            spec=spec,
            problems=problems,
            ignored_edits=(),
            status=RLHFJobStatus(),
            worker_pods=sum(group.pods for group in groups),
            gpus=sum(group.pods * group.gpus_per_pod for group in groups),
        )
    return dataclasses.replace(known, deleting=bool(meta.get("deletionTimestamp")), status=stored_status(body))


def parse(body: Mapping[str, Any]) -> tuple[RLHFJob | None, tuple[str, ...]]:
    """The job as it would run on a cluster, or every rule that it breaks there."""
    slim = {name: body[name] for name in ("apiVersion", "kind", "metadata", "spec") if name in body}
    job, violations = manifest.validate(slim)
    if job is not None:
        job = derive(job)
        violations = rules.check_cluster(job)
    return (None, tuple(map(str, violations))) if violations or job is None else (job, ())


def stored_status(body: Mapping[str, Any]) -> RLHFJobStatus:
    """Fields that can't be read are left out one by one: a damaged status must not lose the attempt's number."""
    raw = mapping(body.get("status"))
    while True:
        try:
            return RLHFJobStatus.model_validate_json(json.dumps(raw))
        except ValidationError as fault:
            broken = {str(each["loc"][0]) for each in fault.errors() if each["loc"]}
            if not broken & set(raw):
                return RLHFJobStatus()
            raw = {name: value for name, value in raw.items() if name not in broken}


def status_body(status: RLHFJobStatus) -> dict[str, Any]:
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def ignored_edits(job: RLHFJob, stored: str) -> tuple[str, ...]:
    """Fields whose value differs from the resolved job that the trainer runs with."""
    try:
        before = yaml.safe_load(stored)
    except yaml.YAMLError:
        return ()
    after = yaml.safe_load(to_yaml(build.on_cluster(job)))
    old, new = mapping(mapping(before).get("spec")), mapping(after["spec"])
    found = dict.fromkeys(path for path in _differences(old, new, "spec", free=False) if not path.startswith(EDITABLE))
    return tuple(found)


def _differences(old: Any, new: Any, path: str, *, free: bool) -> Iterator[str]:
    """A field that only one side has counts inside free maps alone: elsewhere a newer operator has added it."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in {**old, **new}:
            inside = free or name in FREE_MAPS
            if name in old and name in new:
                yield from _differences(old[name], new[name], f"{path}.{name}", free=inside)
            elif inside:
                yield f"{path}.{name}"
    elif old != new:
        yield path
