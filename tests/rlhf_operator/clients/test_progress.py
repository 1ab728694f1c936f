"""The last report of a driver, found in its log."""

from __future__ import annotations

import pytest

from rlhf_api.progress import LAST_WORD, Progress
from rlhf_operator.clients.progress import last_word


def test_the_last_report_is_taken_out_of_the_log() -> None:
    report = Progress(job_uid="uid-1", attempt=2, step=60, metrics={"rollout/reward_mean": 0.98})
    line = f"{LAST_WORD}{report.model_dump_json(by_alias=True)}\n"
    assert last_word(f"step 59\nstep 60\n{line}", "uid-1", 2) == ("step 59\nstep 60\n", report)
    assert last_word(f"{line}leaked semaphore\n", "uid-1", 2) == ("leaked semaphore\n", report)


@pytest.mark.parametrize(
    "log",
    [
        "step 60\n",
        "",
        f"{LAST_WORD}not JSON\n",
        f"{LAST_WORD}\n",
        f"the user prints {LAST_WORD}" + Progress(job_uid="uid-1", attempt=2).model_dump_json(by_alias=True),
        LAST_WORD + Progress(job_uid="uid-1", attempt=1).model_dump_json(by_alias=True),
        LAST_WORD + Progress(job_uid="another", attempt=2).model_dump_json(by_alias=True),
    ],
)
def test_what_is_no_last_report_of_this_attempt_stays_in_the_log(log: str) -> None:
    assert last_word(log, "uid-1", 2) == (log, None)
