"""What is asked of kopf."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import kopf
import pytest

from rlhf_operator.clients.kube import PODS, RAYCLUSTERS, Kind, KubeError
from rlhf_operator.runtime.keys import JobKey
from rlhf_operator.runtime.relist import Relister, has_auth_options, served
from rlhf_operator.runtime.store import Store
from rlhf_operator.runtime.watching import settings


def test_the_server_timeout_is_a_whole_number():
    """kopf 1.45 writes it into the query as it stands; the API server refuses "300.0"."""
    assert str(settings().watching.server_timeout) == "300"


def test_rc46_kopf_looks_for_no_kinds_by_itself():
    """It would drop a kind for ever that is made again while the API server's discovery is a moment behind."""
    assert settings().scanning.disabled


def test_nothing_of_kopfs_own_names_is_used_and_no_peering_pauses_us():
    found = settings()
    assert found.persistence.finalizer.startswith("rlhf.dev/")
    assert found.peering.standalone
    assert not found.posting.enabled


def test_kopf_copies_nothing_of_an_object_and_stores_nothing_on_it():
    found = settings().persistence
    body = kopf.Body({"metadata": {"name": "a", "annotations": {"b": "c"}}, "spec": {"image": "i"}})
    essence = found.diffbase_storage.build(body=body)
    patch = kopf.Patch()
    found.diffbase_storage.store(body=body, patch=patch, essence=essence)
    assert essence == {}
    assert found.progress_storage.clear(essence=essence) == {}
    assert not patch


class Lists:
    """Lists and discovery documents by path; a path that is absent is a 404."""

    def __init__(self, **documents: Any) -> None:
        self.documents = documents
        self.asked: list[tuple[str, str | None, str]] = []

    async def list(self, kind: Kind, namespace: str | None, *, labels: str = "", fields: str = "") -> AsyncIterator[dict[str, Any]]:
        self.asked.append((kind.plural, namespace, labels))
        if kind.plural not in self.documents:
            raise KubeError(404, "NotFound", "no", request="list")
        for item in self.documents[kind.plural]:
            yield item

    async def read(self, path: str) -> dict[str, Any]:
        if path not in self.documents:
            raise KubeError(404, "NotFound", "no", request=path)
        return dict(self.documents[path])


def schema(**properties: Any) -> dict[str, Any]:
    spec = {"properties": {"authOptions": {"properties": properties}}} if properties else {"properties": {}}
    return {"components": {"schemas": {"io.ray.v1.RayCluster": {"properties": {"spec": spec}}, "io.ray.v1.RayClusterList": {}}}}


@pytest.mark.parametrize(
    ("document", "expected"),
    [(schema(mode={}, secretName={}), True), (schema(mode={}), False), (schema(), False), (None, False)],
)
def test_auth_options_are_found_in_the_served_schema(document, expected):
    kube: Any = Lists(**({"/openapi/v3/apis/ray.io/v1": document} if document else {}))
    assert asyncio.run(has_auth_options(kube)) is expected


def test_a_kind_is_served_when_discovery_names_it():
    kube: Any = Lists(**{"/apis/ray.io/v1": {"resources": [{"name": "rayclusters"}, {"name": "rayclusters/status"}]}})
    assert asyncio.run(served(kube, RAYCLUSTERS))
    assert not asyncio.run(served(kube, PODS))


def test_every_namespace_is_listed_and_a_kind_that_is_not_installed_has_no_objects():
    def job(namespace: str) -> dict[str, Any]:
        return {"metadata": {"namespace": namespace, "name": "job", "uid": f"u-{namespace}", "resourceVersion": "1"}}

    kube: Any = Lists(rlhfjobs=[job("a")], pods=[])
    store = Store()
    assert asyncio.run(Relister(kube, store, ("a", "b")).run()) == {JobKey("a", "job")}
    assert kube.asked == [
        ("rlhfjobs", "a", ""),
        ("rlhfjobs", "b", ""),
        ("rayclusters", "a", "rlhf.dev/job"),
        ("rayclusters", "b", "rlhf.dev/job"),
        ("pods", "a", "rlhf.dev/job"),
        ("pods", "b", "rlhf.dev/job"),
    ]
    kube = Lists(rlhfjobs=[], pods=[])
    assert asyncio.run(Relister(kube, store, ()).run()) == {JobKey("a", "job")}, "vanished: to be looked at once more"
    assert store.jobs() == ()
    assert kube.asked[0] == ("rlhfjobs", None, "")
