"""The API server's answers and refusals, through a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from rlhf_operator.clients.connection import ConnectError, FileToken, connect
from rlhf_operator.clients.kube import CONFIG_MAPS, PODS, RAYCLUSTERS, RLHFJOBS, KubeClient, KubeError, kube_error


def refusal(status: int, reason: str, message: str = "no", **details: object) -> web.Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": status,
        "details": details,
    }
    return web.json_response(body, status=status)


def with_client(serve, handler, use: Callable[[KubeClient], object], **options: object) -> None:
    async def main():
        async with serve(handler) as url, aiohttp.ClientSession() as session:
            await use(KubeClient(session, url, **options))  # type: ignore[misc, arg-type]

    asyncio.run(main())


def test_paths():
    assert RAYCLUSTERS.path("ns", "a", "status") == "/apis/ray.io/v1/namespaces/ns/rayclusters/a/status"
    assert PODS.path(None) == "/api/v1/pods"
    assert str(RAYCLUSTERS) == "rayclusters.ray.io"


def test_create_asks_for_strict_validation_and_may_be_dry(serve):
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.method, request.path, dict(request.query), await request.json()))
        return web.json_response({"metadata": {"uid": "u"}})

    body = {"metadata": {"namespace": "ns", "name": "a"}}

    async def use(kube: KubeClient) -> None:
        await kube.create(CONFIG_MAPS, body)
        await kube.create(CONFIG_MAPS, body, dry_run=True)

    with_client(serve, handler, use)
    path = "/api/v1/namespaces/ns/configmaps"
    assert seen == [
        ("POST", path, {"fieldValidation": "Strict"}, body),
        ("POST", path, {"fieldValidation": "Strict", "dryRun": "All"}, body),
    ]


def test_lists_are_read_page_by_page(serve):
    async def handler(request: web.Request) -> web.Response:
        assert request.query["labelSelector"] == "rlhf.dev/job"
        page = int(request.query.get("continue", "0"))
        items = [{"metadata": {"name": f"p{page}"}}]
        return web.json_response({"items": items, "metadata": {"continue": str(page + 1) if page < 2 else ""}})

    async def use(kube: KubeClient) -> None:
        assert [each["metadata"]["name"] async for each in kube.list(PODS, None, labels="rlhf.dev/job")] == ["p0", "p1", "p2"]

    with_client(serve, handler, use)


def test_delete_is_guarded_by_uid_and_gone_is_no_error(serve):
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(await request.json())
        name = request.path.rsplit("/", 1)[1]
        if name == "gone":
            return refusal(404, "NotFound")
        if name == "other":
            return refusal(409, "Conflict", "Precondition failed: UID in precondition: u, UID in object meta: v")
        return web.json_response({"kind": "Status", "status": "Success"})

    async def use(kube: KubeClient) -> None:
        assert await kube.delete(RAYCLUSTERS, "ns", "there", uid="u")
        assert not await kube.delete(RAYCLUSTERS, "ns", "gone", uid="u")
        assert not await kube.delete(RAYCLUSTERS, "ns", "other", uid="u")

    with_client(serve, handler, use)
    assert seen[0]["preconditions"] == {"uid": "u"}
    assert seen[0]["propagationPolicy"] == "Background"


@pytest.mark.parametrize(
    ("status", "reason", "message", "details", "facts"),
    [
        (404, "NotFound", "no", {}, {"not_found", "permanent"}),
        (409, "AlreadyExists", "exists", {}, {"already_exists"}),
        (409, "Conflict", "the object has been modified", {}, {"conflict"}),
        (403, "Forbidden", "exceeded quota", {}, {"permanent"}),
        (403, "Forbidden", "being terminated", {"causes": [{"reason": "NamespaceTerminating"}]}, {"namespace_terminating", "permanent"}),
        (422, "Invalid", "spec.x: Invalid value", {}, {"permanent", "invalid"}),
        (400, "BadRequest", "not readable", {}, {"permanent", "invalid"}),
        (413, "RequestEntityTooLarge", "limit is 3145728", {}, {"too_large", "permanent"}),
        (500, "", "etcdserver: request is too large", {}, {"too_large"}),
        (500, "InternalError", "etcd timeout", {}, set()),
        (503, "ServiceUnavailable", "apiserver is shutting down", {}, set()),
        (429, "TooManyRequests", "wait", {"retryAfterSeconds": 7}, set()),
    ],
)
def test_what_a_refusal_means(serve, status, reason, message, details, facts):
    async def handler(request: web.Request) -> web.Response:
        return refusal(status, reason, message, **details)

    async def use(kube: KubeClient) -> None:
        with pytest.raises(KubeError, match=f"GET /apis/rlhf.dev/v1alpha1/namespaces/ns/rlhfjobs/a: {status}") as caught:
            await kube.get(RLHFJOBS, "ns", "a")
        error = caught.value
        known = {"not_found", "already_exists", "conflict", "permanent", "namespace_terminating", "too_large", "invalid"}
        assert {name for name in known if getattr(error, name)} == facts
        assert error.message == message
        assert error.retry_after == (7 if status == 429 else None)

    with_client(serve, handler, use)


def test_a_refusal_names_the_fields():
    causes = [{"reason": "FieldValueInvalid", "field": "status.progress.step"}, {"reason": "x"}, "odd"]
    error = kube_error(
        422, json.dumps({"details": {"causes": causes}, "message": "a\u202eb hf_abcdefghijklmnopqrstuvwxyz"}).encode(), "x", {}
    )
    assert error.fields == ("status.progress.step",)
    assert error.message == "ab ***"


def test_retry_after_of_the_header_counts(serve):
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=429, text="slow down", headers={"Retry-After": "3"})

    async def use(kube: KubeClient) -> None:
        with pytest.raises(KubeError) as caught:
            await kube.get(RLHFJOBS, "ns", "a")
        assert (caught.value.retry_after, caught.value.message, caught.value.permanent) == (3, "slow down", False)

    with_client(serve, handler, use)


@pytest.mark.parametrize("body", [b"[]", b"not json", b""])
def test_an_unreadable_answer_is_an_error_and_no_crash(serve, body):
    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=body)

    async def use(kube: KubeClient) -> None:
        with pytest.raises(KubeError) as caught:
            await kube.get(RLHFJOBS, "ns", "a")
        assert (caught.value.status, caught.value.permanent) == (0, False)

    with_client(serve, handler, use)


def test_nothing_is_sent_once_writing_is_forbidden(serve):
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.method)
        return web.json_response({})

    def guard() -> float:
        raise PermissionError("lease lost")

    async def use(kube: KubeClient) -> None:
        body = {"metadata": {"namespace": "ns", "name": "a"}}
        for write in (
            kube.create(PODS, body),
            kube.merge_patch(PODS, "ns", "a", {}),
            kube.replace(PODS, body),
            kube.delete(PODS, "ns", "a"),
        ):
            with pytest.raises(PermissionError):
                await write
        await kube.get(PODS, "ns", "a")
        await kube.create(PODS, body, dry_run=True)

    with_client(serve, handler, use, guard=guard)
    assert seen == ["GET", "POST"]


def test_a_write_takes_no_longer_than_the_lease_lasts(serve):
    async def handler(request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    async def use(kube: KubeClient) -> None:
        with pytest.raises(KubeError, match=r"no answer within 0\.2 s"):
            await kube.merge_patch(PODS, "ns", "a", {})

    with_client(serve, handler, use, guard=lambda: 0.2)


@given(
    st.integers(300, 599),
    st.binary(max_size=300) | st.dictionaries(st.text(), st.integers() | st.none()).map(lambda x: json.dumps(x).encode()),
)
def test_no_refusal_can_crash_the_client(status, body):
    assert kube_error(status, body, "GET /x", {"Retry-After": "soon"}).status == status


def test_a_rotated_token_is_followed(tmp_path: Path):
    path, now = tmp_path / "token", [0.0]
    path.write_text("one\n")
    token = FileToken(path, clock=lambda: now[0])
    assert token() == "one"
    path.write_text("two\n")
    now[0] = 9.0
    assert token() == "one"
    now[0] = 10.0
    assert token() == "two"


def service_account(folder: Path, certificate: str) -> Path:
    folder.mkdir()
    (folder / "token").write_text("secret")
    (folder / "namespace").write_text("rlhf\n")
    (folder / "ca.crt").write_text(certificate)
    return folder


def test_in_a_pod_the_service_account_is_used_and_sent(serve, tmp_path: Path):
    import certifi

    folder = service_account(tmp_path / "sa", Path(certifi.where()).read_text(encoding="utf-8"))
    connection = connect({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}, folder)
    assert (connection.server, connection.namespace) == ("https://[fd00::1]:6443", "rlhf")
    seen = []

    async def main():
        async def handler(request: web.Request) -> web.Response:
            seen.append(request.headers["Authorization"])
            return web.json_response({})

        async with serve(handler) as url, connection.session() as session:
            await KubeClient(session, url).get(PODS, "ns", "a")

    asyncio.run(main())
    assert seen == ["Bearer secret"]


def kubeconfig(path: Path, user: dict[str, object]) -> str:
    path.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "mine"}}],
                "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1/"}}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return str(path)


def test_a_kubeconfig_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    name = kubeconfig(tmp_path / "config", {"token": "abc"})
    monkeypatch.setenv("KUBECONFIG", name)
    connection = connect({"KUBECONFIG": name}, tmp_path / "none")
    assert (connection.server, connection.namespace) == ("http://127.0.0.1:1", "mine")
    assert connection.headers == {"Authorization": "Bearer abc"}


def test_a_user_that_needs_a_plugin_is_refused_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    name = kubeconfig(tmp_path / "config", {"exec": {"command": "aws"}})
    monkeypatch.setenv("KUBECONFIG", name)
    with pytest.raises(ConnectError, match="kubectl create token"):
        connect({"KUBECONFIG": name}, tmp_path / "none")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(ConnectError, match="absent can't be used"):
        connect({"KUBECONFIG": str(tmp_path / "absent")}, tmp_path / "none")
