"""The small pure parts: phase, budgets, numbers, texts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from rlhf_api.progress import STEPS_MAX, CommittedCheckpoint, Progress
from rlhf_api.reasons import Reason
from rlhf_api.spec.lifecycle import LifecycleSpec
from rlhf_api.status import MAX_CHARGES, Charge, Counters, Evidence, Failure
from rlhf_operator.decide import budgets, phase, texts
from rlhf_operator.decide.classify import Judgement
from rlhf_operator.decide.progress import checkpoint_of, number, status_of
from rlhf_operator.decide.settings import DecideSettings
from tests.rlhf_operator.decide.builders import NOW, SETTINGS, UID, ago, conditions

PHASES: tuple[tuple[str, dict[str, tuple[str, str]]], ...] = (
    ("Pending", {"Validated": ("Unknown", "Accepted"), "ClusterReady": ("Unknown", "Accepted"), "Running": ("Unknown", "Accepted")}),
    ("Queued", {"ClusterReady": ("False", "Queued"), "Running": ("False", "Restarting")}),
    ("Provisioning", {"ClusterReady": ("False", "ImagePull"), "Running": ("False", "NotRunning")}),
    ("Starting", {"Running": ("False", "NotRunning")}),
    ("Starting", {"Running": ("False", "Submitted")}),
    ("Running", {}),
    ("Running", {"Running": ("Unknown", "HeadUnreachable")}),
    ("Running", {"ClusterReady": ("False", "PodsNotReady")}),
    ("Restarting", {"ClusterReady": ("False", "Unschedulable"), "Running": ("False", "Restarting")}),
    ("Restarting", {"Running": ("False", "Recreating")}),
    ("Suspending", {"Suspended": ("False", "SuspendRequested")}),
    ("Suspended", {"Suspended": ("True", "Suspended"), "ClusterReady": ("False", "Suspended")}),
    ("Succeeded", {"Complete": ("True", "Succeeded"), "Running": ("False", "NotRunning")}),
    ("Failed", {"Failed": ("True", "HeadLost"), "Suspended": ("True", "Suspended")}),
)


@pytest.mark.parametrize(("expected", "states"), PHASES)
def test_phase_follows_from_the_conditions(expected: str, states: dict[str, tuple[str, str]]) -> None:
    held = conditions(**states)
    assert phase.phase_of(held) == expected
    top = phase.deciding_condition(held)
    assert top is not None
    assert top.reason == states.get(top.type, (None, top.reason))[1]


@pytest.mark.parametrize(("without_step", "seconds"), [(0, 10), (1, 10), (2, 20), (3, 40), (5, 160), (6, 300), (10_000, 300)])
def test_back_off_doubles_from_ten_seconds_to_five_minutes(without_step: int, seconds: float) -> None:
    assert budgets.delay_seconds(Counters(without_step=without_step), SETTINGS) == seconds


def judged(class_: Any) -> Judgement:
    return Judgement("Failed", class_, Reason.HEAD_LOST, "")


def test_counters_forget_attempts_without_a_step_once_one_was_made() -> None:
    counters = budgets.counted(Counters(), judged("Infra"), made_step=False)
    counters = budgets.counted(counters, judged("Infra"), made_step=False)
    assert (counters.infra, counters.without_step, counters.in_place) == (2, 2, 2)
    counters = budgets.counted(counters, judged("Infra"), made_step=True)
    assert (counters.infra, counters.without_step, counters.in_place) == (3, 0, 0)
    assert budgets.counted(counters, judged("Preempted"), made_step=False).without_step == 0


def test_old_charges_are_forgotten_only_after_newer_steps() -> None:
    day_old = Charge(at=ago(90_000), step=10)
    fresh = Charge(at=ago(60), step=10)
    assert budgets.remembered([day_old, fresh], 10, NOW, SETTINGS) == [day_old, fresh]
    assert budgets.remembered([day_old, fresh], 11, NOW, SETTINGS) == [fresh]


def test_a_thousand_restarts_are_counted_in_a_bounded_list() -> None:
    charges: list[Charge] = []
    for number_of in range(1000):
        charges = budgets.charged(charges, 0, NOW + timedelta(seconds=number_of))
    assert len(charges) <= MAX_CHARGES
    assert sum(charge.count for charge in charges) == 1000
    assert budgets.used_up(judged("Infra"), Counters(), charges, LifecycleSpec(max_infra_restarts=1000)) is None
    assert budgets.used_up(judged("Infra"), Counters(), charges, LifecycleSpec(max_infra_restarts=999)) is not None


@pytest.mark.parametrize(
    ("class_", "counters", "num_charges", "allowed"),
    [
        ("User", Counters(user=1), 0, False),
        ("User", Counters(user=1, infra=100), 100, False),
        ("Infra", Counters(user=5, infra=10), 10, True),
        ("Infra", Counters(infra=11), 11, False),
        ("Preempted", Counters(user=9, infra=99, preempted=99), 99, True),
    ],
)
def test_each_class_has_its_own_budget(class_: str, counters: Counters, num_charges: int, allowed: bool) -> None:
    charges = [Charge(at=ago(1))] * num_charges
    assert (budgets.used_up(judged(class_), counters, charges, LifecycleSpec()) is None) is allowed


def test_a_node_is_suspected_after_two_attempts_and_not_for_memory_or_preemption() -> None:
    def died(attempt: int, node: str, reason: str = "Evicted") -> Evidence:
        return Evidence(attempt=attempt, pod=f"p{attempt}", node=node, reason=reason, at=ago(1))

    assert budgets.suspect_node([died(1, "n1"), died(1, "n1")], [], SETTINGS) is None
    assert budgets.suspect_node([died(1, "n1"), died(2, "n2"), died(2, "n1")], [], SETTINGS) == "n1"
    assert budgets.suspect_node([died(1, "n1"), died(2, "n1")], ["n1"], SETTINGS) is None
    for innocent in ("OOMKilled", "PreemptionByScheduler", "PodDeleted", "Error"):
        assert budgets.suspect_node([died(1, "n1", innocent), died(2, "n1", innocent)], [], SETTINGS) is None


def test_memory_twice_counts_at_about_the_same_step_only() -> None:
    earlier = [Failure(attempt=1, class_="Infra", reason="OutOfMemory", message="", at=ago(1), step=10)]
    assert budgets.memory_before(earlier, 12, SETTINGS)
    assert not budgets.memory_before(earlier, 13, SETTINGS)
    assert not budgets.memory_before([], 10, SETTINGS)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.6123, "0.612"),
        (0.00412, "0.0041"),
        (1.2e-5, "1.2e-05"),
        (18203.4, "18203"),
        (0.0, "0"),
        (-1.5, "-1.500"),
        (42.19, "42.2"),
        (1e300, "1.0e+300"),
        (None, None),
        (float("nan"), None),
        (float("inf"), None),
    ],
)
def test_numbers_are_short(value: float | None, text: str | None) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(8, "8s"), (372, "6m12s"), (7860, "2h11m"), (273_600, "3d04h"), (-5, "0s"), (float("nan"), "an unknown time")],
)
def test_durations(seconds: float, text: str) -> None:
    assert texts.duration(seconds) == text


def test_rc65_ten_thousand_metrics_leave_three_numbers() -> None:
    report = Progress(job_uid=UID, step=STEPS_MAX, eta=1e300, stage="x" * 5000, metrics={f"reward/{index}": 1.0 for index in range(10_000)})
    stored = status_of(report, NOW)
    assert len(stored.model_dump_json()) < 1000


@pytest.mark.parametrize("text", ["", "yesterday", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", None])
def test_times_that_are_none_are_no_time(text: str | None) -> None:
    assert texts.moment_of(text) is None


def test_times_survive_being_stored() -> None:
    assert texts.moment_of(texts.stamp(NOW)) == NOW
    assert texts.moment_of("2026-11-29T12:00:00") == NOW


@pytest.mark.parametrize("cut", [texts.cut, texts.cut_start, texts.cut_middle])
def test_rc13_no_way_into_a_status_shows_a_secret(cut: Callable[[str, int], str]) -> None:
    said = "token hf_abcdefghijklmnopqrstuvwxyz0123456\u202e https://user:pass@host/x AKIAIOSFODNN7EXAMPLE"
    assert cut(said, 253) == "token *** https://***@host/x ***"


def test_a_checkpoint_without_a_time_is_none() -> None:
    for committed_at in ("not a time", "2026-13-45", ""):
        report = Progress(job_uid=UID, checkpoint=CommittedCheckpoint(step=3, path="/c", committed_at=committed_at))
        assert checkpoint_of(report, None) is None
    report = Progress(job_uid=UID, checkpoint=CommittedCheckpoint(step=3, path="/c", committed_at="2026-01-01"))
    stored = checkpoint_of(report, None)
    assert stored is not None
    assert stored.committed_at == "2026-01-01T00:00:00.000Z", "the API server stores whole times only"


def test_texts_are_cut_on_a_character_and_can_be_encoded() -> None:
    assert texts.cut("ab\ud800cd\x00", 10) == "ab?cd"
    assert len(texts.cut_middle("Ж" * 5000, 100)) == 100
    assert texts.cut("ЖЖЖ", 2) == "Ж…"
    assert texts.cut_start("ЖЖЖ", 2) == "…Ж"
    assert texts.cut_start("abc", 3) == "abc"


def test_colours_of_a_terminal_are_left_out() -> None:
    assert texts.clean("\x1b[36m\x1b[1m--block\x1b[22m\x1b[39m: 3 [of] 4") == "--block: 3 [of] 4"


def test_settings_keep_their_order() -> None:
    """A trainer is given time to notice a lost worker before it is stopped, and time to stop before its cluster goes."""
    assert DecideSettings().evidence_seconds < DecideSettings().worker_loss_seconds
    assert DecideSettings().retry_min_seconds < DecideSettings().retry_max_seconds
