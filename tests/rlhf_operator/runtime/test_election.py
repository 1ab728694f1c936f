"""Who may write, and when. The Lease lives in a store with the API server's version check; time is the loop's."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from rlhf_operator.clients.kube import KubeError
from rlhf_operator.runtime.election import Election, LeaseLostError


class Leases:
    """One Lease with a resourceVersion check on replace, as the API server has it."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] | None = None
        self.version = 0
        self.down = False
        self.writes: list[str] = []

    def _answer(self) -> None:
        if self.down:
            raise KubeError(0, "Unreachable", "connection refused", request="lease")

    async def find(self, kind: Any, namespace: str, name: str) -> dict[str, Any] | None:
        self._answer()
        return copy.deepcopy(self.stored)

    async def get(self, kind: Any, namespace: str, name: str) -> dict[str, Any]:
        found = await self.find(kind, namespace, name)
        assert found is not None
        return found

    async def create(self, kind: Any, body: dict[str, Any]) -> dict[str, Any]:
        self._answer()
        if self.stored is not None:
            raise KubeError(409, "AlreadyExists", "exists", request="lease")
        return self._store(body)

    async def replace(self, kind: Any, body: dict[str, Any]) -> dict[str, Any]:
        self._answer()
        assert self.stored is not None
        if body["metadata"]["resourceVersion"] != self.stored["metadata"]["resourceVersion"]:
            raise KubeError(409, "Conflict", "changed", request="lease")
        return self._store(body)

    def _store(self, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        body = copy.deepcopy(body)
        body["metadata"]["resourceVersion"] = str(self.version)
        self.stored = body
        self.writes.append(body["spec"]["holderIdentity"])
        return copy.deepcopy(body)


def now() -> float:
    return asyncio.get_running_loop().time()


def candidate(leases: Leases, identity: str) -> Election:
    return Election(leases, "rlhf", "operator", identity, clock=now)  # type: ignore[arg-type]


def test_the_first_leads_and_the_second_waits(fake_time):
    async def main():
        leases = Leases()
        first, second = candidate(leases, "one"), candidate(leases, "two")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(second.acquire(), 120)
        assert first.leading
        assert not second.leading
        assert second.holder == "one"
        assert set(leases.writes) == {"one"}
        assert not holding.done()
        holding.cancel()

    fake_time(main())


def test_a_standby_takes_over_within_twenty_seconds_of_a_crash(fake_time):
    async def main():
        leases = Leases()
        first, second = candidate(leases, "one"), candidate(leases, "two")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(30)
        holding.cancel()
        crashed = now()
        await waiting
        assert now() - crashed <= 20
        assert now() - (crashed - 2) >= 15
        assert leases.stored is not None
        assert leases.stored["spec"]["leaseTransitions"] == 1

    fake_time(main())


def test_a_released_lease_is_taken_at_the_next_try(fake_time):
    async def main():
        leases = Leases()
        first, second = candidate(leases, "one"), candidate(leases, "two")
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(3)
        await first.release()
        released = now()
        await waiting
        assert now() - released <= 2
        assert not first.leading

    fake_time(main())


def test_a_holder_that_can_not_renew_gives_up_before_another_may_begin(fake_time):
    async def main():
        leases = Leases()
        first = candidate(leases, "one")
        await first.acquire()
        renewed = now()
        leases.down = True
        with pytest.raises(LeaseLostError, match="more than 10 s"):
            await first.hold()
        assert 10 <= now() - renewed <= 12.1
        assert not first.leading

    fake_time(main())


def test_a_woken_leader_writes_nothing(fake_time):
    """rc62: stopped for longer than the lease, then continued: the guard refuses before any task of it ran."""

    async def main():
        leases = Leases()
        skipped = 0.0
        first = Election(leases, "rlhf", "operator", "one", clock=lambda: now() + skipped)  # type: ignore[arg-type]
        await first.acquire()
        assert first.seconds_left() == pytest.approx(15)
        skipped = 20.0
        with pytest.raises(LeaseLostError, match=r"20\.0 s ago"):
            first.seconds_left()
        await candidate(leases, "two").acquire()
        with pytest.raises(LeaseLostError):
            await first.hold()
        assert leases.writes == ["one", "two"]

    fake_time(main())


def test_clocks_of_other_pods_do_not_matter(fake_time):
    """rc62: a renewTime of the far past or future gives neither two leaders nor a lease that never ends."""

    async def main():
        for stamp in ("1999-01-01T00:00:00.000000Z", "2099-01-01T00:00:00.000000Z"):
            leases = Leases()
            first, second = candidate(leases, "one"), candidate(leases, "two")
            await first.acquire()
            assert leases.stored is not None
            leases.stored["spec"]["renewTime"] = stamp
            seen = now()
            await second.acquire()
            assert 15 <= now() - seen <= 17

    fake_time(main())


def test_an_unreachable_api_server_is_waited_out(fake_time):
    async def main():
        leases = Leases()
        leases.down = True
        waiting = asyncio.create_task(candidate(leases, "one").acquire())
        await asyncio.sleep(300)
        assert not waiting.done()
        leases.down = False
        await waiting
        assert now() <= 302

    fake_time(main())


def test_of_two_that_create_at_once_one_leads(fake_time):
    async def main():
        leases = Leases()
        both = candidate(leases, "one"), candidate(leases, "two")
        await asyncio.wait({asyncio.create_task(each.acquire()) for each in both}, return_when=asyncio.FIRST_COMPLETED)
        assert sorted(each.leading for each in both) == [False, True]

    fake_time(main())
