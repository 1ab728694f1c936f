"""Bodies of the API server -> the typed views that decisions read. Pure, and total: an absent or odd field has a neutral value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from rlhf_api import quantity
from rlhf_api.masking import heard
from rlhf_operator import names
from rlhf_operator.decide.observation import ContainerView, PodView, RayClusterView, VolumeClaimView

# KubeRay 1.6, utils: labels of a Ray pod.
GROUP_LABEL = "ray.io/group"
EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """A RayCluster as cached; whether it is the job's own is decided when a job looks."""

    version: int
    owners: frozenset[str]
    labelled: str
    """UID of the job in its labels; empty where either label is missing."""
    view: RayClusterView

    def for_job(self, uid: str, warning: str, known: str | None = None) -> RayClusterView:
        """``known``: UID of the cluster that the job's status names. It stays the job's own without an ownerReference."""
        owned = uid in self.owners
        mine = owned or (known is not None and self.view.uid == known and not self.owners)
        return replace(self.view, owned=mine, warning=warning, marked=owned and self.labelled == uid)


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def items(value: Any) -> Iterable[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def words(value: Any) -> str:
    """A message for people, perhaps the end of a container's log: masked before anybody cuts it."""
    return heard(text(value))


def number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def time(value: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) and value else None
    except ValueError:
        return None


def resource_version(body: Mapping[str, Any]) -> int:
    """Comparable within one kind; 0 where it is not a number."""
    value = text(mapping(body.get("metadata")).get("resourceVersion"))
    return int(value) if value.isdigit() else 0


def conditions(body: Any) -> Mapping[str, tuple[str, str, str]]:
    """Type -> (status, reason, message)."""
    return {
        text(each.get("type")): (text(each.get("status")), text(each.get("reason")), words(each.get("message")))
        for each in items(body)
        if each.get("type")
    }


def owners(body: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(text(each.get("uid")) for each in items(mapping(body.get("metadata")).get("ownerReferences")))


def cluster_record(body: Mapping[str, Any]) -> ClusterRecord:
    meta, spec, status = mapping(body.get("metadata")), mapping(body.get("spec")), mapping(body.get("status"))
    labels = mapping(meta.get("labels"))
    return ClusterRecord(
        version=resource_version(body),
        owners=owners(body),
        labelled=text(labels.get(names.JOB_UID_LABEL)) if labels.get(names.JOB_LABEL) == meta.get("name") else "",
        view=RayClusterView(
            name=text(meta.get("name")),
            uid=text(meta.get("uid")),
            owned=False,
            deleting=bool(meta.get("deletionTimestamp")),
            suspend=bool(spec.get("suspend")),
            queue=text(labels.get(names.QUEUE_LABEL)),
            conditions=conditions(status.get("conditions")),
            ready_workers=number(status.get("readyWorkerReplicas")),
            desired_workers=number(status.get("desiredWorkerReplicas")),
            state=text(status.get("state")),
            head_service=text(mapping(status.get("head")).get("serviceName")),
            created_at=time(meta.get("creationTimestamp")) or EPOCH,
            resumed_at=_resumed(status.get("conditions")),
        ),
    )


def _resumed(conditions: Any) -> datetime | None:
    """KubeRay 1.6 keeps the condition after the suspension, as False; a cluster that never was suspended has none."""
    found = next((each for each in items(conditions) if each.get("type") == "RayClusterSuspended"), {})
    return time(found.get("lastTransitionTime")) if found.get("status") == "False" else None


def without_templates(body: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a RayCluster or pod that are looked at here: a list of thousands need not stay in memory whole."""
    meta, spec = mapping(body.get("metadata")), mapping(body.get("spec"))
    return {
        "metadata": {name: value for name, value in meta.items() if name != "managedFields"},
        "spec": {name: spec[name] for name in ("nodeName", "suspend") if name in spec},
        "status": body.get("status"),
    }


def claim_view(body: Mapping[str, Any], job: str, message: str) -> VolumeClaimView:
    meta, spec, status = mapping(body.get("metadata")), mapping(body.get("spec")), mapping(body.get("status"))
    modes = spec.get("accessModes")
    said = (mapping(mapping(spec.get("resources")).get("requests")).get("storage"), mapping(status.get("capacity")).get("storage"))
    sizes = [size for size in map(_size, said) if size is not None]
    return VolumeClaimView(
        name=text(meta.get("name")),
        phase=text(status.get("phase")) or "Pending",
        owned=mapping(meta.get("labels")).get(names.JOB_LABEL) == job,
        access_modes=tuple(map(str, modes)) if isinstance(modes, list) else (),
        message=message,
        size_bytes=max(sizes, default=None),
    )


def _size(value: Any) -> int | None:
    """Bytes, rounded up as Kubernetes does; None for none."""
    try:
        return math.ceil(quantity.parse(value)) if isinstance(value, str | int) else None
    except (ArithmeticError, ValueError):
        return None


def pod_view(body: Mapping[str, Any], *, gone: bool) -> PodView:
    meta, spec, status = mapping(body.get("metadata")), mapping(body.get("spec")), mapping(body.get("status"))
    labels = mapping(meta.get("labels"))
    known = conditions(status.get("conditions"))
    scheduled, disrupted = known.get("PodScheduled", ("", "", "")), known.get("DisruptionTarget", ("", "", ""))
    containers = [_container(each, init=True) for each in items(status.get("initContainerStatuses"))]
    containers += [_container(each, init=False) for each in items(status.get("containerStatuses"))]
    return PodView(
        name=text(meta.get("name")),
        uid=text(meta.get("uid")),
        group=text(labels.get(GROUP_LABEL)),
        head=labels.get(names.NODE_TYPE_LABEL) == names.HEAD_NODE,
        phase=text(status.get("phase")) or "Pending",
        ready=known.get("Ready", ("", "", ""))[0] == "True",
        created_at=time(meta.get("creationTimestamp")) or EPOCH,
        node=text(spec.get("nodeName")),
        reason=text(status.get("reason")),
        message=words(status.get("message")),
        deleting_since=_deletion(meta),
        disruption=disrupted[1] if disrupted[0] == "True" else "",
        unschedulable=scheduled[2] if scheduled[0] == "False" and scheduled[1] == "Unschedulable" else "",
        containers=tuple(containers),
        gone=gone,
    )


def _deletion(meta: Mapping[str, Any]) -> datetime | None:
    """When the deletion was asked for: ``deletionTimestamp`` is when the grace period ends."""
    ends = time(meta.get("deletionTimestamp"))
    return ends - timedelta(seconds=number(meta.get("deletionGracePeriodSeconds"))) if ends is not None else None


def _container(body: Mapping[str, Any], *, init: bool) -> ContainerView:
    state, last = mapping(body.get("state")), mapping(body.get("lastState"))
    waiting, running = mapping(state.get("waiting")), mapping(state.get("running"))
    terminated = mapping(state.get("terminated")) or mapping(last.get("terminated"))
    code = terminated.get("exitCode")
    return ContainerView(
        name=text(body.get("name")),
        container_id=text(body.get("containerID")),
        restart_count=number(body.get("restartCount")),
        ready=bool(body.get("ready")),
        waiting_reason=text(waiting.get("reason")),
        waiting_message=words(waiting.get("message")),
        terminated_reason=text(terminated.get("reason")),
        terminated_exit_code=code if isinstance(code, int) else None,
        terminated_message=words(terminated.get("message"))[-1024:],
        terminated_at=time(terminated.get("finishedAt")),
        init=init,
        state="terminated" if "terminated" in state else "waiting" if "waiting" in state else "running",
        started_at=time(running.get("startedAt")),
    )
