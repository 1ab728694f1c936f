"""Why the pods are not ready: the most telling thing that is seen, with pod, container, reason and the cluster's own words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from rlhf_api.reasons import Reason
from rlhf_operator.decide import pods
from rlhf_operator.decide.observation import ContainerView, Observation, PodView, RayClusterView
from rlhf_operator.decide.settings import DecideSettings
from rlhf_operator.decide.texts import duration, few, one_line

IMAGE = frozenset({"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable"})
CONFIG = frozenset({"CreateContainerConfigError"})
CRASH = frozenset({"CrashLoopBackOff", "RunContainerError", "StartError", "CreateContainerError", "PostStartHookError"})
"""``state.waiting.reason`` of a container, Kubernetes 1.36."""
VOLUME_EVENTS = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")
QUOTA = ("exceeded quota", "limitrange", "forbidden: maximum", "forbidden: minimum", "must specify limits", "must specify requests")


@dataclass(frozen=True, slots=True)
class Trouble:
    reason: Reason
    message: str


def why_not_ready(
    seen: Observation, cluster: RayClusterView, settings: DecideSettings, now: datetime, grace_seconds: float
) -> Trouble | None:
    """None when all pods are ready as far as KubeRay and the pods themselves say. The first that applies is told.

    ``grace_seconds``: what a pod that is being deleted may take.
    """
    existing = pods.living(seen.pods)
    for trouble in (
        _refused_pods(cluster),
        *map(_container_trouble, existing),
        _unschedulable(existing, seen),
        *map(_volume, existing),
        *(_lingering(pod, now, grace_seconds) for pod in seen.pods),
        _refused_cluster(cluster, existing),
        _claim(seen, existing, settings, now),
        *(_init_wait(pod, settings, now) for pod in existing),
        _silent(cluster, existing, settings, now),
        _incomplete(seen, cluster, existing),
    ):
        if trouble is not None:
            return trouble
    return None


def rejoining(seen: Observation, settings: DecideSettings, now: datetime) -> Trouble | None:
    """Workers of a lost head look ready until they restart and join the new one; those that have not are waited for."""
    head = pods.head_pod(seen.pods)
    container = pods.ray_container(head) if head is not None else None
    if container is None or container.started_at is None or (now - container.started_at).total_seconds() > settings.rejoin_seconds:
        return None
    late = []
    for pod in pods.workers(seen.pods):
        ray = pods.ray_container(pod)
        if ray is not None and ray.started_at is not None and ray.started_at < container.started_at:
            late.append(pod.name)
    if not late:
        return None
    return Trouble(Reason.PODS_NOT_READY, f"waiting for worker pods to join the new head: {few(late)}")


def _refused_pods(cluster: RayClusterView) -> Trouble | None:
    state, reason, message = cluster.conditions.get("ReplicaFailure", ("", "", ""))
    if state != "True":
        return None
    quota = any(word in message.lower() for word in QUOTA)
    # KubeRay 1.6 begins the message with the reason, too.
    words = one_line(message).removeprefix(reason).lstrip(": ")
    return Trouble(Reason.QUOTA_EXCEEDED if quota else Reason.ADMISSION_DENIED, f"{reason}: {words}")


def _container_trouble(pod: PodView) -> Trouble | None:
    for container in pod.containers:
        waiting = container.waiting_reason
        if waiting in IMAGE:
            return Trouble(Reason.IMAGE_PULL, _container(pod, container))
        if waiting in CONFIG:
            return Trouble(Reason.CONTAINER_CONFIG, _container(pod, container))
        if waiting in CRASH:
            last = container.terminated_reason or "ended"
            code = f" with exit code {container.terminated_exit_code}" if container.terminated_exit_code is not None else ""
            words = f"; last: {last}{code}" if container.terminated_reason or code else ""
            words += f": {one_line(container.terminated_message)}" if container.terminated_message else ""
            return Trouble(Reason.CRASH_LOOP, f"{_container(pod, container)}{words}; restarted {container.restart_count} times")
    return None


def _container(pod: PodView, container: ContainerView) -> str:
    words = f"pod {pod.name}, {'init ' if container.init else ''}container {container.name}: {container.waiting_reason}"
    return f"{words}: {one_line(container.waiting_message)}" if container.waiting_message else words


def _unschedulable(existing: list[PodView], seen: Observation) -> Trouble | None:
    stuck = [pod for pod in existing if pod.unschedulable]
    if not stuck:
        return None
    message = f"no node for {_named(stuck)}: {one_line(stuck[0].unschedulable)}"
    avoided = seen.job.status.avoid_nodes
    if avoided:
        message += f"; nodes avoided because pods of this job kept dying there: {few(list(avoided), 8)}"
    return Trouble(Reason.UNSCHEDULABLE, message)


def _volume(pod: PodView) -> Trouble | None:
    return Trouble(Reason.VOLUME_MOUNT, f"pod {pod.name}: {one_line(pod.warning)}") if pod.warning.startswith(VOLUME_EVENTS) else None


def _lingering(pod: PodView, now: datetime, grace_seconds: float) -> Trouble | None:
    """KubeRay 1.6 counts pods of a node that vanished and makes no replacement, until somebody removes them."""
    if pod.gone or pod.deleting_since is None or (now - pod.deleting_since).total_seconds() <= grace_seconds:
        return None
    message = (
        f"pod {pod.name} is being deleted for {duration((now - pod.deleting_since).total_seconds())}, its node {pod.node or 'is unknown'} "
        "does not answer: restart or delete the node, or kubectl delete pod --force once it is certainly off"
    )
    return Trouble(Reason.NODE_LOST, message)


def _refused_cluster(cluster: RayClusterView, existing: list[PodView]) -> Trouble | None:
    """KubeRay 1.6 validates after creation and says so in an event only; the status stays empty for ever."""
    if existing or cluster.conditions or not cluster.warning:
        return None
    return Trouble(Reason.INVALID_RAY_CLUSTER, f"KubeRay: {one_line(cluster.warning)}")


def _claim(seen: Observation, existing: list[PodView], settings: DecideSettings, now: datetime) -> Trouble | None:
    """Many classes make a volume only when the first pod is scheduled, so a claim without a complaint gets a moment."""
    claim, pending = seen.claim, [pod for pod in existing if pod.phase == "Pending"]
    if claim is None or claim.phase == "Bound" or not pending:
        return None
    waited = max((now - pod.created_at).total_seconds() for pod in pending)
    if claim.phase == "Pending" and not claim.message and waited <= settings.claim_wait_seconds:
        return None
    words = one_line(claim.message) or "no volume yet"
    return Trouble(Reason.VOLUME_PENDING, f"PersistentVolumeClaim {claim.name} is {claim.phase}: {words}")


def _init_wait(pod: PodView, settings: DecideSettings, now: datetime) -> Trouble | None:
    for container in pod.containers:
        if not container.init or container.state != "running" or container.ready:
            continue
        waited = (now - (container.started_at or pod.created_at)).total_seconds()
        if waited > settings.init_wait_seconds:
            words = f"pod {pod.name}: init container {container.name} runs for {duration(waited)}"
            if container.name == "wait-gcs-ready":
                words += " and waits for Ray's head"
            return Trouble(Reason.WAITING_FOR_HEAD, words)
    return None


def _silent(cluster: RayClusterView, existing: list[PodView], settings: DecideSettings, now: datetime) -> Trouble | None:
    waited = (now - cluster.created_at).total_seconds()
    if existing or cluster.conditions or cluster.state or waited <= settings.silence_seconds:
        return None
    message = (
        f"RayCluster {cluster.name} has no status {duration(waited)} after its creation; is KubeRay running and watching this namespace?"
    )
    return Trouble(Reason.PROVISIONING, message)


def _incomplete(seen: Observation, cluster: RayClusterView, existing: list[PodView]) -> Trouble | None:
    head = pods.head_pod(existing)
    workers = pods.workers(existing)
    ready = sum(pod.ready for pod in workers)
    wanted = cluster.desired_workers or seen.job.worker_pods
    missing = list(_not_ready(existing))
    counts = f"{ready} of {wanted} worker pods ready"
    if head is None:
        return Trouble(Reason.PROVISIONING, f"no head pod yet; {counts}")
    said = cluster.conditions.get("HeadPodReady", ("", "", ""))[0] == "True" and cluster.ready_workers >= wanted
    if head.ready and ready >= wanted and cluster.desired_workers > 0 and said and pods.identity(head) is not None:
        return None
    if missing:
        detail = f"; not ready: {few(missing)}"
    else:
        detail = "; the others do not exist yet" if ready < wanted else "; KubeRay has not taken note of all pods yet"
    return Trouble(Reason.PROVISIONING, f"head pod {'' if head.ready else 'not '}ready, {counts}{detail}")


def _not_ready(existing: list[PodView]) -> Iterator[str]:
    for pod in existing:
        if pod.ready:
            continue
        waiting = next((container for container in pod.containers if container.state == "waiting" and container.waiting_reason), None)
        words = f"{pod.name} ({waiting.waiting_reason} of {waiting.name}" if waiting is not None else f"{pod.name} ({pod.phase}"
        yield words + (f"; {one_line(pod.warning)})" if pod.warning else ")")


def _named(stuck: list[PodView]) -> str:
    return f"pod {stuck[0].name}" if len(stuck) == 1 else f"pods {few([pod.name for pod in stuck])}"
