"""What a namespace looks like: objects, events, last log lines. For messages of failed waits and failed tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kubernetes.client import ApiException
from kubernetes.dynamic.exceptions import NotFoundError, ResourceNotFoundError
from urllib3.exceptions import HTTPError

from e2e.kit.api import Api

LOG_LINES = 15
EVENTS = 25


def describe(api: Api) -> str:
    """Text of at most a few hundred lines. Never raises for a cluster that does not answer: says so instead."""
    try:
        return "\n".join(_lines(api))
    except (ApiException, HTTPError, OSError) as error:
        return f"(the API server gave no evidence: {error})"


def _lines(api: Api) -> Iterator[str]:
    yield f"--- namespace {api.namespace}"
    for kind in ("RLHFJob", "RayCluster", "PersistentVolumeClaim"):
        try:
            found = api.list(kind)
        except (ResourceNotFoundError, NotFoundError):
            continue
        for item in found:
            yield f"{kind} {item['metadata']['name']}: {_status(item)}"
    pods = api.list("Pod")
    for pod in pods:
        yield from _pod(pod)
    yield "events:"
    events = sorted(api.list("Event"), key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    for event in events[-EVENTS:]:
        involved = event.get("involvedObject", {})
        yield f"  {event.get('type')} {involved.get('kind')}/{involved.get('name')} {event.get('reason')}: {event.get('message')}"
    for pod in pods:
        yield from _logs(api, pod)


def _status(item: dict[str, Any]) -> str:
    status = item.get("status") or {}
    conditions = "; ".join(
        f"{condition['type']}={condition['status']} ({condition.get('reason')}) {condition.get('message', '')}".strip()
        for condition in status.get("conditions") or []
    )
    rest = {key: value for key, value in status.items() if key != "conditions" and not isinstance(value, dict | list)}
    return f"{rest} {conditions}"


def _pod(pod: dict[str, Any]) -> Iterator[str]:
    status = pod.get("status") or {}
    going = " terminating" if pod["metadata"].get("deletionTimestamp") else ""
    why = f"{status.get('reason', '')} {status.get('message', '')}".strip()
    yield f"Pod {pod['metadata']['name']}: {status.get('phase')}{going} node={pod['spec'].get('nodeName')} {why}"
    for condition in status.get("conditions") or []:
        if condition["status"] != "True":
            yield f"  {condition['type']}={condition['status']} {condition.get('reason', '')}: {condition.get('message', '')}"
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        states = f"state={container.get('state')} last={container.get('lastState')}"
        yield f"  {container['name']}: restarts={container['restartCount']} {states}"


def _logs(api: Api, pod: dict[str, Any]) -> Iterator[str]:
    for container in [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]:
        for previous in (False, True):
            try:
                text = api.logs(pod["metadata"]["name"], container["name"], previous=previous, lines=LOG_LINES)
            except (ApiException, HTTPError):
                continue
            if text.strip():
                yield f"log of {pod['metadata']['name']}/{container['name']}{' before its restart' if previous else ''}:"
                yield from (f"  {line}" for line in text.splitlines())
