from pathlib import Path

import pytest

from e2e.kit import budgets


def test_the_shipped_budgets_are_complete_and_stretch_on_a_slow_machine() -> None:
    quiet, slow = budgets.load(factor=1), budgets.load(factor=3)
    assert (quiet.detect, quiet.new_attempt) == (30, 120)
    assert (slow.detect, slow.new_attempt) == (90, 360)


@pytest.mark.parametrize(
    ("change", "words"),
    [("detect: 30\n", "detect"), ("speed: 3\n", "speed"), ("detect: soon\n", "'soon'"), ("detect: 0\n", "0 is no number")],
    ids=["missing", "unknown", "no number", "zero"],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, change: str, words: str) -> None:
    lines = [line for line in budgets.FILE.read_text().splitlines(keepends=True) if not line.startswith("detect:")]
    file = tmp_path / "budgets.yaml"
    file.write_text("".join(lines) + ("" if words == "detect" else change) + ("detect: 30\n" if words == "speed" else ""))
    with pytest.raises(ValueError, match=words):
        budgets.load(file)
