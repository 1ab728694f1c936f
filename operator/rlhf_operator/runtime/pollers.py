"""Looks at each running head: Ray's Jobs API and the driver's ``/progress``. Reconciles read what was last seen and never wait.

One task a job, each with its own back-off, at most ``concurrency`` of them calling at a time: dead heads cost their own task
a time-out now and then and nobody else anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from rlhf_api.progress import Progress
from rlhf_operator.clients.jobs import Fault, Health
from rlhf_operator.clients.progress import last_word
from rlhf_operator.decide.actions import Watch
from rlhf_operator.decide.observation import HeadView, ProgressFault, SubmissionView
from rlhf_operator.runtime.keys import JobKey

log = logging.getLogger(__name__)

STARTING_SECONDS = 2.0
"""Between looks while something is awaited: the head's answer, the driver's first step."""
RUNNING_SECONDS = 10.0
ENDED_SECONDS = 30.0
UNREACHABLE_MAX_SECONDS = 30.0
LOG_SECONDS = 15.0
"""Between looks at the log of a driver whose /progress can't be read: Ray sends the whole of it."""
WORDS = 60
PATIENT_SECONDS = 60.0
"""A driver that could not be read for so long is asked no more often than one that trains."""
ENDED = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})


class Head(Protocol):
    """One head, as ``clients`` reach it."""

    async def health(self) -> Health: ...

    async def look(self, submission_id: str) -> SubmissionView | Fault: ...

    async def unfinished(self, job_uid: str) -> tuple[SubmissionView, ...] | Fault: ...

    async def log_tail(self, submission_id: str) -> str: ...

    async def progress(self, job_uid: str, attempt: int) -> Progress | Fault: ...


Dial = Callable[[JobKey, str, str], Head]
"""(key, job UID, head service) -> its head."""


@dataclass(frozen=True, slots=True)
class Target:
    job_uid: str
    watch: Watch


async def look(head: Head, target: Target, before: HeadView | None, now: Callable[[], datetime]) -> HeadView:
    """One look. What could not be read keeps its last value, so a short gap loses nothing.

    It is dated by its beginning: an answer may be older than its arrival, but never older than the question.
    """
    asked = now()
    if before is None:
        before = HeadView(at=asked, reachable=False)
    submission_id = target.watch.submission_id
    seen: SubmissionView | Fault | None = None
    if submission_id is not None:
        seen = await head.look(submission_id)
    if isinstance(seen, SubmissionView) and seen.found:
        view = replace(before, at=asked, reachable=True, unreachable_since=None, error="", gcs_healthy=True, submission=seen)
        return await _details(head, target, view, before.submission, now)
    # A head that did not answer the first call is not asked a second one: it would only hold the slot longer.
    health = await head.health() if not isinstance(seen, Fault) else Health(False, "", seen.message)
    if health.fault:
        since = before.unreachable_since or now()
        return replace(before, at=asked, reachable=False, unreachable_since=since, error=health.fault, gcs_healthy=False)
    error, others = "", None
    if health.said:
        error = f"it answers {health.said}"
    elif submission_id is None and health.gcs_healthy and health.version:
        # Of whatever the status does not name: before its first POST the job must have no trainer.
        listed = await head.unfinished(target.job_uid)
        error, others = (listed.message, None) if isinstance(listed, Fault) else ("", listed)
    return replace(
        before,
        at=asked,
        reachable=True,
        unreachable_since=None,
        error=error,
        others=others,
        gcs_healthy=health.gcs_healthy,
        version=health.version,
        submission=seen if isinstance(seen, SubmissionView) else None,
    )


async def _details(head: Head, target: Target, view: HeadView, before: SubmissionView | None, now: Callable[[], datetime]) -> HeadView:
    """Progress while the driver lives; the end of its log, and the report in it, once it ended."""
    submission = view.submission
    assert submission is not None
    if submission.status in ENDED:
        if before is not None and before.submission_id == submission.submission_id and before.log_tail:
            return replace(view, submission=replace(submission, log_tail=before.log_tail))
        tail, final = last_word(await head.log_tail(submission.submission_id), target.job_uid, target.watch.attempt)
        view = replace(view, submission=replace(submission, log_tail=tail))
        if final is not None:
            return replace(view, progress=final, progress_at=now())
    if submission.status in ("RUNNING", *ENDED):
        progress = await head.progress(target.job_uid, target.watch.attempt)
        if isinstance(progress, Progress):
            return replace(view, progress=progress, progress_at=now(), progress_fault=None)
        if submission.status == "RUNNING":
            return replace(view, progress_fault=await _unread(head, submission.submission_id, progress, view))
    return view


async def _unread(head: Head, submission_id: str, fault: Fault, view: HeadView) -> ProgressFault:
    """``view``: as it was, but dated by this look."""
    old, at = view.progress_fault, view.at
    new = ProgressFault(fault.message, at, fault.status > 0)
    if old is None:
        return new
    new = replace(old, message=new.message, answered=new.answered)
    if old.log_read_at is not None and (at - old.log_read_at).total_seconds() < LOG_SECONDS:
        return new
    tail = await head.log_tail(submission_id)
    if not tail:
        return replace(new, log_read_at=at)
    end = hashlib.sha256(tail.encode("utf-8", "replace")).hexdigest()
    grew = old.log_end not in ("", end)
    return replace(new, log_end=end, log_read_at=at, log_grew_at=at if grew else old.log_grew_at)


