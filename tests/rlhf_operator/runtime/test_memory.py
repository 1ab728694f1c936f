"""What is remembered of actions between reconciles."""

from __future__ import annotations

from datetime import UTC, datetime

from rlhf_operator.decide.actions import EnsureConfig, StopSubmission, Submit
from rlhf_operator.runtime.memory import JobMemory

THEN = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2026, 1, 2, tzinfo=UTC)


def test_a_post_that_succeeded_is_remembered_or_it_would_be_made_twice() -> None:
    memory = JobMemory("uid")
    memory.note("Submit", THEN, code=500, message="no agent", permanent=False)
    memory.succeeded("Submit", LATER)
    memory.keep_only([])
    result = memory.results["Submit"]
    assert (result.ok, result.at, result.failures) == (True, LATER, 0)


def test_the_next_failure_replaces_a_success_and_counts_from_one() -> None:
    memory = JobMemory("uid")
    memory.succeeded("StopSubmission", THEN)
    failed = memory.note("StopSubmission", LATER, code=0, message="refused", permanent=False)
    memory.keep_only([StopSubmission("job-a1")])
    assert memory.results["StopSubmission"] is failed
    assert failed.failures == 1


def test_failures_are_forgotten_with_the_wish_and_children_with_their_success() -> None:
    memory = JobMemory("uid")
    memory.note("EnsureConfig", THEN, code=500, message="etcd", permanent=False)
    memory.note("Submit", THEN, code=500, message="no agent", permanent=False)
    memory.keep_only([Submit(1, "job-a1")])
    assert set(memory.results) == {"Submit"}
    memory.succeeded(EnsureConfig.__name__, LATER)
    assert set(memory.results) == {"Submit"}
