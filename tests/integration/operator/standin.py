"""Stands in for Ray heads and drivers where pods run nothing: the Jobs API of Ray 2.60 and ``/progress``, for many jobs at once.

A head lives at ``/NAMESPACE/SERVICE``. A submission is PENDING for one look, then RUNNING, and makes a step every ``step_seconds``
until ``total_steps``; then it is SUCCEEDED. Tests bend that through the fields of ``Head`` and ``Submission``.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

# Ray 2.60, as its head words it.
IN_USE = "Traceback …\nValueError: Job with submission_id {0} already exists. Please use a different submission_id.\n"
NO_AGENT = "No available agent to submit job, please try again later."


@dataclass
class Submission:
    id: str
    metadata: dict[str, str]
    entrypoint: str
    started: float | None = None
    """When it began to run, by the monotonic clock."""
    base_step: int = 0
    """Step that the attempt resumed from."""
    ended: tuple[str, int | None, str] | None = None
    """Status, exit code, error type."""
    failure: dict[str, Any] | None = None
    stop_asked: bool = False


@dataclass
class Head:
    down: bool = False
    """Answers nothing: the connection is dropped."""
    gcs: bool = True
    agent: bool = True
    status_code: int = 0
    """Answer every call with this instead."""
    progress_says: tuple[int, str] | None = None
    """Status and body of ``/progress`` instead of a report; for ``{}`` in the body stands what a report begins with."""
    log: str = "Traceback (most recent call last):\n  File reward.py\nValueError: no answer\n"
    delay_seconds: float = 0.0
    step_seconds: float = 0.2
    total_steps: int = 5
    hold: bool = False
    """Never end by itself."""
    submissions: dict[str, Submission] = field(default_factory=dict)
    posts: list[str] = field(default_factory=list)
    """Ids of all POSTs that were accepted, also those that were lost with the head's state since."""
    refused_posts: int = 0
    stops: list[str] = field(default_factory=list)

    def lose_state(self) -> None:
        """A new head: nothing of the old one is known."""
        self.submissions = {}

    def end(self, submission_id: str, status: str, code: int | None = None, error_type: str = "") -> None:
        self.submissions[submission_id].ended = (status, code, error_type)

    def step(self, submission: Submission) -> int:
        ran = time.monotonic() - submission.started if submission.started is not None else 0.0
        step = submission.base_step + int(ran / self.step_seconds)
        return step if self.hold else min(step, self.total_steps)

    def status(self, submission: Submission) -> str:
        if submission.ended is None and submission.started is not None and not self.hold and self.step(submission) >= self.total_steps:
            submission.ended = ("SUCCEEDED", 0, "")
        if submission.ended is not None:
            return submission.ended[0]
        return "RUNNING" if submission.started is not None else "PENDING"


