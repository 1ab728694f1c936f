"""Probes fail when progress stops, and only then."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web

from rlhf_operator.runtime.health import LAG_SECONDS, OPEN_SECONDS, RECONCILE_SECONDS, WATCH_SECONDS, Vitals, Watches, application

PATH = "/apis/rlhf.dev/v1alpha1/rlhfjobs"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def vitals(clock: Clock, watches: Watches, *, leading: bool = True, queue_age: float = 0.0) -> Vitals:
    return Vitals(watches, lambda: queue_age, lambda: leading, clock)


def test_rc46_a_watch_that_hears_nothing_while_the_api_server_answers_is_a_reason_to_restart():
    clock = Clock()
    watches = Watches(clock)
    watches.expect(PATH)
    found = vitals(clock, watches)
    clock.now += WATCH_SECONDS + 1
    found.woke_at = clock.now
    assert found.not_ready()
    assert not found.not_live(), "nobody heard of the API server: a restart would not help"
    watches.answered()
    assert "heard nothing for 181 s" in found.not_live()[0]
    watches.heard(PATH)
    assert not found.not_live()
    assert not found.not_ready()


def test_rc46_a_watch_that_never_begins_is_a_reason_to_restart():
    clock = Clock()
    watches = Watches(clock)
    watches.expect("/begun")
    watches.expect(PATH)
    found = vitals(clock, watches)
    watches.heard("/begun")
    clock.now += OPEN_SECONDS + 1
    found.woke_at = clock.now
    assert not found.not_live(), "nobody heard of the API server: a restart would not help"
    watches.answered()
    assert found.not_live() == [f"the watch of {PATH} has not begun for 31 s while the API server answers (limit 30 s)"]
    watches.heard(PATH)
    assert not found.not_live()


def test_the_quietest_watch_counts():
    clock = Clock()
    watches = Watches(clock)
    watches.expect("/a")
    watches.expect("/b")
    clock.now += 50
    watches.heard("/a")
    assert watches.age() == 50
    watches.heard("/unexpected")
    watches.heard("/b")
    assert watches.age() == 0


def test_a_standby_is_ready():
    clock = Clock()
    watches = Watches(clock)
    clock.now += 10_000
    found = vitals(clock, watches, leading=False)
    found.woke_at = clock.now
    assert not found.not_ready()


def test_a_reconcile_that_does_not_end_is_seen():
    clock = Clock()
    found = vitals(clock, Watches(clock))
    found.began("ns/a")
    clock.now += RECONCILE_SECONDS + 1
    found.woke_at = clock.now
    assert "work has not moved" in found.not_live()[0]
    found.ended("ns/a")
    assert not found.not_live()


def test_a_queue_that_nobody_takes_from_is_seen():
    clock = Clock()
    assert vitals(clock, Watches(clock), queue_age=RECONCILE_SECONDS + 1).not_live()


def test_an_event_loop_that_does_not_wake_is_seen():
    clock = Clock()
    found = vitals(clock, Watches(clock))
    clock.now += LAG_SECONDS + 2
    assert "event loop" in found.not_live()[0]


def test_the_lag_is_measured(fake_time):
    async def main():
        loop = asyncio.get_running_loop()
        late = 0.0
        found = Vitals(Watches(loop.time), lambda: 0.0, lambda: True, lambda: loop.time() + late)
        ticking = asyncio.create_task(found.tick())
        await asyncio.sleep(5.5)
        assert found.lag == pytest.approx(0)
        late = 3.0
        await asyncio.sleep(1)
        assert found.lag == pytest.approx(3)
        ticking.cancel()

    fake_time(main())


async def serving(app: web.Application) -> tuple[web.AppRunner, str]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


def test_the_endpoints_say_why():
    async def main():
        clock = Clock()
        watches = Watches(clock)
        found = vitals(clock, watches)
        runner, url = await serving(application(found))
        async with aiohttp.ClientSession() as session:
            for path in ("/livez", "/healthz", "/readyz"):
                async with session.get(url + path) as answer:
                    assert (answer.status, await answer.text()) == (200, "ok")
            watches.expect(PATH)
            clock.now += 200
            found.woke_at = clock.now
            async with session.get(url + "/readyz") as answer:
                assert answer.status == 503
                assert "a watch has heard nothing for 200 s" in await answer.text()
            async with session.get(url + "/livez") as answer:
                assert answer.status == 200
        await runner.cleanup()

    asyncio.run(main())


def test_every_piece_of_a_watch_is_heard_and_another_list_is_told():
    async def main():
        clock = Clock()
        listed: list[str] = []
        watches = Watches(clock, listed.append)
        watches.expect(PATH)

        async def handler(request: web.Request) -> web.StreamResponse:
            if request.query.get("watch") != "true":
                return web.json_response({"items": []})
            response = web.StreamResponse()
            await response.prepare(request)
            for _ in range(3):
                await asyncio.sleep(0.05)
                await response.write(json.dumps({"type": "BOOKMARK", "object": {}}).encode() + b"\n")
            return response

        app = web.Application()
        app.router.add_get("/{path:.*}", handler)
        runner, url = await serving(app)
        async with aiohttp.ClientSession(middlewares=(watches.middleware,)) as session:
            async with session.get(url + PATH):
                assert listed == [], "the first list of a watch is no news"
            ages = []
            async with session.get(url + PATH, params={"watch": "true"}) as answer:
                clock.now += 100
                async for _ in answer.content.iter_chunked(1 << 20):
                    ages.append(watches.age())
                    clock.now += 10
            assert ages == [0, 0, 0]
            async with session.get(url + PATH):
                assert listed == [PATH]
        await runner.cleanup()

    asyncio.run(main())
