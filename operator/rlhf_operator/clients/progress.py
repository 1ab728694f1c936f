"""``GET /progress`` of a running driver, and the last report of one that has ended."""

from __future__ import annotations

import aiohttp
from pydantic import ValidationError

from rlhf_api.masking import heard, plain
from rlhf_api.progress import LAST_WORD, MESSAGE_MAX, Progress
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
    """An answer of another job or attempt is a Fault: an old driver may still hold the port for a moment. Its texts are fit to be shown."""
    if answer.status != 200:
        return Fault(answer.says(), answer.status)
    try:
        progress = Progress.model_validate_json(answer.body)
    except (ValidationError, RecursionError) as fault:
        return Fault(f"the answer is no report of a trainer: {_why(fault)}", answer.status)
    if progress.job_uid != job_uid:
        return Fault(f"the answer is of job {_line(progress.job_uid)[:64]}, not {job_uid}", answer.status)
    if progress.attempt != attempt:
        return Fault(f"the answer is of attempt {progress.attempt}, not {attempt}", answer.status)
    return _shown(progress)


def _why(fault: ValidationError | RecursionError) -> str:
    if isinstance(fault, RecursionError):
        return "it is nested too deep"
    found = [(".".join(map(str, each["loc"])), each["msg"]) for each in fault.errors(include_input=False, include_url=False)[:3]]
    return _line("; ".join(f"{place}: {words}" if place else f"not JSON: {words}" for place, words in found))[:253]


def _shown(progress: Progress) -> Progress:
    changes: dict[str, object] = {"stage": _line(progress.stage)}
    if progress.failure is not None:
        words = {"stage": _line(progress.failure.stage), "message": heard(progress.failure.message)}
        changes["failure"] = progress.failure.model_copy(update=words)
    if progress.best is not None:
        changes["best"] = progress.best.model_copy(update={"metric": _line(progress.best.metric)})
    for name, place in (("checkpoint", progress.checkpoint), ("model", progress.model)):
        if place is not None:
            changes[name] = place.model_copy(update={"path": plain(place.path).replace("\n", " ")})
    return progress.model_copy(update=changes)


def _line(text: str) -> str:
    return " ".join(heard(text[:MESSAGE_MAX]).split())


async def fetch_progress(session: aiohttp.ClientSession, endpoint: Endpoint, job_uid: str, attempt: int) -> Progress | Fault:
    return parse_progress(await call(session, "GET", endpoint, "/progress"), job_uid, attempt)
