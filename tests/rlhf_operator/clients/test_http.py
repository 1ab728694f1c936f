"""A bounded call never raises for what the other side does."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest
from aiohttp import web

from rlhf_operator.clients.http import BODY_BYTES, Answer, Endpoint, call


async def ask(url: str, *, keep_tail: bool = False, seconds: float = 5.0) -> Answer:
    async with aiohttp.ClientSession() as session:
        return await call(session, "GET", Endpoint(url, {"Authorization": "Bearer t"}, seconds), "/api/version", keep_tail=keep_tail)


def test_an_answer_and_its_headers(serve):
    async def main():
        async def handler(request: web.Request) -> web.Response:
            return web.json_response({"path": request.path, "token": request.headers["Authorization"]})

        async with serve(handler) as url:
            answer = await ask(url)
        assert answer.status == 200
        assert answer.body == b'{"path": "/api/version", "token": "Bearer t"}'

    asyncio.run(main())


def test_a_redirect_is_not_followed(serve):
    async def main():
        async def handler(request: web.Request) -> web.Response:
            raise web.HTTPFound("http://elsewhere.example/steal")

        async with serve(handler) as url:
            answer = await ask(url)
        assert answer.status == 0
        assert answer.fault == "answered 302, a redirect to http://elsewhere.example/steal; not followed"

    asyncio.run(main())


def test_a_hanging_server_costs_the_time_limit(serve):
    async def main():
        async def handler(request: web.Request) -> web.Response:
            await asyncio.sleep(60)
            return web.Response()

        async with serve(handler) as url:
            answer = await ask(url, seconds=0.2)
        assert answer == Answer(0, fault="no answer to GET /api/version within 0.2 s")

    asyncio.run(main())


def test_a_body_that_stops_in_the_middle(serve):
    async def main():
        async def handler(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Length": "1000"})
            await response.prepare(request)
            await response.write(b'{"status": "RUN')
            assert request.transport is not None
            request.transport.abort()
            return response

        async with serve(handler) as url:
            answer = await ask(url)
        assert answer.status == 0
        assert answer.fault.startswith("GET /api/version: ")

    asyncio.run(main())


def test_nobody_listens():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    answer = asyncio.run(ask(f"http://127.0.0.1:{port}"))
    assert answer.status == 0
    assert "Connect" in answer.fault


def test_a_name_that_does_not_resolve():
    answer = asyncio.run(ask("http://job-head-svc.ns.svc.invalid:8265"))
    assert answer.status == 0
    assert answer.fault


@pytest.mark.parametrize(("size", "refused"), [(BODY_BYTES, False), (BODY_BYTES + 1, True)])
def test_long_bodies_are_refused_or_lose_their_beginning(serve, size, refused):
    async def main():
        async def handler(request: web.Request) -> web.Response:
            return web.Response(body=b"x" * (size - 1) + b"z")

        async with serve(handler) as url:
            whole, tail = await ask(url), await ask(url, keep_tail=True)
        assert (whole.status == 0) is refused
        assert tail.status == 200
        assert len(tail.body) <= BODY_BYTES
        assert tail.body.endswith(b"xz")

    asyncio.run(main())


def test_something_that_is_not_http(serve):
    async def main():
        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            writer.write(b"\x15\x03\x01\x00\x02\x02\x50")
            writer.close()

        server = await asyncio.start_server(speak, "127.0.0.1", 0)
        async with server:
            answer = await ask(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert answer.status == 0

    asyncio.run(main())
