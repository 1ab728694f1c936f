"""A copy of a resource stays true through what an API server does to a watch, spoken over real HTTPS with client certificates."""

import asyncio
import datetime
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from e2e.cluster import certs
from e2e.cluster.addons.watching import Api, ApiError, Copy

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> certs.Pki:
    folder = tmp_path_factory.mktemp("pki")
    certs.write(folder, datetime.datetime.now(datetime.UTC))
    return certs.Pki(folder)


@asynccontextmanager
async def server(pki: certs.Pki, handler: Handler, port: int = 0) -> AsyncIterator[int]:
    """Serves `handler` on the port it yields, to clients with a certificate of ours only."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pki.certificate("ca")))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(pki.certificate("apiserver"), pki.private_key("apiserver"))
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=context, reuse_address=True)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


def client(pki: certs.Pki, folder: Path, port: int) -> Api:
    path = folder / "kubeconfig"
    path.write_text(pki.kubeconfig("admin", f"https://127.0.0.1:{port}"))
    return Api(path)


def item(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"namespace": "team", "name": name, "resourceVersion": str(version)}}


def bookmark(version: int) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version)}}


class Script:
    """An API server that answers each list and each watch with the next entry of its script, and records the versions watched from."""

    def __init__(self, lists: list[list[dict[str, Any]]], watches: list[list[tuple[str, dict[str, Any]]]]) -> None:
        self.lists, self.watches = iter(lists), iter(watches)
        self.versions: list[str] = []
        self.finished = asyncio.Event()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"items": next(self.lists), "metadata": {"resourceVersion": "10"}})
        self.versions.append(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        events = next(self.watches, None)
        if events is None:
            self.finished.set()
            await asyncio.sleep(60)
        for kind, body in events or []:
            await response.write(json.dumps({"type": kind, "object": body}).encode() + b"\n")
        return response


GONE = ("ERROR", {"code": 410, "message": "too old resource version"})


@pytest.mark.parametrize(
    ("lists", "watches", "names", "versions"),
    [
        pytest.param([[item("a", 1)]], [[("ADDED", item("b", 11)), ("DELETED", item("a", 12))]], {"b"}, ["10", "12"], id="events"),
        pytest.param([[item("a", 1)]], [[("BOOKMARK", bookmark(40))], []], {"a"}, ["10", "40", "40"], id="bookmark"),
        pytest.param([[item("a", 1)], [item("c", 5)]], [[GONE]], {"c"}, ["10", "10"], id="version too old"),
        pytest.param([[]], [[("ADDED", item("long", 11) | {"data": "x" * 1_000_000})]], {"long"}, ["10", "11"], id="long line"),
    ],
)
def test_copy_follows_the_server(
    pki: certs.Pki,
    tmp_path: Path,
    lists: list[list[dict[str, Any]]],
    watches: list[list[tuple[str, dict[str, Any]]]],
    names: set[str],
    versions: list[str],
) -> None:
    async def scenario() -> tuple[set[str], list[str]]:
        script = Script(lists, watches)
        async with server(pki, script.handle) as port, client(pki, tmp_path, port) as api:
            copy = Copy(api, "/api/v1/things", lambda: None)
            following = asyncio.create_task(copy.follow())
            await asyncio.wait_for(script.finished.wait(), 10)
            following.cancel()
        return {name for _, name in copy.objects}, script.versions

    assert asyncio.run(scenario()) == (names, versions)


def test_copy_keeps_what_it_saw_while_the_server_is_away_and_then_lists_anew(pki: certs.Pki, tmp_path: Path) -> None:
    async def scenario() -> list[set[str]]:
        seen = []
        before, after = Script([[item("a", 1)]], []), Script([[item("b", 2)]], [])
        async with server(pki, before.handle) as port:
            api = client(pki, tmp_path, port)
            await api.__aenter__()
            copy = Copy(api, "/api/v1/things", lambda: None)
            following = asyncio.create_task(copy.follow())
            await asyncio.wait_for(before.finished.wait(), 10)
        await asyncio.sleep(0.5)
        seen.append({name for _, name in copy.objects})
        async with server(pki, after.handle, port):
            await asyncio.wait_for(after.finished.wait(), 10)
            seen.append({name for _, name in copy.objects})
            following.cancel()
            await api.__aexit__()
        return seen

    assert asyncio.run(scenario()) == [{"a"}, {"b"}]


def test_refusal_carries_status_and_message(pki: certs.Pki, tmp_path: Path) -> None:
    async def refuse(request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"message": f"{request.method} {request.path}: no"}, status=403)

    async def scenario() -> None:
        async with server(pki, refuse) as port, client(pki, tmp_path, port) as api:
            await api.patch("/api/v1/things/a", {})

    with pytest.raises(ApiError, match="403: PATCH /api/v1/things/a: no") as raised:
        asyncio.run(scenario())
    assert raised.value.status == 403
