"""Ray Jobs REST API of Ray 2.60: submit, look, stop, read the log's end. Outcomes are values; no answer can raise."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args
from urllib.parse import quote

import aiohttp

from rlhf_api.masking import heard
from rlhf_operator import names
from rlhf_operator.clients.http import Answer, Endpoint, call
from rlhf_operator.decide.observation import JobsStatus, SubmissionView

MESSAGE_CHARACTERS = 4096
SHORT_CHARACTERS = 253
LOG_CHARACTERS = 16_384
SAID_CHARACTERS = 80
ENDED = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})
SECRET_CHARACTERS = 4096
"""Longest secret that is still recognised where a log is cut."""

# Ray 2.60, dashboard/modules/job/job_manager.py: part of the text of a refused id (agent: 400, head: 500).
ID_IN_USE = "use a different submission_id"

# Ray 2.60, job_head.py: the head looks for a ready agent for 10 s before it answers a POST.
SUBMIT_SECONDS = 13.0

STATUSES: Mapping[str, JobsStatus] = {each: each for each in get_args(JobsStatus)}


@dataclass(frozen=True, slots=True)
class Fault:
    """No usable answer: not reachable, not Ray, or not readable."""

    message: str
    status: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    gcs_healthy: bool
    version: str
    """Empty until the Jobs API answers a version call."""
    fault: str = ""
    """Why the head does not count as reachable; empty = it answered."""
    said: str = ""
    """What it answered in place of a version."""


@dataclass(frozen=True, slots=True)
class Submitted:
    submission_id: str


@dataclass(frozen=True, slots=True)
class IdInUse:
    """Somebody, perhaps we, submitted this id before: look at its metadata."""


@dataclass(frozen=True, slots=True)
class Refused:
    """``retry``: the same POST can succeed later (no agent yet, 5xx, no answer)."""

    message: str
    status: int
    retry: bool


def parse_submission(submission_id: str, answer: Answer) -> SubmissionView | Fault:
    if answer.status == 404:
        return SubmissionView(submission_id=submission_id, found=False)
    if answer.status != 200:
        return Fault(answer.says(), answer.status)
    found = _mapping(answer.body)
    if found is None:
        return Fault(f"the Jobs API's answer about {submission_id} is not a JSON object: {answer.says(120)}", answer.status)
    return _submission(submission_id, found, answer.status)


def parse_unfinished(job_uid: str, answer: Answer) -> tuple[SubmissionView, ...] | Fault:
    if answer.status != 200:
        return Fault(answer.says(), answer.status)
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        return Fault(f"the Jobs API's list of submissions is not a JSON list: {answer.says(120)}", answer.status)
    views = []
    for each in found:
        metadata = each.get("metadata") if isinstance(each, dict) else None
        submission_id = each.get("submission_id") if isinstance(each, dict) else None
        if not isinstance(metadata, dict) or metadata.get(names.JOB_UID_METADATA) != job_uid or not isinstance(submission_id, str):
            continue
        view = _submission(_text(submission_id, SHORT_CHARACTERS), each, answer.status)
        if isinstance(view, Fault):
            return view
        if view.status not in ENDED:
            views.append(view)
    return tuple(views)


def _submission(submission_id: str, found: Mapping[str, Any], code: int) -> SubmissionView | Fault:
    status = found.get("status")
    known = STATUSES.get(status) if isinstance(status, str) else None
    if known is None:
        return Fault(f"the Jobs API's answer about {submission_id} has the unknown status {_text(status, 80)!r}", code)
    metadata = found.get("metadata")
    return SubmissionView(
        submission_id=submission_id,
        found=True,
        status=known,
        error_type=_text(found.get("error_type"), SHORT_CHARACTERS),
        exit_code=_exit_code(found.get("driver_exit_code")),
        message=_text(found.get("message"), MESSAGE_CHARACTERS),
        metadata={str(key): _text(value, SHORT_CHARACTERS) for key, value in metadata.items()} if isinstance(metadata, dict) else {},
    )


def parse_submit(answer: Answer) -> Submitted | IdInUse | Refused:
    text = answer.body.decode("utf-8", "replace")
    if answer.status == 200:
        found = _mapping(answer.body)
        name = found.get("submission_id") if found is not None else None
        if isinstance(name, str) and name:
            return Submitted(name)
        return Refused(f"the Jobs API accepted the POST with an unreadable answer: {answer.says(120)}", answer.status, retry=True)
    if answer.status in (400, 500) and ID_IN_USE in text:
        return IdInUse()
    retry = answer.status == 0 or answer.status >= 500 or answer.status in (408, 409, 425, 429)
    return Refused(answer.says(), answer.status, retry=retry)


def parse_log_tail(answer: Answer, characters: int = LOG_CHARACTERS) -> str:
    """The end of ``{"logs": "…"}``, also where the beginning of the body was dropped. Empty when there is none."""
    if answer.status != 200:
        return ""
    found = _mapping(answer.body)
    if found is not None:
        return _end(found.get("logs"), characters)
    cut = answer.body.decode("utf-8", "ignore").rstrip().removesuffix("}").rstrip().removesuffix('"')
    # A backslash that ends an odd run escapes the n after it: the first whole line begins there.
    line = re.search(r"(?<!\\)(?:\\\\)*\\n", cut)
    if line is None:
        return ""
    try:
        text = json.loads(f'"{cut[line.end() :]}"', strict=False)
    except ValueError:
        return ""
    return _end(text, characters)


def _end(text: Any, characters: int) -> str:
    """Masked before it is cut: half a token would be shown."""
    return heard(text[-characters - SECRET_CHARACTERS :])[-characters:] if isinstance(text, str) else ""


def _exit_code(value: Any) -> int | None:
    """None for what no process can end with: a status holds 64 bits."""
    return value if isinstance(value, int) and not isinstance(value, bool) and -(2**31) <= value < 2**31 else None


def _mapping(body: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _text(value: Any, limit: int) -> str:
    if value is None:
        return ""
    text = heard((value if isinstance(value, str) else str(value))[: 2 * limit])
    return text if len(text) <= limit else text[: limit - 1] + "…"


class JobsClient:
    """One head's Jobs API."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: Endpoint) -> None:
        self._session, self._endpoint = session, endpoint

    async def health(self) -> Health:
        """Both answers that the first POST waits for."""
        version = await call(self._session, "GET", self._endpoint, "/api/version")
        if version.status != 200:
            return Health(False, "", fault=version.says())
        gcs = await call(self._session, "GET", self._endpoint, "/api/gcs_healthz")
        found = _mapping(version.body) or {}
        number = _text(found.get("ray_version") or found.get("version"), SHORT_CHARACTERS)
        return Health(gcs.status == 200, number, said="" if number else version.says(SAID_CHARACTERS))

    async def unfinished(self, job_uid: str) -> tuple[SubmissionView, ...] | Fault:
        """The submissions of this job that have not ended, whoever knows of them."""
        return parse_unfinished(job_uid, await call(self._session, "GET", self._endpoint, "/api/jobs/"))

    async def look(self, submission_id: str) -> SubmissionView | Fault:
        return parse_submission(submission_id, await call(self._session, "GET", self._endpoint, _path(submission_id)))

    async def submit(self, submission_id: str, entrypoint: str, metadata: Mapping[str, str]) -> Submitted | IdInUse | Refused:
        body = {"entrypoint": entrypoint, "submission_id": submission_id, "metadata": dict(metadata)}
        return parse_submit(await call(self._session, "POST", self._endpoint, "/api/jobs/", body=body, seconds=SUBMIT_SECONDS))

    async def stop(self, submission_id: str) -> Fault | None:
        """None = the stop was taken, or there is nothing to stop."""
        answer = await call(self._session, "POST", self._endpoint, _path(submission_id) + "/stop")
        return None if answer.status in (200, 404) else Fault(answer.says(), answer.status)

    async def log_tail(self, submission_id: str) -> str:
        return parse_log_tail(await call(self._session, "GET", self._endpoint, _path(submission_id) + "/logs", keep_tail=True))


def _path(submission_id: str) -> str:
    return f"/api/jobs/{quote(submission_id, safe='')}"
