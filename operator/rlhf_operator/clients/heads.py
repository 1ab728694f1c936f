"""Where a job's head is, and with which token: its service, the API server's service proxy, or a given address."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import aiohttp

from rlhf_api.progress import Progress
from rlhf_operator import names
from rlhf_operator.clients.http import Endpoint
from rlhf_operator.clients.jobs import Fault, Health, IdInUse, JobsClient, Refused, Submitted
from rlhf_operator.clients.progress import fetch_progress
from rlhf_operator.decide.observation import SubmissionView
from rlhf_operator.settings import OperatorSettings

# Names of the ports in the head service: KubeRay 1.6's for the dashboard, ours for the driver.
DASHBOARD_PORT_NAME = "dashboard"
PROGRESS_PORT_NAME = "rlhf-progress"


class Head:
    """One head: the Jobs API and, while a driver runs, its ``/progress``."""

    def __init__(self, session: aiohttp.ClientSession, jobs: Endpoint, progress: Endpoint) -> None:
        self._session, self._jobs, self._progress = session, JobsClient(session, jobs), progress

    async def health(self) -> Health:
        return await self._jobs.health()

    async def look(self, submission_id: str) -> SubmissionView | Fault:
        return await self._jobs.look(submission_id)

    async def unfinished(self, job_uid: str) -> tuple[SubmissionView, ...] | Fault:
        return await self._jobs.unfinished(job_uid)

    async def log_tail(self, submission_id: str) -> str:
        return await self._jobs.log_tail(submission_id)

    async def submit(self, submission_id: str, entrypoint: str, metadata: Mapping[str, str]) -> Submitted | IdInUse | Refused:
        return await self._jobs.submit(submission_id, entrypoint, metadata)

    async def stop(self, submission_id: str) -> Fault | None:
        return await self._jobs.stop(submission_id)

    async def progress(self, job_uid: str, attempt: int) -> Progress | Fault:
        return await fetch_progress(self._session, self._progress, job_uid, attempt)


class Heads:
    """``direct``: session without credentials. ``api``: session of the API server at ``server``, for the proxy."""

    def __init__(
        self,
        settings: OperatorSettings,
        direct: aiohttp.ClientSession,
        api: aiohttp.ClientSession,
        server: str,
        token: Callable[[str], str],
    ) -> None:
        self._settings, self._direct, self._api, self._server, self._token = settings, direct, api, server, token

    def at(self, namespace: str, service: str, job_uid: str) -> Head:
        settings = self._settings
        bearer = f"Bearer {self._token(job_uid)}"
        if settings.head_url:
            base = settings.head_url.format(namespace=namespace, service=service).rstrip("/")
            given = Endpoint(base, {"Authorization": bearer}, settings.http_timeout_seconds)
            return Head(self._direct, given, given)
        if settings.head_access == "proxy":
            # Authorization belongs to the API server there.
            path = f"{self._server}/api/v1/namespaces/{namespace}/services/{service}"
            headers = {"X-Ray-Authorization": bearer}
            jobs = Endpoint(f"{path}:{DASHBOARD_PORT_NAME}/proxy", headers, settings.http_timeout_seconds, proxied=True)
            progress = Endpoint(f"{path}:{PROGRESS_PORT_NAME}/proxy", headers, settings.http_timeout_seconds, proxied=True)
            return Head(self._api, jobs, progress)
        host = f"http://{service}.{namespace}.svc.{settings.cluster_domain}"
        headers = {"Authorization": bearer}
        jobs = Endpoint(f"{host}:{names.DASHBOARD_PORT}", headers, settings.http_timeout_seconds)
        return Head(self._direct, jobs, Endpoint(f"{host}:{names.PROGRESS_PORT}", headers, settings.http_timeout_seconds))