class StandIn:
    """Runs in a thread of its own; ``url`` is the template that RLHF_HEAD_URL takes."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.heads: dict[tuple[str, str], Head] = {}
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="stand-in", daemon=True)

    def __enter__(self) -> StandIn:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{{namespace}}/{{service}}"

    def head(self, namespace: str, job: str) -> Head:
        return self.heads.setdefault((namespace, f"{job}-head-svc"), Head())

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_route("*", "/{namespace}/{service}/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        self._loop.run_until_complete(runner.setup())
        self._loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0).start())
        self.port = runner.addresses[0][1]
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        place = request.match_info
        head = self.heads.setdefault((place["namespace"], place["service"]), Head())
        await asyncio.sleep(head.delay_seconds)
        if head.down:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if head.status_code:
            return web.Response(status=head.status_code, text="stand-in says no")
        path = place["path"]
        if path == "api/version":
            return web.json_response({"version": "4", "ray_version": "2.60.0", "ray_commit": "0", "session_name": "session"})
        if path == "api/gcs_healthz":
            return web.Response(text="success") if head.gcs else web.Response(status=503, text="unhealthy")
        if path == "progress":
            return self._progress(head, request)
        parts = path.rstrip("/").split("/")
        if request.method == "POST" and parts == ["api", "jobs"]:
            return self._submit(head, await request.json(), request)
        if parts == ["api", "jobs"]:
            return web.json_response([self._details(head, each) for each in head.submissions.values()])
        submission = head.submissions.get(parts[2]) if len(parts) > 2 and parts[:2] == ["api", "jobs"] else None
        if submission is None:
            return web.Response(status=404, text=f"Job {parts[-1]} does not exist")
        if not self._allowed(submission, request):
            return web.Response(status=403, text="Forbidden: Invalid authentication token")
        if parts[3:] == ["stop"]:
            head.stops.append(submission.id)
            stopped = head.status(submission) in ("PENDING", "RUNNING")
            if stopped:
                submission.stop_asked, submission.ended = True, ("STOPPED", None, "")
            return web.json_response({"stopped": stopped})
        if parts[3:] == ["logs"]:
            return web.json_response({"logs": head.log})
        return web.json_response(self._details(head, submission))

    def _allowed(self, submission: Submission, request: web.Request) -> bool:
        uid = submission.metadata.get("rlhf.dev/job-uid", "")
        return request.headers.get("Authorization") == f"Bearer {hmac.new(self.key, uid.encode(), hashlib.sha256).hexdigest()}"

    def _submit(self, head: Head, body: dict[str, Any], request: web.Request) -> web.Response:
        if not head.agent:
            head.refused_posts += 1
            return web.Response(status=500, text=NO_AGENT)
        submission = Submission(body["submission_id"], dict(body.get("metadata") or {}), body["entrypoint"])
        if not self._allowed(submission, request):
            return web.Response(status=403, text="Forbidden: Invalid authentication token")
        if submission.id in head.submissions:
            head.refused_posts += 1
            return web.Response(status=500, text=IN_USE.format(submission.id))
        head.submissions[submission.id] = submission
        head.posts.append(submission.id)
        return web.json_response({"job_id": submission.id, "submission_id": submission.id})

    def _details(self, head: Head, submission: Submission) -> dict[str, Any]:
        status = head.status(submission)
        if submission.started is None and submission.ended is None:
            submission.started = time.monotonic()
        _, code, error_type = submission.ended or ("", None, "")
        return {
            "type": "SUBMISSION",
            "job_id": None,
            "submission_id": submission.id,
            "status": status,
            "entrypoint": submission.entrypoint,
            "message": f"Job is {status}.",
            "error_type": error_type or None,
            "metadata": submission.metadata,
            "runtime_env": {},
            "driver_exit_code": code,
        }

    def _progress(self, head: Head, request: web.Request) -> web.Response:
        live = [each for each in head.submissions.values() if each.started is not None]
        if not live:
            return web.Response(status=503, text="no driver")
        submission = live[-1]
        if not self._allowed(submission, request):
            return web.Response(status=401, text="unauthorized")
        if head.progress_says is not None:
            code, text = head.progress_says
            identity = {"attempt": int(submission.metadata["rlhf.dev/attempt"]), "jobUid": submission.metadata["rlhf.dev/job-uid"]}
            return web.Response(status=code, text=text.replace("{}", json.dumps(identity)[1:-1]))
        step = head.step(submission)
        body = {
            "stage": "rollout",
            "step": step,
            "totalSteps": head.total_steps,
            "attempt": int(submission.metadata["rlhf.dev/attempt"]),
            "jobUid": submission.metadata["rlhf.dev/job-uid"],
            "metrics": {"rollout/reward_mean": 0.1 * step, "rollout/kl": 0.01, "perf/tokens_per_second": 1234.5},
            "checkpoint": {"step": step, "path": f"/checkpoints/step-{step:06}", "committedAt": "2026-01-01T00:00:00Z"} if step else None,
            "heartbeatAgeSeconds": 0.1,
            "updates": {"planned": 10, "done": step},
            "failure": submission.failure,
        }
        return web.Response(text=json.dumps(body), content_type="application/json")
