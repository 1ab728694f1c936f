"""Only what changed is written; a status that does not fit is written smaller."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.status import Condition, Failure, ProgressStatus, RLHFJobStatus
from rlhf_operator.runtime.jobview import status_body, stored_status
from rlhf_operator.runtime.status import changes, merge_patch, refused, small, without

AT = "2026-01-01T00:00:00Z"

trees = st.dictionaries(
    st.sampled_from("abc"),
    st.recursive(
        st.integers(0, 2) | st.lists(st.integers(0, 1), max_size=2),
        lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    ),
    max_size=3,
)


def apply(target: Any, patch: Any) -> Any:
    """RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = apply(result.get(name), value)
    return result


@given(trees, trees)
def test_the_patch_makes_one_into_the_other(before, after):
    patch = merge_patch(before, after)
    assert apply(before, patch) == after
    assert (patch == {}) == (before == after)


def test_progress_alone_is_a_small_patch():
    before = RLHFJobStatus(phase="Running", attempt=1, progress=ProgressStatus(step=1, total_steps=9, reward="0.1"))
    after = before.model_copy(update={"progress": ProgressStatus(step=2, total_steps=9)})
    assert changes(before, after) == {"progress": {"step": 2, "reward": None}}
    assert changes(after, after) == {}


def test_fields_of_a_newer_version_are_left_alone():
    stored = stored_status({"status": {"phase": "Running", "inventedLater": {"a": 1}}})
    assert changes(stored, RLHFJobStatus(phase="Failed")) == {"phase": "Failed"}


def test_a_damaged_status_keeps_its_attempt():
    stored = stored_status({"status": {"attempt": 4, "phase": "Flying", "conditions": "none", "progress": {"step": "three"}}})
    assert (stored.attempt, stored.phase, stored.conditions, stored.progress) == (4, None, [], None)
    assert stored_status({"status": "gone"}) == RLHFJobStatus()
    assert stored_status({}) == RLHFJobStatus()


def test_rc65_the_small_status_keeps_what_the_operator_needs():
    text = "é" * 4096
    wanted = RLHFJobStatus(
        phase="Running",
        attempt=3,
        message=text,
        conditions=[Condition(type="Failed", status="False", last_transition_time=AT, reason="r", message=text)],
        failures=[Failure(attempt=n, class_="User", reason="TrainerFailed", message=text, at=AT) for n in range(10)],
        progress=ProgressStatus(step=1),
    )
    patch = small(wanted, wanted)
    result = apply(status_body(wanted), patch)
    assert len(json.dumps(result, ensure_ascii=False).encode()) < 2500
    assert (result["phase"], result["attempt"], result["conditions"][0]["type"]) == ("Running", 3, "Failed")
    assert "failures" not in result
    assert "progress" not in result
    assert stored_status({"status": result}).attempt == 3


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        (("status.progress.step",), True),
        (("status.evidence[0].exitCode", "status.rayCluster.name"), True),
        (("status.progress.step", "status.run.lastStep"), False),
        (("status.conditions[2].message",), False),
        (("status",), False),
        ((), False),
    ],
)
def test_only_parts_that_a_job_goes_on_without_are_left_out(fields, kept):
    stored = RLHFJobStatus(attempt=1, progress=ProgressStatus(step=1))
    wanted = RLHFJobStatus(attempt=2, progress=ProgressStatus(step=2), evidence=[], gpus=8)
    rest = without(stored, wanted, fields)
    assert (rest is not None) == kept
    if rest is not None:
        assert (rest.attempt, rest.gpus) == (2, 8)
        assert rest.progress == (stored.progress if "status.progress.step" in fields else wanted.progress)


def test_a_refused_status_changes_nothing_but_what_is_said():
    conditions = [Condition(type=each, status="True", last_transition_time=AT, reason="r") for each in ("Validated", "Running")]
    stored = RLHFJobStatus(phase="Running", attempt=3, conditions=conditions, failures=[])
    now = datetime(2026, 1, 2, tzinfo=UTC)
    said = refused(stored, RLHFJobStatus(phase="Failed", attempt=4, observed_generation=2), "x" * 9000, now)
    assert (said.phase, said.attempt, said.reason) == ("Running", 3, "ApiError")
    assert said.message is not None
    assert len(said.message) <= 4096
    running = next(each for each in said.conditions if each.type == "Running")
    assert (running.status, running.reason, running.observed_generation) == ("Unknown", "ApiError", 2)
    assert said.conditions[0] == conditions[0]
    assert refused(RLHFJobStatus(), RLHFJobStatus(phase="Pending"), "no", now).conditions == [], "the first visit is still to come"
