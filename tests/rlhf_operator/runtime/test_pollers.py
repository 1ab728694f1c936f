"""What a poller keeps, when it looks again, and whom it tells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rlhf_api.progress import LAST_WORD, CommittedCheckpoint, Progress, TrainedModel
from rlhf_operator.clients.jobs import Fault, Health
from rlhf_operator.decide.actions import Watch
from rlhf_operator.decide.observation import HeadView, ProgressFault, SubmissionView
from rlhf_operator.runtime.keys import JobKey
from rlhf_operator.runtime.pollers import Pollers, Target, differs, interval, look

KEY = JobKey("ns", "job")
START = datetime(2026, 1, 1, tzinfo=UTC)


def wall() -> datetime:
    return START + timedelta(seconds=asyncio.get_running_loop().time())


class Head:
    """Answers as told; counts who was asked what."""

    def __init__(self) -> None:
        self.up = True
        self.gcs = True
        self.status = "RUNNING"
        self.found = True
        self.step = 0
        self.asked: list[str] = []
        self.others: tuple[SubmissionView, ...] | Fault = ()
        self.takes = 0.0
        self.log = "the end"
        self.fault: Fault | None = None

    async def health(self) -> Health:
        self.asked.append("health")
        return Health(self.gcs, "2.60.0") if self.up else Health(False, "", "refused")

    async def look(self, submission_id: str) -> SubmissionView | Fault:
        self.asked.append("look")
        await asyncio.sleep(self.takes)
        if not self.up:
            return Fault("refused")
        return SubmissionView(submission_id, self.found, status=self.status if self.found else None)  # type: ignore[arg-type]

    async def unfinished(self, job_uid: str) -> tuple[SubmissionView, ...] | Fault:
        self.asked.append("unfinished")
        return self.others

    async def log_tail(self, submission_id: str) -> str:
        self.asked.append("log")
        return self.log

    async def progress(self, job_uid: str, attempt: int) -> Progress | Fault:
        self.asked.append("progress")
        if self.fault is not None:
            return self.fault
        return Progress(job_uid=job_uid, attempt=attempt, step=self.step, heartbeat_age_seconds=asyncio.get_running_loop().time())


def watch(submission_id: str | None = "job-a1", attempt: int = 1, service: str = "job-head-svc") -> Watch:
    return Watch(submission_id, attempt, service)


async def after(head: Head, before: HeadView | None = None, target: Watch | None = None) -> HeadView:
    return await look(head, Target("uid", target or watch()), before, wall)


def unread(at: datetime = START, **changes: Any) -> HeadView:
    fault = replace(ProgressFault("401 unauthorized", START, True), **changes)
    return HeadView(at=at, reachable=True, submission=SubmissionView("a", True, status="RUNNING"), progress_fault=fault)


def test_rc43_a_head_that_is_healthy_is_asked_what_it_runs_before_the_first_post(fake_time):
    async def main():
        head = Head()
        other = SubmissionView("job-a1", True, status="RUNNING")
        head.others = (other,)
        view = await after(head, target=watch(None))
        assert (head.asked, view.others) == (["health", "unfinished"], (other,))
        head.others = Fault("500 no")
        fault = await after(head, view, watch(None))
        assert (fault.reachable, fault.others, fault.error) == (True, None, "500 no")
        assert interval(fault, 0) < interval(view, 0)
        assert differs(fault, view)
        head.gcs, head.asked = False, []
        await after(head, target=watch(None))
        assert head.asked == ["health"]
        head.gcs, head.asked, head.found = True, [], False
        assert (await after(head)).others is None
        assert head.asked == ["look", "health"], "where a submission is followed nothing else is asked for"

    fake_time(main())


def test_rc37_before_the_first_post_both_health_answers_are_asked_for(fake_time):
    async def main():
        head = Head()
        head.gcs = False
        view = await after(head, target=watch(None))
        assert (view.reachable, view.gcs_healthy, view.version, view.submission) == (True, False, "2.60.0", None)
        assert head.asked == ["health"]
        head.up = False
        view = await after(head, view, watch(None))
        assert (view.reachable, view.gcs_healthy, view.error) == (False, False, "refused")

    fake_time(main())


def test_a_look_is_dated_by_its_question_so_that_no_old_answer_passes_for_a_new_one(fake_time):
    async def main():
        head = Head()
        head.found, head.takes = False, 3.0
        began = wall()
        view = await after(head)
        assert (wall() - began).total_seconds() == 3.0
        assert view.at == began, "a POST made within these three seconds is not denied by this answer"

    fake_time(main())


def test_what_a_driver_reported_last_is_found_in_its_log(fake_time):
    """It ended between two looks: its last step and the checkpoint of a graceful stop were never seen on /progress."""

    async def main():
        head = Head()
        view = await after(head)
        head.status, head.step = "STOPPED", 4
        final = Progress(job_uid="uid", attempt=1, step=5, checkpoint=CommittedCheckpoint(step=5, path="/c/step-5", committed_at="now"))
        head.log = f"stopped on request\n{LAST_WORD}{final.model_dump_json(by_alias=True)}\n"
        view = await after(head, view)
        assert view.submission is not None
        assert view.submission.log_tail == "stopped on request\n"
        assert view.progress == final

    fake_time(main())


def test_rc20_a_gap_keeps_what_was_known_and_says_since_when(fake_time):
    async def main():
        head = Head()
        head.step = 7
        known = await after(head)
        head.up = False
        await asyncio.sleep(10)
        first = await after(head, known)
        await asyncio.sleep(50)
        second = await after(head, first)
        assert second.unreachable_since == START + timedelta(seconds=10)
        assert second.at == START + timedelta(seconds=60)
        assert second.submission == known.submission
        assert second.progress is not None
        assert second.progress.step == 7
        assert "health" not in head.asked
        head.up, head.status = True, "SUCCEEDED"
        ended = await after(head, second)
        assert (ended.reachable, ended.unreachable_since, ended.error) == (True, None, "")
        assert ended.submission is not None
        assert (ended.submission.status, ended.submission.log_tail) == ("SUCCEEDED", "the end")

    fake_time(main())


def test_an_unknown_submission_is_told_with_the_heads_health(fake_time):
    async def main():
        head = Head()
        head.found = False
        view = await after(head)
        assert view.submission == SubmissionView("job-a1", False)
        assert view.gcs_healthy
        assert view.version == "2.60.0"

    fake_time(main())


def test_the_log_is_read_once(fake_time):
    async def main():
        head = Head()
        head.status = "FAILED"
        view = await after(head, await after(head))
        assert view.submission is not None
        assert view.submission.log_tail == "the end"
        assert head.asked.count("log") == 1

    fake_time(main())


def test_a_report_that_cannot_be_read_is_told_and_the_log_watched(fake_time):
    async def main():
        head = Head()
        head.step = 7
        known = await after(head)
        assert known.progress_fault is None
        head.fault, head.log = Fault("401 unauthorized", 401), "step 7\n"
        first = await after(head, known)
        assert first.progress == known.progress
        assert first.progress_fault == ProgressFault("401 unauthorized", START, True)
        await asyncio.sleep(2)
        second = await after(head, first)
        fault = second.progress_fault
        assert fault is not None
        assert (fault.since, fault.log_read_at, fault.log_grew_at) == (START, START + timedelta(seconds=2), None)
        await asyncio.sleep(2)
        head.fault, head.log = Fault("refused"), "step 7\nstep 8\n"
        third = await after(head, second)
        assert third.progress_fault == replace(fault, message="refused", answered=False), "the whole log is not read at each look"
        await asyncio.sleep(14)
        grown = await after(head, third)
        assert grown.progress_fault is not None
        assert grown.progress_fault.log_grew_at == START + timedelta(seconds=18)
        await asyncio.sleep(20)
        still = await after(head, grown)
        assert still.progress_fault is not None
        assert still.progress_fault.log_grew_at == START + timedelta(seconds=18)
        head.fault = None
        assert (await after(head, still)).progress_fault is None

    fake_time(main())


def test_a_log_that_cannot_be_read_has_not_grown(fake_time):
    async def main():
        head = Head()
        head.fault, head.log = Fault("no"), ""
        view = await after(head, await after(head))
        assert view.progress_fault is not None
        assert view.progress_fault.log_read_at is not None
        await asyncio.sleep(20)
        head.log = "there it is"
        view = await after(head, view)
        assert view.progress_fault is not None
        assert view.progress_fault.log_grew_at is None

    fake_time(main())


def test_why_a_driver_could_not_be_read_stays_when_it_ends(fake_time):
    async def main():
        head = Head()
        head.fault = Fault("401 unauthorized", 401)
        running = await after(head)
        head.status, head.fault = "STOPPED", Fault("connection refused")
        final = Progress(job_uid="uid", attempt=1, step=5)
        head.log = f"{LAST_WORD}{final.model_dump_json(by_alias=True)}\n"
        ended = await after(head, running)
        assert ended.progress == final
        assert ended.progress_fault == running.progress_fault

    fake_time(main())


@pytest.mark.parametrize(
    ("view", "looks", "seconds"),
    [
        (HeadView(at=START, reachable=False), 1, 2),
        (HeadView(at=START, reachable=False), 2, 4),
        (HeadView(at=START, reachable=False), 4, 16),
        (HeadView(at=START, reachable=False), 50, 30),
        (HeadView(at=START, reachable=True), 0, 2),
        (HeadView(at=START, reachable=True, gcs_healthy=True), 0, 2),
        (HeadView(at=START, reachable=True, gcs_healthy=True, version="2.60.0"), 0, 10),
        (HeadView(at=START, reachable=True, gcs_healthy=True, version="2.60.0", submission=SubmissionView("a", False)), 0, 2),
        (HeadView(at=START, reachable=True, submission=SubmissionView("a", True, status="PENDING")), 0, 2),
        (HeadView(at=START, reachable=True, submission=SubmissionView("a", True, status="RUNNING")), 0, 2),
        (
            HeadView(
                at=START, reachable=True, submission=SubmissionView("a", True, status="RUNNING"), progress=Progress(job_uid="u", step=1)
            ),
            0,
            10,
        ),
        (HeadView(at=START, reachable=True, submission=SubmissionView("a", True, status="FAILED")), 0, 30),
        (unread(at=START + timedelta(seconds=59)), 0, 2),
        (unread(at=START + timedelta(seconds=60)), 0, 10),
    ],
)
def test_interval(view, looks, seconds):
    assert interval(view, looks) == seconds


def test_only_what_a_decision_reads_counts_as_a_change():
    old = HeadView(at=START, reachable=True, progress=Progress(job_uid="u", step=3, heartbeat_age_seconds=1.0))
    later = START + timedelta(seconds=10)
    same = HeadView(
        at=later, reachable=True, progress_at=later, progress=Progress(job_uid="u", step=3, heartbeat_age_seconds=9.0, metrics={"a": 1.0})
    )
    assert not differs(old, same)
    assert differs(None, same)
    assert differs(old, HeadView(at=START, reachable=True, progress=Progress(job_uid="u", step=4)))
    assert differs(old, HeadView(at=START, reachable=False, progress=old.progress))
    exported = Progress(job_uid="u", step=3, model=TrainedModel(step=3, path="/c/final"))
    assert differs(old, HeadView(at=START, reachable=True, progress=exported))


@pytest.mark.parametrize(
    ("changes", "differ"),
    [
        ({}, False),
        ({"message": "200 <html>"}, True),
        ({"log_read_at": START}, True),
        ({"log_grew_at": START}, True),
        ({"answered": False}, True),
    ],
)
def test_what_is_known_of_an_unreadable_report_counts_as_a_change(changes, differ):
    assert differs(unread(), unread(**changes)) == differ
    assert differs(unread(message="x" * 60 + "12:00:01"), unread(message="x" * 60 + "12:00:02")) is False


def pollers(heads: Callable[[JobKey], Head], told: list[JobKey], concurrency: int = 32) -> Pollers:
    return Pollers(lambda key, uid, service: heads(key), told.append, wall, concurrency=concurrency)


def test_a_job_is_told_of_each_new_step_and_of_nothing_else(fake_time):
    async def main():
        head, told = Head(), []
        head.step = 1
        polling = pollers(lambda key: head, told)
        polling.follow(KEY, "uid", watch())
        await asyncio.sleep(95)
        assert told == [KEY]
        head.step = 2
        await asyncio.sleep(10)
        assert told == [KEY, KEY]
        assert head.asked.count("look") == 11
        await polling.stop()

    fake_time(main())


def test_another_attempt_begins_with_an_empty_memory(fake_time):
    async def main():
        head, told = Head(), []
        head.step = 5
        polling = pollers(lambda key: head, told)
        polling.follow(KEY, "uid", watch())
        await asyncio.sleep(1)
        view = polling.view(KEY, "uid")
        assert view is not None
        assert view.progress is not None
        assert polling.view(KEY, "another uid") is None
        polling.follow(KEY, "uid", watch("job-a2", 2))
        view = polling.view(KEY, "uid")
        assert view is not None
        assert (view.submission, view.progress, view.reachable) == (None, None, True)
        polling.follow(KEY, "uid", watch("job-a2", 2, "another-head-svc"))
        assert polling.view(KEY, "uid") is None
        polling.follow(KEY, "uid", None)
        assert len(polling) == 0
        asked = len(head.asked)
        await asyncio.sleep(60)
        assert len(head.asked) == asked

    fake_time(main())


def test_a_nudge_looks_at_once(fake_time):
    async def main():
        head, told = Head(), []
        head.up = False
        polling = pollers(lambda key: head, told)
        polling.follow(KEY, "uid", watch())
        await asyncio.sleep(100)
        asked = len(head.asked)
        head.up = True
        polling.nudge(KEY)
        await asyncio.sleep(0.1)
        assert len(head.asked) > asked
        view = polling.view(KEY, "uid")
        assert view is not None
        assert view.reachable
        await polling.stop()

    fake_time(main())


def test_fifty_dead_heads_starve_nobody(fake_time):
    async def main():
        live, dead, told = Head(), Head(), []
        dead.up, dead.takes, live.step = False, 5.0, 1
        polling = pollers(lambda key: dead if key.name.startswith("dead") else live, told, concurrency=32)
        for number in range(50):
            polling.follow(JobKey("ns", f"dead-{number}"), "uid", watch())
        for number in range(50):
            polling.follow(JobKey("ns", f"live-{number}"), "uid", watch())
        await asyncio.sleep(300)
        before = live.asked.count("look")
        await asyncio.sleep(100)
        assert (live.asked.count("look") - before) / 50 == pytest.approx(10, abs=1.5)
        await polling.stop()

    fake_time(main())


def test_a_fault_of_ours_does_not_end_the_polling(fake_time):
    async def main():
        head, told = Head(), []
        head.step = "no number"  # type: ignore[assignment]
        polling = pollers(lambda key: head, told)
        polling.follow(KEY, "uid", watch())
        await asyncio.sleep(5)
        view = polling.view(KEY, "uid")
        assert view is not None
        assert "step" in view.error
        head.step = 3
        await asyncio.sleep(30)
        view = polling.view(KEY, "uid")
        assert view is not None
        assert view.reachable
        await polling.stop()

    fake_time(main())
