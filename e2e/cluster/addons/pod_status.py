"""What a kubelet would say of a pod to which something was made to happen. Pure: a pod and a behaviour in, a change of its status out.

A behaviour comes from annotations `e2e.rlhf.dev/FIELD` of the pod, else from the first rule that matches it in the ConfigMap
`e2e-pods` of its namespace (key `rules`: a YAML list), else it is `ready`. A rule is `{selector: {LABEL: VALUE}, count: N, FIELD: VALUE}`;
with `count` only the first N pods that match are meant. Fields:

outcome: one of OUTCOMES.
afterSeconds: how long later; a pod that is to end runs until then.
container: the one it happens to; else all.
exitCode, reason, message: in place of the usual ones.
address: in place of the next free one.
node: the node the pod is bound to; else node1.
again: change it to let the same happen once more.
holdDeletion: "true" lets a deleted pod hang.

In annotations the names have dashes: `e2e.rlhf.dev/after-seconds`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from e2e.cluster.init import NODE_ADDRESS

Object = dict[str, Any]

PREFIX = "e2e.rlhf.dev/"
RULES_NAME = "e2e-pods"
# Tells, in the pod's own status, what was done to it last: whoever marks pods may be restarted.
MARK = PREFIX + "marked"

OUTCOMES = {
    "ready": "runs and is Ready",
    "not-ready": "runs, but its readiness probe fails",
    "pending": "is scheduled, its containers are being created",
    "unschedulable": "fits no node",
    "image-pull-backoff": "its image cannot be pulled",
    "crash-loop": "ends again and again; waits for its next start",
    "failed": "its container ends with exit code 1, and starts again if restartPolicy says so",
    "oom-killed": "its container ends for lack of memory, and starts again if restartPolicy says so",
    "evicted": "is thrown off its node; Failed under any restartPolicy",
    "succeeded": "its container ends with exit code 0, and starts again if restartPolicy is Always",
}
# A pod that is to end after a while runs until then.
_ENDINGS = frozenset({"crash-loop", "failed", "oom-killed", "evicted", "succeeded"})
# What can only happen to a pod that has not started.
_BEFORE_START = frozenset({"pending", "unschedulable", "image-pull-backoff"})


@dataclass(frozen=True)
class Behaviour:
    """What is to happen to a pod."""

    outcome: str = "ready"
    after_seconds: float = 0.0
    container: str = ""
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    address: str = ""
    node: str = ""
    again: str = ""
    hold_deletion: bool = False

    @property
    def ends(self) -> bool:
        """Whether the pod, or one container of it, ends."""
        return self.outcome in _ENDINGS

    @property
    def signature(self) -> str:
        """Equal for equal happenings: each is done to a pod once."""
        return json.dumps([self.outcome, self.container, self.exit_code, self.reason, self.message, self.again])


READY = Behaviour()
_PARSERS: dict[str, Any] = {
    "after_seconds": float,
    "exit_code": int,
    "hold_deletion": lambda value: str(value).lower() == "true",
}


def parse(fields: Mapping[str, Any]) -> Behaviour:
    """A behaviour from fields with dashes or in camel case; raises ValueError naming the field and what is allowed."""
    values: dict[str, Any] = {}
    for given, value in fields.items():
        name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in given.replace("-", "_"))
        if name not in Behaviour.__dataclass_fields__:
            raise ValueError(f"{given}: no such field; there are {', '.join(Behaviour.__dataclass_fields__)}")
        try:
            values[name] = _PARSERS.get(name, str)(value)
        except ValueError as error:
            raise ValueError(f"{given}: {value!r} is no number") from error
    behaviour = Behaviour(**values)
    if behaviour.outcome not in OUTCOMES:
        raise ValueError(f"outcome: {behaviour.outcome!r}; possible are {', '.join(OUTCOMES)}")
    return behaviour


def from_annotations(pod: Object) -> Behaviour | None:
    """The behaviour the pod itself asks for; None when it asks for none."""
    annotations = pod["metadata"].get("annotations") or {}
    fields = {key.removeprefix(PREFIX): value for key, value in annotations.items() if key.startswith(PREFIX)}
    return parse(fields) if fields else None


@dataclass(frozen=True)
class Rule:
    """Pods with these labels behave so; with `count` only the first so many."""

    selector: tuple[tuple[str, str], ...]
    count: int | None
    behaviour: Behaviour

    def matches(self, pod: Object) -> bool:
        """Whether the pod has all the labels."""
        labels = pod["metadata"].get("labels") or {}
        return bool(set(self.selector) <= set(labels.items()))


def parse_rules(text: str) -> list[Rule]:
    """The rules of a ConfigMap; raises ValueError."""
    rules = []
    for entry in yaml.safe_load(text) or []:
        fields = dict(entry)
        selector, count = fields.pop("selector", {}), fields.pop("count", None)
        rules.append(Rule(tuple(sorted(selector.items())), count, parse(fields)))
    return rules


def started(pod: Object) -> bool:
    """Whether the pod's containers have been started."""
    return bool(pod.get("status", {}).get("phase") == "Running")


