"""``GET /progress`` of a running driver, and the last report of one that has ended."""

from __future__ import annotations

import aiohttp
from pydantic import ValidationError

from rlhf_api.progress import LAST_WORD, Progress
from rlhf_operator.clients.http import Answer, Endpoint, call
from rlhf_operator.clients.jobs import Fault


def last_word(log: str, job_uid: str, attempt: int) -> tuple[str, Progress | None]:
    """The end of a driver's log without its final report, and the report, where there is one of this job and attempt."""
    before, mark, rest = log.rpartition(LAST_WORD)
    if not mark or (before and not before.endswith("\n")):
        return log, None
    line, _, after = rest.partition("\n")
    found = parse_progress(Answer(200, line.encode()), job_uid, attempt)
    return (before + after, found) if isinstance(found, Progress) else (log, None)


def parse_progress(answer: Answer, job_uid: str, attempt: int) -> Progress | Fault:
    """An answer of another job or attempt is a Fault: an old driver may still hold the port for a moment."""
    if answer.status != 200:
        return Fault(answer.says(), answer.status)
    try:
        progress = Progress.model_validate_json(answer.body)
    except (ValidationError, RecursionError) as fault:
        where = ", ".join(".".join(map(str, each["loc"])) for each in fault.errors()[:3]) if isinstance(fault, ValidationError) else "depth"
        return Fault(f"/progress can't be read: {where or 'not JSON'}", answer.status)
    if progress.job_uid != job_uid:
        return Fault(f"/progress speaks of job {progress.job_uid[:64]}, not {job_uid}", answer.status)
    if progress.attempt != attempt:
        return Fault(f"/progress speaks of attempt {progress.attempt}, not {attempt}", answer.status)
    return progress


async def fetch_progress(session: aiohttp.ClientSession, endpoint: Endpoint, job_uid: str, attempt: int) -> Progress | Fault:
    return parse_progress(await call(session, "GET", endpoint, "/progress"), job_uid, attempt)
