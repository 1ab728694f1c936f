"""Leader election by a Lease: one operator acts, the others stand by.

Ages are judged by when *this* process saw the Lease change, never by the other pod's clock. A holder that could not renew in
time stops the process; ``seconds_left`` guards every write, so a holder that was stopped and woken writes nothing before that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from rlhf_operator.clients.kube import LEASES, Json, KubeClient, KubeError

log = logging.getLogger(__name__)


def boot_clock() -> float:
    """Seconds that also pass while the machine sleeps or the process is stopped."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseLostError(Exception):
    """This process may not write any more."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds. A renewal may fail for ``renew_deadline`` before the holder gives up; others wait for ``duration``."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0


TIMES = Times()


class Election:
    def __init__(
        self,
        kube: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        *,
        times: Times = TIMES,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        """``identity`` must be drawn anew by each process. ``kube`` must be a client without this election's guard."""
        self._kube, self._namespace, self._name, self._identity = kube, namespace, name, identity
        self._times, self._clock = times, clock
        self._seen: tuple[str, float] | None = None
        """resourceVersion of the Lease and when this process first saw it."""
        self._renewed_at: float | None = None
        self._holder = ""

    @property
    def leading(self) -> bool:
        return self._renewed_at is not None and self._clock() - self._renewed_at < self._times.renew_deadline

    @property
    def holder(self) -> str:
        """Who held the Lease when it was last read."""
        return self._holder

    def seconds_left(self) -> float:
        """How long a write that begins now may take; raises LeaseLostError when this process must not begin one."""
        if self._renewed_at is None:
            raise LeaseLostError("this process does not hold the lease")
        age = self._clock() - self._renewed_at
        if age >= self._times.renew_deadline:
            raise LeaseLostError(f"the lease was renewed {age:.1f} s ago, more than {self._times.renew_deadline:g} s")
        return self._times.duration - age

    async def acquire(self) -> None:
        """Returns when this process leads. Errors of the API server are waited out."""
        while not await self._attempt():
            await asyncio.sleep(self._times.retry)
        log.info("lease acquired", extra={"lease": self._name, "identity": self._identity})

    async def hold(self) -> None:
        """Renews until the lease is lost, then raises LeaseLostError."""
        while True:
            await asyncio.sleep(self._times.retry)
            self.seconds_left()
            if not await self._attempt() and self._holder not in ("", self._identity):
                raise LeaseLostError(f"{self._holder} holds the lease")

    async def release(self) -> None:
        """Lets another replica take over at once. Only after the last write of this process."""
        if not self.leading:
            return
        try:
            lease = await self._kube.get(LEASES, self._namespace, self._name)
            if lease.get("spec", {}).get("holderIdentity") == self._identity:
                await self._kube.replace(LEASES, self._record(lease, holder=""))
        except KubeError as error:
            log.warning("lease not released, the next leader waits for its end: %s", error)
        self._renewed_at = None

    async def _attempt(self) -> bool:
        began = self._clock()
        try:
            async with asyncio.timeout(self._times.renew_deadline / 2):
                taken = await self._take()
        except (KubeError, TimeoutError) as error:
            if not (isinstance(error, KubeError) and (error.conflict or error.already_exists)):
                log.warning("lease %s: %s", self._name, error or "no answer in time")
            return False
        if taken:
            self._renewed_at = began
        return taken

    async def _take(self) -> bool:
        lease = await self._kube.find(LEASES, self._namespace, self._name)
        if lease is None:
            await self._kube.create(LEASES, self._record(None, holder=self._identity))
            self._holder = self._identity
            return True
        spec = lease.get("spec") or {}
        self._holder = spec.get("holderIdentity") or ""
        version = lease["metadata"]["resourceVersion"]
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, self._clock())
        if self._holder not in ("", self._identity):
            duration = spec.get("leaseDurationSeconds") or self._times.duration
            if self._clock() - self._seen[1] < duration:
                return False
        written = await self._kube.replace(LEASES, self._record(lease, holder=self._identity))
        self._holder = self._identity
        self._seen = (written["metadata"]["resourceVersion"], self._clock())
        return True

    def _record(self, lease: Json | None, *, holder: str) -> Json:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = (lease or {}).get("spec") or {}
        changed = old.get("holderIdentity") != holder
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": lease["metadata"] if lease else {"namespace": self._namespace, "name": self._name},
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": int(self._times.duration) if holder else 1,
                "acquireTime": now if changed else old.get("acquireTime", now),
                "renewTime": now,
                "leaseTransitions": int(old.get("leaseTransitions") or 0) + (1 if lease and changed and holder else 0),
            },
        }
