from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlhf_api import failures
from rlhf_api.reasons import FACTS, Reason

REPOSITORY = Path(__file__).resolve().parents[2]


def test_every_reason_has_its_fact() -> None:
    assert set(FACTS) == set(Reason)


def test_page_is_what_the_reasons_say() -> None:
    assert (REPOSITORY / "docs" / "failures.md").read_text() == failures.text(), "stale: rlhf reasons -o docs/failures.md"


@pytest.mark.parametrize("reason", Reason)
def test_reason_is_one_word_that_conditions_accept(reason: Reason) -> None:
    assert re.fullmatch(r"[A-Z][A-Za-z]*", reason)
    assert len(reason) <= 128


@pytest.mark.parametrize("reason", Reason)
def test_fact_is_a_sentence_and_whatever_went_wrong_says_what_to_do(reason: Reason) -> None:
    fact = FACTS[reason]
    assert re.fullmatch(r"[A-Z].*\.", fact.meaning)
    assert "\n" not in fact.meaning + fact.remedy
    assert not fact.warning or fact.remedy.endswith(".")
    assert fact.kind != "failure" or fact.classes


@pytest.mark.parametrize(
    ("reason", "cell"),
    [
        (Reason.SUBMISSION_FAILED, "Config or Infra"),
        (Reason.OUT_OF_MEMORY, "Infra first, then User"),
        (Reason.STALLED, "Infra"),
        (Reason.TRAINING, "-"),
    ],
)
def test_page_says_whether_two_classes_are_alternatives_or_a_sequence(reason: Reason, cell: str) -> None:
    assert f"| `{reason}` | {cell} | {FACTS[reason].meaning} |" in failures.text()