def interval(view: HeadView, unreachable_looks: int, running_seconds: float = RUNNING_SECONDS) -> float:
    """Seconds to the next look."""
    if not view.reachable:
        return min(STARTING_SECONDS * 2.0 ** min(unreachable_looks - 1, 8), UNREACHABLE_MAX_SECONDS)
    submission = view.submission
    if submission is not None and submission.status in ENDED:
        return ENDED_SECONDS
    if submission is None and view.gcs_healthy and view.version and not view.error:
        # All is known that a POST waits for. Hundreds of jobs that start together wait for their turn, not for their heads.
        return running_seconds
    fault = view.progress_fault
    stepping = view.progress is not None and view.progress.step > 0
    patient = fault is not None and (view.at - fault.since).total_seconds() >= PATIENT_SECONDS
    return running_seconds if submission is not None and submission.status == "RUNNING" and (stepping or patient) else STARTING_SECONDS


def differs(before: HeadView | None, after: HeadView) -> bool:
    """Whether a decision could change. Times, heartbeat ages and metrics within a step don't count."""
    if before is None:
        return True

    def facts(view: HeadView) -> tuple[object, ...]:
        progress = view.progress
        told = None
        if progress is not None:
            told = (progress.step, progress.total_steps, progress.stage, progress.checkpoint, progress.model, progress.failure)
        fault = view.progress_fault
        # An answer may hold a time or a number that is another one each time; how it begins tells what it is.
        unread = None
        if fault is not None:
            unread = (fault.message[:WORDS], fault.answered, fault.log_read_at is None, fault.log_grew_at is None)
        return view.reachable, view.gcs_healthy, view.version, view.others, view.submission, told, unread

    return facts(before) != facts(after)


class Pollers:
    def __init__(
        self,
        dial: Dial,
        changed: Callable[[JobKey], None],
        now: Callable[[], datetime],
        *,
        concurrency: int = 32,
        running_seconds: float = RUNNING_SECONDS,
    ) -> None:
        self._running_seconds = running_seconds
        self._dial, self._changed, self._now = dial, changed, now
        self._slots = asyncio.Semaphore(concurrency)
        self._tasks: dict[JobKey, asyncio.Task[None]] = {}
        self._targets: dict[JobKey, Target] = {}
        self._views: dict[JobKey, HeadView] = {}
        self._wake: dict[JobKey, asyncio.Event] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def follow(self, key: JobKey, job_uid: str, watch: Watch | None) -> None:
        """From now on look at ``watch``; None stops. Another submission or head begins with an empty memory."""
        if watch is None:
            self.forget(key)
            return
        target = Target(job_uid, watch)
        old = self._targets.get(key)
        if old == target:
            return
        self._targets[key] = target
        if old is not None and (old.job_uid, old.watch.head_service) == (job_uid, watch.head_service):
            view = self._views.get(key)
            if view is not None:
                self._views[key] = replace(view, submission=None, others=None, progress=None, progress_at=None, progress_fault=None)
        else:
            self._views.pop(key, None)
        self.nudge(key)
        if key not in self._tasks:
            self._wake[key] = asyncio.Event()
            self._tasks[key] = asyncio.create_task(self._run(key), name=f"poller {key}")

    def forget(self, key: JobKey) -> None:
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()
        for memory in (self._targets, self._views, self._wake):
            memory.pop(key, None)

    def nudge(self, key: JobKey) -> None:
        """Look now: something was just done to this head."""
        wake = self._wake.get(key)
        if wake is not None:
            wake.set()

    def view(self, key: JobKey, job_uid: str) -> HeadView | None:
        target = self._targets.get(key)
        return self._views.get(key) if target is not None and target.job_uid == job_uid else None

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for key in list(self._tasks):
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, key: JobKey) -> None:
        unreachable = 0
        wake = self._wake[key]
        while True:
            wake.clear()
            target = self._targets[key]
            before = self._views.get(key)
            head = self._dial(key, target.job_uid, target.watch.head_service)
            async with self._slots:
                after = await self._guarded(look(head, target, before, self._now), before)
            if self._targets.get(key) != target:
                continue
            self._views[key] = after
            unreachable = 0 if after.reachable else unreachable + 1
            if differs(before, after):
                self._changed(key)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), interval(after, unreachable, self._running_seconds))

    async def _guarded(self, looking: Awaitable[HeadView], before: HeadView | None) -> HeadView:
        """A fault of ours in one look must not end the polling of that job for ever."""
        try:
            return await looking
        except Exception as fault:
            log.exception("a poller failed")
            now = self._now()
            since = before.unreachable_since if before is not None and before.unreachable_since else now
            known = before or HeadView(at=now, reachable=False)
            return replace(known, at=now, reachable=False, unreachable_since=since, error=repr(fault)[:512])
