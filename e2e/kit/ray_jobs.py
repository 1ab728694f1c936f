"""Ray's Jobs REST API through the API server's service proxy, so that a kubeconfig is all a test needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from e2e.kit.api import Api
from e2e.kit.waiting import eventually

FINISHED = ("SUCCEEDED", "FAILED", "STOPPED")


class RayJobs:
    """Jobs of one RayCluster. ``token``: Ray's own; it goes into ``X-Ray-Authorization``, since ``Authorization`` is the API server's."""

    def __init__(self, api: Api, cluster: str, token: str | None) -> None:
        self._api = api
        self._base = f"/api/v1/namespaces/{api.namespace}/services/{cluster}-head-svc:dashboard/proxy"
        self._headers = {"X-Ray-Authorization": f"Bearer {token}"} if token else {}

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        return self._api.http(method, self._base + path, body=body, headers=self._headers)

    def submit(self, entrypoint: str, submission_id: str, metadata: Mapping[str, str] | None = None) -> None:
        body = {"entrypoint": entrypoint, "submission_id": submission_id, "metadata": dict(metadata or {})}
        status, text = self.call("POST", "/api/jobs/", body)
        assert status == 200, f"submission of {submission_id}: HTTP {status}: {text}"

    def details(self, submission_id: str) -> dict[str, Any]:
        status, text = self.call("GET", f"/api/jobs/{submission_id}")
        assert status == 200, f"details of {submission_id}: HTTP {status}: {text}"
        found: dict[str, Any] = json.loads(text)
        return found

    def logs(self, submission_id: str) -> str:
        status, text = self.call("GET", f"/api/jobs/{submission_id}/logs")
        return str(json.loads(text)["logs"]) if status == 200 else f"(no log: HTTP {status})"

    def finish(self, submission_id: str, *, seconds: float) -> str:
        """Waits for a final status; returns the log, and fails with it when the job did not succeed."""
        details = eventually(
            f"Ray job {submission_id} to finish",
            lambda: found if (found := self.details(submission_id))["status"] in FINISHED else None,
            seconds=seconds,
            every=1,
            api=self._api,
            last=lambda: self.logs(submission_id)[-3000:],
        )
        log = self.logs(submission_id)
        assert details["status"] == "SUCCEEDED", f"{submission_id}: {details['status']}: {details.get('message')}\n{log[-5000:]}"
        return log
