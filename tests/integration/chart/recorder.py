"""A relay before the API server that writes down what was asked of it, as RBAC names it."""

from __future__ import annotations

import asyncio
import ssl
import threading
from dataclasses import dataclass

import aiohttp
from aiohttp import web
from yarl import URL

HOP_BY_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding"})
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class Call:
    group: str
    resource: str
    verb: str
    namespace: str
    status: int

    @property
    def right(self) -> tuple[str, str, str]:
        return self.group, self.resource, self.verb


def call_of(method: str, path: str, watch: bool, status: int) -> Call | None:
    """None for discovery, which needs no right of its own."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, rest = "", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, rest = parts[1], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    read = "watch" if watch else "get" if len(rest) > 1 else "list"
    resource = f"{rest[0]}/{rest[2]}" if len(rest) > 2 else rest[0]
    return Call(group, resource, read if method == "GET" else VERBS[method], namespace, status)


class Recorder:
    """Runs in a thread of its own. ``url`` takes the place of the API server's; credentials pass through."""

    def __init__(self, server: str, authority: str) -> None:
        self.calls: list[Call] = []
        self.url = ""
        self._server, self._tls = server, ssl.create_default_context(cadata=authority)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="recorder", daemon=True)

    def __enter__(self) -> Recorder:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._begin())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())

    async def _begin(self) -> None:
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None))
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _end(self) -> None:
        # Watches would wait for their next event.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._runner.cleanup()
        await self._session.close()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        target = URL(self._server + request.raw_path, encoded=True)
        async with self._session.request(
            request.method, target, headers=headers, data=await request.read() or None, allow_redirects=False
        ) as answer:
            watch = request.query.get("watch") == "true"
            if call := call_of(request.method, request.path, watch, answer.status):
                self.calls.append(call)
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            return response
