"""Pod evidence, written into the status as soon as it is seen: KubeRay deletes failed pods within seconds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from rlhf_api.status import MAX_EVIDENCE, Evidence
from rlhf_operator.decide.case import Case
from rlhf_operator.decide.observation import ContainerView, PodView
from rlhf_operator.decide.texts import EVIDENCE_MAX, SHORT_MAX, clean, cut, cut_start, moment_of, one_line, stamp

POD_DELETED = "PodDeleted"
KILLED_EXIT_CODE = 137
STATUS_REASONS = ("Evicted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "NodeAffinity", "UnexpectedAdmissionError")
"""``status.reason`` of a pod that the kubelet or the node controller ended, Kubernetes 1.36."""


def record(case: Case) -> None:
    """Add what happened to pods during the running attempt. What the operator brings about itself is no evidence."""
    run, attempt = case.run, case.status.attempt
    if run is None or attempt is None or not case.pods_read or run.stop_reason in ("Suspend", "ActiveDeadline"):
        return
    if case.cluster is None or case.cluster.suspend or case.cluster.deleting:
        return
    began = moment_of(run.submitted_at) or case.now
    known = list(case.status.evidence)
    for pod in case.seen.pods:
        for found in _of_pod(pod, attempt, began, case.now):
            if not _is_known(found, known):
                known.append(found)
    if len(known) != len(case.status.evidence):
        case.set(evidence=known[-MAX_EVIDENCE:])


def of_attempt(case: Case) -> tuple[Evidence, ...]:
    return tuple(found for found in case.status.evidence if found.attempt == case.status.attempt)


def describe(found: Evidence) -> str:
    """``pod x on node n, container ray: OOMKilled (exit code 137): …``"""
    words = f"{'head ' if found.head else 'worker '}pod {found.pod}"
    if found.node:
        words += f" on node {found.node}"
    if found.container:
        words += f", container {found.container}"
    words += f": {found.reason}"
    if found.exit_code is not None:
        words += f" (exit code {found.exit_code})"
    return f"{words}: {found.message}" if found.message else words


def _of_pod(pod: PodView, attempt: int, began: datetime, now: datetime) -> Iterator[Evidence]:
    def evidence(
        reason: str, message: str = "", container: str | None = None, exit_code: int | None = None, at: datetime | None = None
    ) -> Evidence:
        return Evidence(
            attempt=attempt,
            pod=cut(pod.name, SHORT_MAX),
            container=cut(container, SHORT_MAX) if container else None,
            head=pod.head,
            node=cut(pod.node, SHORT_MAX) if pod.node else None,
            reason=cut(reason, SHORT_MAX),
            exit_code=exit_code,
            # Of a container that left no message of its own the kubelet gives the end of its log.
            message=(cut_start if container else cut)(one_line(clean(message)), EVIDENCE_MAX),
            at=stamp(at or now),
        )

    whole_pod = False
    if pod.disruption:
        whole_pod = True
        yield evidence(pod.disruption, pod.message)
    if pod.reason in STATUS_REASONS and pod.reason != pod.disruption:
        whole_pod = True
        yield evidence(pod.reason, pod.message)
    killed = False
    for container in pod.containers:
        if _ended_in(container, began):
            out_of_memory = container.terminated_reason == "OOMKilled"
            killed = killed or out_of_memory
            yield evidence(
                container.terminated_reason or "Error",
                # The kernel asks nobody before: the log's end is about something else.
                "" if out_of_memory else container.terminated_message,
                container.name,
                container.terminated_exit_code,
                container.terminated_at,
            )
    if (pod.gone or pod.deleting_since is not None) and not whole_pod and not killed:
        yield evidence(POD_DELETED)


def _ended_in(container: ContainerView, began: datetime) -> bool:
    """Whether the container's last end belongs to the attempt that began at ``began``: lastState outlives attempts."""
    if container.init or (not container.terminated_reason and container.terminated_exit_code is None):
        return False
    return container.terminated_at is None or container.terminated_at >= began


def _is_known(found: Evidence, known: list[Evidence]) -> bool:
    """The same end of the same pod or container. Without its own time it is told apart by its attempt alone."""
    return any(
        (old.pod, old.container, old.reason) == (found.pod, found.container, found.reason)
        and (old.at == found.at or old.attempt == found.attempt or not found.container)
        for old in known
    )
