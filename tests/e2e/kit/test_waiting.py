import pytest

from e2e.kit.waiting import TimedOutError, eventually, steady


def test_the_first_true_value_is_returned() -> None:
    answers = iter([None, "", "ready"])
    assert eventually("an answer", lambda: next(answers), seconds=5, every=0.0) == "ready"


def test_a_time_out_names_what_was_awaited_and_last_seen() -> None:
    with pytest.raises(TimedOutError, match=r"two pods: not within 0 s\.\nLast seen: one pod"):
        eventually("two pods", lambda: None, seconds=0, last=lambda: "one pod")


def test_a_condition_that_breaks_is_an_error_at_once() -> None:
    answers = iter([True, True, False])
    with pytest.raises(AssertionError, match="the job runs: no longer true"):
        steady("the job runs", lambda: next(answers), seconds=60, every=0.0)
