from __future__ import annotations

from pathlib import Path

from rlhf_operator.decide import classification_page

PAGE = Path(__file__).resolve().parents[3] / "docs" / "classification.md"


def test_page_is_what_the_table_says() -> None:
    assert PAGE.read_text() == classification_page.text(), (
        "stale: python -m rlhf_operator.decide.classification_page > docs/classification.md"
    )
