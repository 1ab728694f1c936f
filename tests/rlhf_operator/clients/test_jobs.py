"""The Jobs API's answers, as Ray 2.60 gives them, and everything that it might give."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from rlhf_operator.clients.http import BODY_BYTES, Answer, Endpoint
from rlhf_operator.clients.jobs import (
    Fault,
    Health,
    IdInUse,
    JobsClient,
    Refused,
    Submitted,
    parse_log_tail,
    parse_submission,
    parse_submit,
    parse_unfinished,
)
from rlhf_operator.clients.progress import parse_progress
from rlhf_operator.decide.observation import SubmissionView

# As Ray 2.60 prints it: dashboard/modules/job/job_manager.py through job_agent.py and job_head.py.
IN_USE_AT_HEAD = (
    'Traceback (most recent call last):\n  File "job_head.py", line 405, in submit_job\nRuntimeError: Request failed with status code 400: '
    "Traceback …\nValueError: Job with submission_id job-a1 already exists. Please use a different submission_id.\n."
)
RUNNING = {
    "type": "SUBMISSION",
    "job_id": "02000000",
    "submission_id": "job-a1",
    "status": "RUNNING",
    "entrypoint": "python -m rlhf_trainer",
    "message": "Job is currently running.",
    "error_type": None,
    "start_time": 1790000000000,
    "end_time": None,
    "metadata": {"rlhf.dev/job-uid": "u", "rlhf.dev/attempt": "1"},
    "runtime_env": {},
    "driver_exit_code": None,
}
FAILED = {
    **RUNNING,
    "status": "FAILED",
    "message": "Job entrypoint command failed with exit code 75, last available logs (truncated to 20,000 chars):\nboom",
    "error_type": "JOB_ENTRYPOINT_COMMAND_ERROR",
    "driver_exit_code": 75,
}


DRIVER = {"type": "DRIVER", "job_id": "01000000", "submission_id": None, "status": "RUNNING", "metadata": {}}
"""Of a program that joined the cluster by itself."""


def body(value: Any, status: int = 200) -> Answer:
    return Answer(status, value.encode() if isinstance(value, str) else json.dumps(value).encode())


def test_a_running_submission():
    assert parse_submission("job-a1", body(RUNNING)) == SubmissionView(
        submission_id="job-a1",
        found=True,
        status="RUNNING",
        message="Job is currently running.",
        metadata={"rlhf.dev/job-uid": "u", "rlhf.dev/attempt": "1"},
    )


def test_a_failed_submission():
    seen = parse_submission("job-a1", body(FAILED))
    assert isinstance(seen, SubmissionView)
    assert (seen.status, seen.exit_code, seen.error_type) == ("FAILED", 75, "JOB_ENTRYPOINT_COMMAND_ERROR")


def test_an_unknown_submission():
    assert parse_submission("job-a1", body("Job job-a1 does not exist", 404)) == SubmissionView("job-a1", False)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Answer(0, fault="no answer"), "no answer"),
        (body("<html>Service Unavailable</html>", 503), "503 <html>Service Unavailable</html>"),
        (body("Unauthorized: Missing authentication token", 401), "401 Unauthorized"),
        (body('Traceback (most recent call last):\n  File "a.py", line 1, in f\nOSError: reset by peer\n\n', 500), "500 OSError: reset"),
        (body("[]"), "not a JSON object"),
        (body('{"status": "RUN'), "not a JSON object"),
        (body({"status": "HIBERNATING"}), "unknown status 'HIBERNATING'"),
        (body({"status": ["RUNNING"]}), "unknown status"),
        (body({}), "unknown status"),
    ],
)
def test_no_usable_answer_about_a_submission(answer, says):
    seen = parse_submission("job-a1", answer)
    assert isinstance(seen, Fault)
    assert says in seen.message


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (body({"job_id": "job-a1", "submission_id": "job-a1"}), Submitted),
        (body(IN_USE_AT_HEAD, 500), IdInUse),
        (body("ValueError: Job with submission_id job-a1 already exists. Please use a different submission_id.", 400), IdInUse),
    ],
)
def test_what_a_post_can_end_in(answer, outcome):
    assert isinstance(parse_submit(answer), outcome)


@pytest.mark.parametrize(
    ("answer", "retry"),
    [
        (body("No available agent to submit job, please try again later.", 500), True),
        (Answer(0, fault="no answer to POST /api/jobs/ within 13 s"), True),
        (body("proxy error", 502), True),
        (body("{", 200), True),
        (body("Too many requests", 429), True),
        (body("TypeError: unexpected keyword", 400), False),
        (body("Forbidden", 403), False),
    ],
)
def test_a_refused_post_says_whether_the_same_can_succeed_later(answer, retry):
    outcome = parse_submit(answer)
    assert isinstance(outcome, Refused)
    assert outcome.retry is retry
    assert outcome.message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=6),
    max_leaves=20,
)
fields = st.sampled_from(
    ["status", "message", "error_type", "driver_exit_code", "metadata", "logs", "submission_id", "jobUid", "attempt", "step", "metrics"]
)
likely = st.dictionaries(fields, json_values | st.sampled_from(["RUNNING", "FAILED"]), max_size=8).map(
    lambda value: json.dumps(value).encode()
)
bodies = st.binary(max_size=400) | json_values.map(lambda value: json.dumps(value).encode()) | likely
answers = st.builds(Answer, status=st.sampled_from([0, 200, 200, 200, 400, 404, 500, 503]), body=bodies, fault=st.text(max_size=20))


@given(answers)
def test_no_answer_can_raise(answer):
    seen = parse_submission("job-a1", answer)
    if isinstance(seen, SubmissionView):
        assert len(seen.message) <= 4096
        assert seen.exit_code is None or not isinstance(seen.exit_code, bool)
        assert all(isinstance(value, str) for value in seen.metadata.values())
    assert isinstance(parse_submit(answer), Submitted | IdInUse | Refused)
    assert isinstance(parse_log_tail(answer), str)
    parse_progress(answer, "u", 1)


@pytest.mark.parametrize("depth", [2_000, 100_000])
def test_deeply_nested_bodies_do_not_raise(depth):
    answer = body("[" * depth)
    assert isinstance(parse_submission("a", answer), Fault)
    assert isinstance(parse_progress(answer, "u", 1), Fault)
    assert parse_log_tail(answer) == ""


@given(st.text(alphabet=st.sampled_from('ab\\\n"é漢\U0001f600'), max_size=200), st.integers(0, 400))
def test_the_end_of_a_cut_log_is_whole_lines_of_it(text, cut):
    whole = json.dumps({"logs": text}).encode()
    assert parse_log_tail(Answer(200, whole)) == text
    tail = parse_log_tail(Answer(200, whole[min(cut, len(whole)) or 1 :]))
    assert text.endswith(tail)
    if tail and tail != text:
        assert text[: -len(tail)].endswith("\n")


def test_rc13_what_ray_and_the_log_say_is_masked_and_plain():
    said = "\x1b[31mError:\x07 \u202etoken hf_abcdefghijklmnopqrstuvwxyz https://user:p@ss@host/x AKIAIOSFODNN7EXAMPLE\r\nend\x00"
    shown = "Error: token *** https://***@host/x ***\nend"
    seen = parse_submission("a", body({**FAILED, "message": said, "error_type": said}))
    assert isinstance(seen, SubmissionView)
    assert (seen.message, seen.error_type) == (shown, shown)
    assert parse_log_tail(body({"logs": said})) == shown
    assert Answer(500, said.encode()).says() == "500 " + shown.replace("\n", " ")
    refused = parse_submit(Answer(403, said.encode()))
    assert isinstance(refused, Refused)
    assert refused.message == "403 " + shown.replace("\n", " ")


def test_rc13_a_token_at_the_border_of_a_logs_end_is_not_shown_in_half():
    log = "hf_" + "abcdefgh" * 4
    for characters in range(1, len(log)):
        assert "abc" not in parse_log_tail(body({"logs": f"x {log}\n{'y' * 5}"}), characters + 6)


@pytest.mark.parametrize(
    ("code", "seen"), [(0, 0), (-9, -9), (137, 137), (2**31 - 1, 2**31 - 1), (2**31, None), (10**23, None), (-(10**23), None), (True, None)]
)
def test_an_exit_code_that_no_process_has_is_none(code, seen):
    view = parse_submission("a", body({**FAILED, "driver_exit_code": code}))
    assert isinstance(view, SubmissionView)
    assert view.exit_code == seen


def test_rc65_a_huge_message_is_cut():
    seen = parse_submission("a", body({**FAILED, "message": "é" * 2_000_000, "error_type": "x" * 9999}))
    assert isinstance(seen, SubmissionView)
    assert len(seen.message) == 4096
    assert len(seen.error_type) == 253


def test_a_whole_submission_against_a_server(serve):
    async def main():
        jobs: dict[str, Any] = {}

        async def handler(request: web.Request) -> web.Response:
            if request.headers.get("Authorization") != "Bearer secret" and not request.path.endswith("healthz"):
                return web.Response(status=401, text="Unauthorized")
            name = request.path.split("/")[3] if request.path.startswith("/api/jobs/") else ""
            match request.method, request.path:
                case "GET", "/api/version":
                    return web.json_response({"version": "4", "ray_version": "2.60.0", "ray_commit": "x", "session_name": "s"})
                case "GET", "/api/gcs_healthz":
                    return web.Response(text="success")
                case "POST", "/api/jobs/":
                    wanted = await request.json()
                    if wanted["submission_id"] in jobs:
                        return web.Response(status=500, text=IN_USE_AT_HEAD)
                    jobs[wanted["submission_id"]] = {**RUNNING, **wanted}
                    return web.json_response({"job_id": wanted["submission_id"], "submission_id": wanted["submission_id"]})
                case "POST", _ if name in jobs:
                    jobs[name]["status"] = "STOPPED"
                    return web.json_response({"stopped": True})
                case "GET", path if name in jobs and path.endswith("/logs"):
                    return web.json_response({"logs": "x" * BODY_BYTES + "\nlast line\n"})
                case "GET", _ if name in jobs:
                    return web.json_response(jobs[name])
            return web.Response(status=404, text=f"Job {name} does not exist")

        async with serve(handler) as url, aiohttp.ClientSession() as session:
            client = JobsClient(session, Endpoint(url, {"Authorization": "Bearer secret"}))
            assert await client.health() == Health(True, "2.60.0")
            assert await client.look("job-a1") == SubmissionView("job-a1", False)
            metadata = {"rlhf.dev/job-uid": "u", "rlhf.dev/attempt": "1"}
            assert await client.submit("job-a1", "python -m rlhf_trainer", metadata) == Submitted("job-a1")
            assert await client.submit("job-a1", "python -m rlhf_trainer", metadata) == IdInUse()
            seen = await client.look("job-a1")
            assert isinstance(seen, SubmissionView)
            assert seen.metadata == metadata
            assert await client.log_tail("job-a1") == "last line\n"
            assert await client.stop("job-a1") is None
            assert await client.stop("job-a9") is None
            stranger = JobsClient(session, Endpoint(url, {}))
            assert await stranger.submit("job-a2", "x", {}) == Refused("401 Unauthorized", 401, retry=False)
            assert (await stranger.health()).fault == "401 Unauthorized"
        assert list(jobs) == ["job-a1"]

    asyncio.run(main())


def test_nan_in_progress_is_not_taken_for_a_number():
    answer = body(json.dumps({"jobUid": "u", "attempt": 1, "step": 1, "heartbeatAgeSeconds": math.nan}))
    assert isinstance(parse_progress(answer, "u", 1), Fault)


@pytest.mark.parametrize(("uid", "attempt", "says"), [("v", 1, "job u, not v"), ("u", 2, "attempt 1, not 2")])
def test_progress_of_somebody_else_is_refused(uid, attempt, says):
    seen = parse_progress(body({"jobUid": "u", "attempt": 1, "step": 3}), uid, attempt)
    assert isinstance(seen, Fault)
    assert says in seen.message


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        ([], ()),
        ([DRIVER, RUNNING, {**FAILED, "submission_id": "job-a0"}], ("job-a1",)),
        ([{**RUNNING, "metadata": {"rlhf.dev/job-uid": "another"}}, {**RUNNING, "metadata": None}, 7, None], ()),
        ([RUNNING, {**RUNNING, "submission_id": "job-a2", "status": "PENDING"}], ("job-a1", "job-a2")),
    ],
)
def test_what_a_job_still_runs_is_told_by_the_uid_in_the_metadata(listed, found):
    views = parse_unfinished("u", body(listed))
    assert not isinstance(views, Fault)
    assert tuple(view.submission_id for view in views) == found


@pytest.mark.parametrize(
    "answer",
    [body("no", 500), body("<html>"), body({"jobs": []}), body([{**RUNNING, "status": "LOST"}])],
    ids=["500", "html", "map", "odd"],
)
def test_a_list_that_cannot_be_read_is_no_empty_list(answer):
    assert isinstance(parse_unfinished("u", answer), Fault)


def test_what_answers_in_place_of_a_version_is_told_in_short(serve):
    async def main():
        async def handler(request: web.Request) -> web.StreamResponse:
            return web.Response(text="<html><title>Log in to the portal</title>" + "x" * 500, content_type="text/html")

        async with serve(handler) as url, aiohttp.ClientSession() as session:
            health = await JobsClient(session, Endpoint(url, {})).health()
            assert (health.fault, health.version) == ("", "")
            assert health.said.startswith("200 <html><title>Log in to the portal</title>xxx")
            assert len(health.said) <= 84

    asyncio.run(main())