def ended(pod: Object) -> bool:
    """Whether the pod has come to its end; its status never changes again."""
    return pod.get("status", {}).get("phase") in ("Failed", "Succeeded")


def mark_of(pod: Object) -> str | None:
    """Signature of what was last done to the pod, from its status."""
    conditions = pod.get("status", {}).get("conditions") or []
    return next((condition.get("message") for condition in conditions if condition["type"] == MARK), None)


def next_status(pod: Object, behaviour: Behaviour, address: str, now: str) -> Object | None:
    """The change of the pod's status, as a strategic merge patch; None where this cannot happen to the pod any more. `now` is RFC 3339."""
    if ended(pod) or (started(pod) and behaviour.outcome in _BEFORE_START):
        return None
    return _Change(pod, behaviour, address, now).status()


@dataclass(frozen=True)
class _Change:
    pod: Object
    behaviour: Behaviour
    address: str
    now: str

    def status(self) -> Object:
        outcome = self.behaviour.outcome
        if outcome == "unschedulable":
            return self._unschedulable()
        if outcome == "pending":
            return self._waiting("ContainerCreating", "")
        if outcome == "image-pull-backoff":
            image = self.pod["spec"]["containers"][0]["image"]
            return self._waiting("ImagePullBackOff", f'Back-off pulling image "{image}"')
        if outcome == "evicted":
            return self._evicted()
        if outcome in ("ready", "not-ready"):
            return self._live(list(map(self._running, self._containers)), outcome == "ready")
        return self._after_an_end()

    @property
    def _containers(self) -> list[Object]:
        containers: list[Object] = self.pod["spec"]["containers"]
        return containers

    def _before(self, name: str) -> Object:
        """The container's status until now."""
        statuses = self.pod.get("status", {}).get("containerStatuses") or []
        return next((status for status in statuses if status["name"] == name), {})

    def _container(self, container: Object, state: Object, **more: Any) -> Object:
        before = self._before(container["name"])
        running = "running" in state
        base = {
            "name": container["name"],
            "image": container["image"],
            "imageID": "" if "waiting" in state and not before.get("imageID") else f"marked/{container['image']}",
            "restartCount": before.get("restartCount", 0),
            "ready": running and self.behaviour.outcome != "not-ready",
            "started": running,
            "state": state,
        }
        if before.get("lastState"):
            base["lastState"] = before["lastState"]
        status = base | more
        if running or "terminated" in state:
            # Another one after each start, as a runtime has it: a head is told from its successor by it.
            status["containerID"] = f"marked://{self.pod['metadata']['uid']}/{container['name']}/{status['restartCount']}"
        return status

    def _running(self, container: Object) -> Object:
        before = self._before(container["name"]).get("state") or {}
        return self._container(container, {"running": before.get("running") or {"startedAt": self.now}})

    def _ended(self) -> Object:
        """The `terminated` of a container to which the outcome happens."""
        usual = {"oom-killed": (137, "OOMKilled"), "succeeded": (0, "Completed")}
        code, reason = usual.get(self.behaviour.outcome, (1, "Error"))
        code = code if self.behaviour.exit_code is None else self.behaviour.exit_code
        times = {"startedAt": self.now, "finishedAt": self.now}
        return {"exitCode": code, "reason": self.behaviour.reason or reason, "message": self.behaviour.message, **times}

    def _starts_again(self, exit_code: int) -> bool:
        policy = self.pod["spec"].get("restartPolicy", "Always")
        return policy == "Always" or (policy == "OnFailure" and exit_code != 0)

    def _after_an_end(self) -> Object:
        statuses = []
        for container in self._containers:
            if self.behaviour.container and container["name"] != self.behaviour.container:
                statuses.append(self._running(container))
                continue
            end = self._ended()
            if self.behaviour.outcome != "crash-loop" and not self._starts_again(end["exitCode"]):
                statuses.append(self._container(container, {"terminated": end}))
                continue
            count = self._before(container["name"]).get("restartCount", 0) + 1
            state: Object = {"running": {"startedAt": self.now}}
            if self.behaviour.outcome == "crash-loop":
                state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}
            statuses.append(self._container(container, state, lastState={"terminated": end}, restartCount=count))
        if any("terminated" not in status["state"] for status in statuses):
            return self._live(statuses, all(status["ready"] for status in statuses))
        succeeded = all(status["state"]["terminated"]["exitCode"] == 0 for status in statuses)
        reason = "PodCompleted" if succeeded else "PodFailed"
        ends = {"phase": "Succeeded" if succeeded else "Failed", "containerStatuses": statuses}
        return self._placed() | ends | self._conditions(True, False, reason)

    def _live(self, statuses: list[Object], ready: bool) -> Object:
        reason = "" if ready else "ContainersNotReady"
        return self._placed() | {"phase": "Running", "containerStatuses": statuses} | self._conditions(True, ready, reason)

    def _waiting(self, reason: str, message: str) -> Object:
        waiting = {"reason": self.behaviour.reason or reason, "message": self.behaviour.message or message}
        statuses = [self._container(container, {"waiting": waiting}) for container in self._containers]
        status = {"phase": "Pending", "hostIP": NODE_ADDRESS, "startTime": self.now, "containerStatuses": statuses}
        return status | self._conditions(True, False, "ContainersNotReady")

    def _unschedulable(self) -> Object:
        message = self.behaviour.message or "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
        condition = self._condition("PodScheduled", False, self.behaviour.reason or "Unschedulable", message)
        return {"phase": "Pending", "conditions": [condition, self._mark()]}

    def _evicted(self) -> Object:
        message = self.behaviour.message or "The node was low on resource: memory."
        end = {"exitCode": 137, "reason": "Error", "startedAt": self.now, "finishedAt": self.now}
        statuses = [self._container(container, {"terminated": end}) for container in self._containers]
        status = self._placed() | {"phase": "Failed", "reason": self.behaviour.reason or "Evicted", "message": message}
        status |= {"containerStatuses": statuses} | self._conditions(True, False, "PodFailed")
        status["conditions"].append(self._condition("DisruptionTarget", True, "TerminationByKubelet", message))
        return status

    def _placed(self) -> Object:
        """Addresses, start time and the init containers of a pod that has got as far as its main containers."""
        init = []
        for container in self.pod["spec"].get("initContainers") or []:
            stays = container.get("restartPolicy") == "Always"
            done = {"exitCode": 0, "reason": "Completed", "startedAt": self.now, "finishedAt": self.now}
            state: Object = {"running": {"startedAt": self.now}} if stays else {"terminated": done}
            init.append(self._container(container, state, ready=True))
        before = self.pod.get("status", {})
        placed: Object = {
            "hostIP": NODE_ADDRESS,
            "hostIPs": [{"ip": NODE_ADDRESS}],
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "startTime": before.get("startTime") or self.now,
        }
        return placed | ({"initContainerStatuses": init} if init else {})

    def _conditions(self, initialized: bool, ready: bool, reason: str) -> Object:
        why = (reason, "") if not ready else ("", "")
        return {
            "conditions": [
                self._condition("PodScheduled", True),
                self._condition("PodReadyToStartContainers", True),
                self._condition("Initialized", initialized),
                self._condition("ContainersReady", ready, *why),
                self._condition("Ready", ready, *why),
                self._mark(),
            ]
        }

    def _condition(self, kind: str, value: bool, reason: str = "", message: str = "") -> Object:
        return {"type": kind, "status": str(value), "reason": reason, "message": message, "lastTransitionTime": self.now}

    def _mark(self) -> Object:
        return self._condition(MARK, True, "Marked", self.behaviour.signature)


def addresses(used: Iterable[str], first: int = 0) -> Iterable[str]:
    """Pod addresses that are not in use, in order."""
    taken = set(used)
    for number in range(first, 250 * 250):
        address = f"10.244.{number // 250 + 1}.{number % 250 + 1}"
        if address not in taken:
            yield address
