"""Liveness and readiness that fail when progress stops: a watch that hears nothing, reconciles that don't end, a stuck loop.

kopf answers its own probe as long as one task runs, which a blind operator does too. Here a check is healthy only while
something keeps happening; a standby replica is ready, because it does all that a standby has to do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
from aiohttp import web

WATCH_SECONDS = 180.0
"""kopf 1.45 reopens a watch that was silent for 70 s, and the API server sends bookmarks every 60 s: this is two lost in a row."""
OPEN_SECONDS = 30.0
"""From the start to the first answer of each watch. kopf leaves out a kind that the API server's discovery does not name at that moment."""
RECONCILE_SECONDS = 300.0
"""No reconcile takes this long: every call in it has a time limit."""
LAG_SECONDS = 30.0
LAG_PERIOD_SECONDS = 1.0


class Watches:
    """When each list or watch last heard from the API server, and when the API server last answered anybody here."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, listed: Callable[[str], None] = lambda path: None) -> None:
        self._clock, self._listed = clock, listed
        self._heard: dict[str, float] = {}
        self._opened: set[str] = set()
        self._begun: set[str] = set()
        """Paths listed once: another list means that a watch had to begin anew, and may have missed deletions."""
        self._answered = clock()

    def expect(self, path: str) -> None:
        """A watch that must be alive from now on."""
        self._heard.setdefault(path, self._clock())

    def expects(self, path: str) -> bool:
        return path in self._heard

    def heard(self, path: str) -> None:
        if path in self._heard:
            self._heard[path] = self._clock()
            self._opened.add(path)

    def answered(self) -> None:
        self._answered = self._clock()

    def age(self) -> float:
        """Seconds since the quietest expected watch heard anything."""
        return self._clock() - min(self._heard.values()) if self._heard else 0.0

    def blind_for(self) -> float:
        """Seconds that a watch heard nothing although the API server answered other calls: a restart would help."""
        return max(self._answered - min(self._heard.values()), 0.0) if self._heard else 0.0

    def unopened(self) -> dict[str, float]:
        """Watch that never got an answer -> for how many seconds others did."""
        return {path: max(self._answered - since, 0.0) for path, since in self._heard.items() if path not in self._opened}

    async def middleware(self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """For the session of the watching library: sees each answer, and each piece of a watch's body."""
        response = await handler(request)
        if request.method == "GET" and response.status == 200:
            path = request.url.path
            self.heard(path)
            if request.url.query.get("watch") == "true":
                response.content = cast(aiohttp.StreamReader, _Tapped(response.content, lambda: self.heard(path)))
            elif path in self._begun:
                self._listed(path)
            else:
                self._begun.add(path)
        return response


class _Tapped:
    """A body whose pieces are noticed as they arrive, bookmarks included, which the library swallows."""

    def __init__(self, reader: aiohttp.StreamReader, heard: Callable[[], None]) -> None:
        self._reader, self._heard = reader, heard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        async for chunk in self._reader.iter_chunked(size):
            self._heard()
            yield chunk


@dataclass
class Vitals:
    """What the probes judge."""

    watches: Watches
    queue_age: Callable[[], float]
    leading: Callable[[], bool]
    clock: Callable[[], float] = time.monotonic
    lag: float = 0.0
    reconciling: dict[str, float] = field(default_factory=dict)
    """Job -> when its running reconcile began."""

    def __post_init__(self) -> None:
        self.woke_at = self.clock()

    async def tick(self) -> None:
        """Measures how late the event loop wakes; runs for ever."""
        while True:
            before = self.clock()
            await asyncio.sleep(LAG_PERIOD_SECONDS)
            self.woke_at = self.clock()
            self.lag = max(self.woke_at - before - LAG_PERIOD_SECONDS, 0.0)

    def began(self, key: str) -> None:
        self.reconciling[key] = self.clock()

    def ended(self, key: str) -> None:
        self.reconciling.pop(key, None)

    def _stuck(self) -> float:
        """Age of the oldest running reconcile, or of the oldest waiting key when nothing is taken any more."""
        running = [self.clock() - at for at in self.reconciling.values()]
        return max([*running, self.queue_age()])

    def not_live(self) -> list[str]:
        """Why a restart is due; empty = live."""
        faults = []
        blind = self.watches.blind_for()
        if blind > WATCH_SECONDS:
            faults.append(f"a watch has heard nothing for {blind:.0f} s while the API server answers (limit {WATCH_SECONDS:g} s)")
        for path, seconds in self.watches.unopened().items():
            if seconds > OPEN_SECONDS:
                told = f"the watch of {path} has not begun for {seconds:.0f} s"
                faults.append(f"{told} while the API server answers (limit {OPEN_SECONDS:g} s)")
        stuck = self._stuck()
        if stuck > RECONCILE_SECONDS:
            faults.append(f"work has not moved for {stuck:.0f} s (limit {RECONCILE_SECONDS:g} s)")
        silence = max(self.clock() - self.woke_at - LAG_PERIOD_SECONDS, self.lag)
        if silence > LAG_SECONDS:
            faults.append(f"the event loop woke {silence:.0f} s late (limit {LAG_SECONDS:g} s)")
        return faults

    def not_ready(self) -> list[str]:
        faults = self.not_live()
        if self.leading() and self.watches.age() > WATCH_SECONDS:
            faults.append(f"a watch has heard nothing for {self.watches.age():.0f} s (limit {WATCH_SECONDS:g} s)")
        return faults


def application(vitals: Vitals) -> web.Application:
    def probe(faults: Callable[[], list[str]]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            found = faults()
            return web.Response(text="\n".join(found) or "ok", status=503 if found else 200)

        return answer

    app = web.Application()
    app.router.add_get("/livez", probe(vitals.not_live))
    app.router.add_get("/healthz", probe(vitals.not_live))
    app.router.add_get("/readyz", probe(vitals.not_ready))
    return app
