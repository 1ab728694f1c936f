"""`python -m e2e.cluster` with arguments that cannot be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster.__main__ import main


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["down", "--name", "../../etc"], "cluster name '../../etc': lower-case letters"),
        (["up", "--name", "Main"], "cluster name 'Main': lower-case letters"),
        (["status"], "no cluster 'main' is running"),
        (["logs"], "no cluster 'main' has logs; there are: none"),
        (["logs", "etcd", "--name", "../x"], "cluster name '../x': lower-case letters"),
    ],
)
def test_a_name_that_is_none_is_one_message(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "soon"])
def test_a_time_that_cannot_be_slept_is_refused_before_a_part_is_down(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["restart", "etcd", "--down", seconds])
    assert f"--down: '{seconds}': seconds from 0 to 86400" in capsys.readouterr().err
