"""Fresh lists of everything the watches follow: at start, now and then, and whenever a watch had to begin anew."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from rlhf_operator import names
from rlhf_operator.clients.kube import PODS, RAYCLUSTERS, RLHFJOBS, Json, Kind, KubeClient, KubeError
from rlhf_operator.runtime.keys import JobKey
from rlhf_operator.runtime.store import Store
from rlhf_operator.runtime.views import without_templates

log = logging.getLogger(__name__)


async def served(kube: KubeClient, kind: Kind) -> bool:
    """Whether the API server knows the kind; discovery needs no right."""
    try:
        found = await kube.read(f"/{kind.prefix}")
    except KubeError as error:
        if error.not_found:
            return False
        raise
    return any(each.get("name") == kind.plural for each in found.get("resources") or ())


async def has_auth_options(kube: KubeClient) -> bool:
    """Whether the served RayCluster schema has ``spec.authOptions.secretName`` (KubeRay 1.6)."""
    try:
        found = await kube.read("/openapi/v3/apis/ray.io/v1")
    except KubeError as error:
        if error.not_found:
            return False
        raise
    schemas = found.get("components", {}).get("schemas", {})
    cluster: Json = next((schema for name, schema in schemas.items() if name.endswith(".RayCluster")), {})
    options = cluster.get("properties", {}).get("spec", {}).get("properties", {}).get("authOptions", {})
    return "secretName" in options.get("properties", {})


class Relister:
    def __init__(self, kube: KubeClient, store: Store, namespaces: tuple[str, ...], clock: Callable[[], float] = time.monotonic) -> None:
        self._kube, self._store, self._clock = kube, store, clock
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)

    async def run(self) -> set[JobKey]:
        """Every known job, and those that vanished. A kind that is not served has no objects. Raises KubeError."""
        began = self._clock()
        changed = self._store.relist_jobs(await self._list(RLHFJOBS, ""), began)
        began = self._clock()
        changed |= self._store.relist_clusters(await self._list(RAYCLUSTERS, names.JOB_LABEL), began)
        began = self._clock()
        changed |= self._store.relist_pods(await self._list(PODS, names.JOB_LABEL), began)
        return changed | set(self._store.jobs())

    async def _list(self, kind: Kind, labels: str) -> list[Json]:
        found: list[Json] = []
        for namespace in self._namespaces:
            try:
                async for item in self._kube.list(kind, namespace, labels=labels):
                    found.append(item if kind is RLHFJOBS else without_templates(item))
            except KubeError as error:
                if not error.not_found:
                    raise
        return found
