"""What is written, in which order, and what is not done when a write fails."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from rlhf_api.status import ProgressStatus, RLHFJobStatus
from rlhf_operator.clients.kube import RLHFJOBS
from rlhf_operator.decide.actions import (
    Decision,
    EnsureConfig,
    EnsureToken,
    EventNote,
    Submit,
)
from rlhf_operator.decide.observation import Observation
from rlhf_operator.runtime.reconcile import Next
from tests.rlhf_operator.runtime.world import JOB, KEY, SUBMIT, World, decision, refused


def test_rc43_the_attempt_is_stored_before_it_is_posted(fake_time):
    async def main():
        world = World(lambda seen: SUBMIT)
        await world.look()
        assert world.api.calls == ["patch rlhfjobs/status", "POST job-a1"]
        assert world.stored()["attempt"] == 1

    fake_time(main())


@pytest.mark.parametrize(
    "error", [refused(500, "InternalError"), refused(0, "Unreachable"), refused(409, "Conflict"), refused(403, "Forbidden")]
)
def test_rc43_nothing_is_posted_while_the_attempt_is_not_stored(fake_time, error):
    async def main():
        world = World(lambda seen: SUBMIT)
        world.api.fail["patch rlhfjobs/status"] = [error]
        following = await world.look()
        assert world.api.calls == ["patch rlhfjobs/status"]
        assert following == Next(0.0 if error.status == 409 else 1.0)
        if error.status != 409:
            assert (await world.look()).seconds == 1.0
            assert world.api.calls == ["patch rlhfjobs/status"], "an event in between does not shorten the wait"
        await asyncio.sleep(1)
        await world.look()
        assert world.api.calls[1:] == ["patch rlhfjobs/status", "POST job-a1"]

    fake_time(main())


def test_a_status_that_was_decided_from_an_old_body_is_not_stored(fake_time):
    async def main():
        world = World(lambda seen: decision(phase="Running" if seen.job.generation == 1 else "Suspending"))
        world.api.put(RLHFJOBS, {**JOB, "metadata": {**JOB["metadata"], "generation": 2}})  # type: ignore[dict-item]
        assert await world.look() == Next(0.0)
        assert world.stored() == {}
        await world.look()
        assert world.stored() == {"phase": "Suspending"}

    fake_time(main())


def test_rc34_a_job_that_is_gone_costs_one_call(fake_time):
    async def main():
        world = World(lambda seen: SUBMIT)
        del world.api.objects["rlhfjobs", "job"]
        assert await world.look() == Next(0.0)
        assert await world.look() == Next()
        assert world.api.calls == ["patch rlhfjobs/status"]

    fake_time(main())


def test_progress_alone_waits_for_its_time_and_a_phase_does_not(fake_time):
    async def main():
        step, urgent = 0, False

        def decide(seen: Observation) -> Decision:
            status = RLHFJobStatus(phase="Failed" if urgent else "Running", progress=ProgressStatus(step=step))
            return Decision(status, urgent=urgent, requeue_after_seconds=600.0)

        world = World(decide)
        assert (await world.look()).seconds == 600
        step = 1
        await asyncio.sleep(10)
        assert (await world.look()).seconds == pytest.approx(20)
        assert world.stored()["progress"] == {"step": 0}
        await asyncio.sleep(20)
        await world.look()
        assert world.stored()["progress"] == {"step": 1}
        step, urgent = 2, True
        await world.look()
        assert world.stored() == {"phase": "Failed", "progress": {"step": 2}}
        assert len(world.api.calls) == 3
        await world.look()
        assert len(world.api.calls) == 3, "nothing changed, nothing is written"

    fake_time(main())


def test_rc65_a_status_that_is_too_large_is_written_smaller(fake_time):
    async def main():
        world = World(lambda seen: decision(phase="Failed", message="m" * 4096, progress=ProgressStatus(step=3)))
        world.api.fail["patch rlhfjobs/status"] = [refused(500, "", "etcdserver: request is too large")]
        await world.look()
        assert world.stored()["phase"] == "Failed"
        assert len(world.stored()["message"]) == 256
        assert "progress" not in world.stored()

    fake_time(main())


def test_rc43_a_status_that_the_server_refuses_says_so_and_nothing_is_posted(fake_time):
    async def main():
        plan = decision(after=(Submit(1, "job-a1"),), phase="Starting", attempt=1)
        world = World(lambda seen: plan)
        writing = asyncio.create_task(world.events.run())
        words = 'RLHFJob "job" is invalid: status.run.exitCode: Invalid value: 1e+23'
        error = refused(422, "Invalid", words, fields=("status.run.exitCode",))
        world.api.fail["patch rlhfjobs/status"] = [error]
        assert await world.look() == Next(1.0)
        stored = world.stored()
        assert (stored["phase"], stored["reason"], "attempt" in stored) == ("Starting", "ApiError", False)
        assert words in stored["message"]
        await asyncio.sleep(1)
        world.api.fail["patch rlhfjobs/status"] = [error]
        assert await world.look() == Next(2.0), "each try later than the one before"
        assert world.stored() == stored
        assert "POST job-a1" not in world.api.calls
        assert world.api.calls.count("patch rlhfjobs/status") == 3, "what the status says already is not written again"
        await asyncio.sleep(2)
        await world.look()
        assert {name: value for name, value in world.stored().items() if value} == {"phase": "Starting", "attempt": 1}
        assert world.api.calls[-1] == "POST job-a1"
        await world.events.flush()
        notes = [body["note"] for (plural, _), body in world.api.objects.items() if plural == "events"]
        assert len(notes) == 1
        assert words in notes[0]
        writing.cancel()

    fake_time(main())


def test_a_refused_part_that_the_job_can_do_without_holds_nothing_up(fake_time):
    async def main():
        plan = dataclasses.replace(SUBMIT, status=SUBMIT.status.model_copy(update={"progress": ProgressStatus(step=3)}))
        world = World(lambda seen: plan)
        world.api.fail["patch rlhfjobs/status"] = [refused(422, "Invalid", "no", fields=("status.progress.step",))]
        await world.look()
        assert world.stored() == {"phase": "Starting", "attempt": 1}
        assert world.api.calls[-1] == "POST job-a1"

    fake_time(main())


def test_after_a_failed_action_the_rest_waits_and_the_status_is_told(fake_time):
    async def main():
        plan = decision(before=(EnsureConfig(), EnsureToken()), after=(Submit(1, "job-a1"),), phase="Provisioning")
        world = World(lambda seen: plan)
        world.api.fail["create configmaps"] = [refused(500)]
        await world.look()
        assert world.api.calls == ["create configmaps", "patch rlhfjobs/status"]

    fake_time(main())


def test_an_api_server_that_asks_for_patience_gets_it(fake_time):
    async def main():
        world = World(lambda seen: decision(phase="Running"))
        world.api.fail["patch rlhfjobs/status"] = [refused(429, "TooManyRequests", retry_after=40.0)] + [refused(503)] * 9
        waits = []
        while not world.stored():
            following = await world.look()
            waits.append(following.seconds)
            await asyncio.sleep(following.seconds or 0.0)
        assert waits == [40, 2, 4, 8, 15, 15, 15, 15, 15, 15, None]

    fake_time(main())


def test_events_are_sent_once_the_status_is_stored(fake_time):
    async def main():
        plan = dataclasses.replace(decision(phase="Running"), events=(EventNote("Normal", "Training", "é" * 2000),))
        world = World(lambda seen: plan)
        writing = asyncio.create_task(world.events.run())
        world.api.fail["patch rlhfjobs/status"] = [refused(500)]
        await world.look()
        await asyncio.sleep(1)
        assert "create events" not in world.api.calls
        await world.look()
        await world.events.flush()
        event = next(body for (plural, _), body in world.api.objects.items() if plural == "events")
        assert event["regarding"]["uid"] == "uid-1"
        assert len(event["note"].encode()) <= 1024
        writing.cancel()

    fake_time(main())


def test_what_can_not_be_read_is_named_and_keeps_its_last_value(fake_time):
    async def main():
        world = World(lambda seen: decision(before=(EnsureConfig(),) if not seen.config else (), phase="Provisioning"))
        await world.look()
        await asyncio.sleep(400)
        world.api.fail["get configmaps"] = [refused(500), refused(500)]
        world.api.fail["get persistentvolumeclaims"] = [refused(0, "Unreachable")]
        await world.look()
        seen = world.seen[-1]
        assert seen.config
        assert set(seen.unread) == {"config", "claim", "missing"}
        await asyncio.sleep(6)
        await world.look()
        assert world.seen[-1].unread == ()
        assert world.seen[-1].missing == ("ConfigMap reward",)

    fake_time(main())


def test_a_deleted_jobs_driver_is_asked_to_stop(fake_time):
    async def main():
        world = World(lambda seen: decision(phase="Running"))
        status = {"phase": "Running", "run": {"submissionId": "job-a2", "submittedAt": "2026-01-01T00:00:00Z"}}
        world.reconciler.deleted(KEY, {**JOB, "status": status})
        await asyncio.sleep(1)
        world.reconciler.deleted(KEY, {**JOB, "status": {**status, "phase": "Succeeded"}})
        world.reconciler.deleted(KEY, JOB)
        await asyncio.sleep(1)
        assert world.api.calls == ["STOP job-a2"]

    fake_time(main())
