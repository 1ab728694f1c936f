"""What a job's pods say: which head, which workers, which container is Ray's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from rlhf_api.status import HeadIdentity
from rlhf_operator.decide.observation import ContainerView, PodView


def present(pods: Iterable[PodView]) -> list[PodView]:
    """Pods that exist, on their way out or not."""
    return [pod for pod in pods if not pod.gone]


def living(pods: Iterable[PodView]) -> list[PodView]:
    """Pods that exist and are not on their way out."""
    return [pod for pod in present(pods) if pod.deleting_since is None and pod.phase not in ("Failed", "Succeeded")]


def ray_container(pod: PodView) -> ContainerView | None:
    """KubeRay 1.6: the first container that is no init container."""
    return next((container for container in pod.containers if not container.init), None)


def head_pod(pods: Iterable[PodView]) -> PodView | None:
    """The newest living head."""
    return max((pod for pod in living(pods) if pod.head), key=lambda pod: (pod.created_at, pod.uid), default=None)


def workers(pods: Iterable[PodView]) -> list[PodView]:
    return [pod for pod in living(pods) if not pod.head]


def identity(pod: PodView | None) -> HeadIdentity | None:
    """None while the pod has no container."""
    container = ray_container(pod) if pod is not None else None
    if pod is None or container is None or not container.container_id:
        return None
    return HeadIdentity(pod_uid=pod.uid, container_id=container.container_id[:253])


def fingerprint(pods: Iterable[PodView]) -> str:
    """Changes when any worker pod is replaced, removed or on its way out, or its Ray container restarted.

    A hash, because hundreds of identities do not belong into a status; no clock is involved, so clocks of nodes that run ahead do no harm.
    """
    parts = []
    for pod in workers(pods):
        container = ray_container(pod)
        parts.append(f"{pod.uid}/{container.container_id if container is not None else ''}")
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()[:16]
