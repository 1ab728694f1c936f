"""The last report of a driver, found in its log."""

from __future__ import annotations

import json

import pytest

from rlhf_api.progress import LAST_WORD, Progress
from rlhf_operator.clients.http import Answer
from rlhf_operator.clients.jobs import Fault
from rlhf_operator.clients.progress import last_word, parse_progress


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


REPORT = {"stage": "rollout", "step": 3, "totalSteps": 60, "attempt": 2, "jobUid": "uid-1", "metrics": {"rollout/kl": 0.5}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step": 2**31}, "the answer is no report of a trainer: step: Input should be less than or equal to 2147483647"),
        ({"step": 10**18}, "step: Input should be"),
        ({"step": 10**400}, "step: "),
        ({"totalSteps": 2**31}, "totalSteps: "),
        ({"epoch": 2**63}, "epoch: "),
        ({"checkpoint": {"step": 10**18, "path": "/c", "committedAt": "x"}}, "checkpoint.step: "),
        ({"step": "3"}, "step: Input should be a valid integer"),
        ({"metrics": {"rollout/kl": float("nan")}}, "metrics.rollout/kl: "),
        ({"jobUid": "an\u202eother"}, "the answer is of job another, not uid-1"),
        ({"attempt": 1}, "the answer is of attempt 1, not 2"),
    ],
)
def test_a_report_that_cannot_be_one_is_a_fault_that_says_why(changes: dict[str, object], words: str) -> None:
    fault = parse_progress(Answer(200, json.dumps({**REPORT, **changes}).encode()), "uid-1", 2)
    assert isinstance(fault, Fault)
    assert words in fault.message


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(401, b"unauthorized"), "401 unauthorized"),
        (Answer(200, b"<html>"), "the answer is no report of a trainer: not JSON: Invalid JSON"),
        (Answer(200, b""), "the answer is no report of a trainer: not JSON: Invalid JSON"),
        (Answer(200, b"[" * 200_000), "the answer is no report of a trainer: "),
        (Answer(0, fault="no answer to GET /progress within 5 s"), "no answer to GET /progress within 5 s"),
    ],
)
def test_an_answer_that_is_no_report_is_a_fault_that_says_why(answer: Answer, words: str) -> None:
    fault = parse_progress(answer, "uid-1", 2)
    assert isinstance(fault, Fault)
    assert fault.message.startswith(words)


def test_rc13_texts_of_a_report_are_masked_and_plain() -> None:
    said = "a\x1b[2Jb\nsk-" + "x" * 30 + "\u202e\x07"
    changes = {
        "stage": said,
        "failure": {"exitCode": 3, "stage": said, "message": said},
        "best": {"step": 1, "metric": said, "value": 0.5},
        "model": {"step": 1, "path": "/m\n\x1b[31m/x"},
    }
    progress = parse_progress(Answer(200, json.dumps({**REPORT, **changes}).encode()), "uid-1", 2)
    assert isinstance(progress, Progress)
    assert progress.failure is not None
    assert progress.best is not None
    assert progress.model is not None
    assert (progress.stage, progress.failure.stage, progress.best.metric) == ("ab ***",) * 3
    assert progress.failure.message == "ab\n***"
    assert progress.model.path == "/m /x"
