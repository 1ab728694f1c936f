"""Small real servers on a loopback port."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest
from aiohttp import web

Serve = Callable[[Callable[[web.Request], object]], AbstractAsyncContextManager[str]]


@pytest.fixture
def serve() -> Serve:
    """``async with serve(handler) as url``: every request goes to ``handler``."""

    @contextlib.asynccontextmanager
    async def serving(handler: Callable[[web.Request], object]) -> AsyncIterator[str]:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", handler)  # type: ignore[arg-type]
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            host, port = runner.addresses[0][:2]
            yield f"http://{host}:{port}"
        finally:
            await runner.cleanup()

    return serving
