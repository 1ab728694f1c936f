"""What a pod overlay may not change: compared before and after the merge, so that no way of writing it slips through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rlhf_api.owned import NETWORKS_ANNOTATION, QUEUE_LABEL, is_owned_key, is_owned_volume, owned_path
from rlhf_api.violations import Violation
from rlhf_operator import names
from rlhf_operator.build.metadata import Object
from rlhf_operator.build.network_env import LOCKED_MEMORY
from rlhf_operator.build.overlay import FIELD
from rlhf_operator.build.pods import HEAD_PORTS

KUBERAY_ENV = frozenset(
    {
        "FQ_RAY_IP", "KUBERAY_GEN_RAY_START_CMD", "RAY_ADDRESS", "RAY_CLOUD_INSTANCE_ID", "RAY_CLUSTER_NAME", "RAY_CLUSTER_NAMESPACE",
        "RAY_DASHBOARD_ADDRESS", "RAY_IP", "RAY_JOB_SUBMISSION_ID", "RAY_NODE_TYPE_NAME", "RAY_PORT", "RAY_REDIS_ADDRESS",
        "RAY_USAGE_STATS_EXTRA_TAGS", "RAY_USAGE_STATS_KUBERAY_IN_USE", "RAY_enable_autoscaler_v2", "REDIS_PASSWORD", "REDIS_USERNAME",
    }
)  # fmt: skip
"""Variables that KubeRay 1.5 to 1.7 sets, some without a look at what stands there, or refuses."""
AUTH_ENV = frozenset({"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ENABLE_K8S_TOKEN_AUTH"})

INIT_CONTAINER = "wait-gcs-ready"
"""KubeRay adds it to workers."""

_CLUSTER = "spec.cluster"
_POD_FIELDS = {
    "activeDeadlineSeconds": "spec.lifecycle.activeDeadlineSeconds",
    "automountServiceAccountToken": None,
    "enableServiceLinks": None,
    "hostname": None,
    "nodeName": f"{_CLUSTER}.workers.nodeSelector",
    "restartPolicy": "spec.lifecycle.maxInfraRestarts",
    "serviceAccount": f"{_CLUSTER}.serviceAccountName",
    "serviceAccountName": f"{_CLUSTER}.serviceAccountName",
    "subdomain": None,
    "terminationGracePeriodSeconds": f"{_CLUSTER}.terminationGracePeriodSeconds",
}
"""Field of a pod -> the field of the job that says it; None where nothing may."""
_SECURITY_FIELDS = ("runAsNonRoot", "runAsUser", "runAsGroup", "fsGroup", "supplementalGroups")
_CONTAINER_FIELDS = {
    "args": None,
    "command": None,
    "image": f"{_CLUSTER}.image",
    "imagePullPolicy": f"{_CLUSTER}.imagePullPolicy",
}
_LISTS = (
    ("env", "name", f"{_CLUSTER}.env, secretEnv or network.env"),
    ("ports", "containerPort", None),
    ("volumeMounts", "mountPath", f"{_CLUSTER}.volumes"),
)
_OWNED = "the operator or KubeRay owns this"


def fights(before: Object, after: Object) -> tuple[Violation, ...]:
    """``before``: a template as built; ``after``: with the overlay. One violation a field that the overlay took over."""
    return (*_metadata(before, after), *_pod(before["spec"], after.get("spec", {})))


def _metadata(before: Object, after: Object) -> Iterator[Violation]:
    metadata = after.get("metadata", {})
    for field in ("labels", "annotations"):
        old, new = before["metadata"].get(field, {}), metadata.get(field, {})
        for name in sorted(old.keys() | new.keys()):
            kept = name in old or is_owned_key(name) or name in (NETWORKS_ANNOTATION, QUEUE_LABEL)
            if kept and old.get(name) != new.get(name):
                yield _refuse(f"metadata.{field}.{name}", new.get(name), _metadata_nearest(field, name))


def _metadata_nearest(field: str, name: str) -> str:
    return f"{_CLUSTER}.network.infiniband.networks" if name == NETWORKS_ANNOTATION else f"another name, or {_CLUSTER}.{field}"


def _pod(before: Object, after: Object) -> Iterator[Violation]:
    for field, nearest in _POD_FIELDS.items():
        if before.get(field) != after.get(field):
            yield _refuse(f"spec.{field}", after.get(field), nearest)
    old, new = before["securityContext"], after.get("securityContext", {})
    for field in _SECURITY_FIELDS:
        if old.get(field) != new.get(field):
            yield _refuse(f"spec.securityContext.{field}", new.get(field), f"{_CLUSTER}.securityContext")
    for field in ("volumes", "imagePullSecrets"):
        yield from _items("name", before.get(field, []), after.get(field, []), f"spec.{field}", f"{_CLUSTER}.{field}")
    present = {volume["name"] for volume in before["volumes"]}
    for volume in after.get("volumes", []):
        if volume["name"] not in present and is_owned_volume(volume["name"]):
            yield _refuse(f"spec.volumes[{volume['name']}]", volume["name"], "another name")
        sources = volume.get("projected", {}).get("sources", []) if isinstance(volume.get("projected", {}), dict) else []
        if any(isinstance(source, dict) and "serviceAccountToken" in source for source in sources or []):
            yield Violation(f"{FIELD}.spec.volumes[{volume['name']}]", "serviceAccountToken", "pods carry no Kubernetes credentials")
    containers = after.get("containers", [])
    if not containers or containers[0].get("name") != names.RAY_CONTAINER:
        yield _refuse("spec.containers", None, "further containers beside it")
        return
    yield from _ray(before["containers"][0], containers[0])
    for field, others in (("containers", containers[1:]), ("initContainers", after.get("initContainers", []))):
        yield from _others(field, others)


def _ray(before: Object, after: Object) -> Iterator[Violation]:
    at = f"spec.containers[{names.RAY_CONTAINER}]"
    for field, nearest in _CONTAINER_FIELDS.items():
        if before.get(field) != after.get(field):
            yield _refuse(f"{at}.{field}", after.get(field), nearest)
    for field in ("requests", "limits"):
        new = (after.get("resources") or {}).get(field)
        if before["resources"].get(field) != new:
            yield _refuse(f"{at}.resources.{field}", new, f"{_CLUSTER}.head.resources or {_CLUSTER}.workers.resources")
    for field, key, nearest in _LISTS:
        yield from _items(key, before[field], after.get(field) or [], f"{at}.{field}", nearest)
    known = {entry["name"] for entry in before["env"]}
    for entry in after.get("env") or []:
        if entry["name"] in KUBERAY_ENV | AUTH_ENV and entry["name"] not in known:
            yield _refuse(f"{at}.env[{entry['name']}]", entry.get("value"), "another name")
    declared = [port["containerPort"] for port in before["ports"]]
    for port in after.get("ports") or []:
        if port["containerPort"] not in declared and port["containerPort"] in (*HEAD_PORTS.values(), names.AGENT_PORT):
            yield _refuse(f"{at}.ports[{port['containerPort']}]", port["containerPort"], "a port that Ray and the trainer leave free")
    paths = [mount["mountPath"] for mount in before["volumeMounts"]]
    for mount in after.get("volumeMounts") or []:
        if mount["mountPath"] not in paths and owned_path(mount["mountPath"]) is not None:
            yield _refuse(f"{at}.volumeMounts[{mount['mountPath']}]", mount["mountPath"], "a folder beside the operator's own")
    if LOCKED_MEMORY in _added_capabilities(before) and LOCKED_MEMORY not in _added_capabilities(after):
        yield _refuse(f"{at}.securityContext.capabilities.add", _added_capabilities(after), f"{LOCKED_MEMORY} among them")


def _items(key: str, before: Sequence[Object], after: Sequence[Object], at: str, nearest: str | None) -> Iterator[Violation]:
    """Items that were there are there still, unchanged; new ones may follow."""
    found = {item[key]: item for item in after}
    for item in before:
        new = found.get(item[key])
        if new != item:
            yield _refuse(f"{at}[{item[key]}]", None if new is None else _difference(item, new), nearest)


def _difference(old: Object, new: Object) -> Any:
    changed = {name: value for name, value in new.items() if old.get(name) != value}
    return next(iter(changed.values())) if len(changed) == 1 else None


def _others(field: str, containers: Sequence[Object]) -> Iterator[Violation]:
    for container in containers:
        at = f"spec.{field}[{container['name']}]"
        if container["name"] in (INIT_CONTAINER, names.RAY_CONTAINER):
            yield _refuse(at, container["name"], "another name")
        for port in container.get("ports") or []:
            if port["containerPort"] in (*HEAD_PORTS.values(), names.AGENT_PORT):
                yield _refuse(f"{at}.ports[{port['containerPort']}]", port["containerPort"], "a port that Ray and the trainer leave free")


def _added_capabilities(container: Object) -> list[Any]:
    added = ((container.get("securityContext") or {}).get("capabilities") or {}).get("add")
    return list(added) if isinstance(added, list) else []


def _refuse(place: str, value: object, nearest: str | None) -> Violation:
    return Violation(f"{FIELD}.{place}", value, _OWNED, nearest)
