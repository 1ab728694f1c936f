"""The few calls that start-up makes to the API server. A full client library takes longer to import than a warm cluster takes to answer."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from typing import Any

import urllib3

from e2e.cluster.certs import Pki


class ApiError(RuntimeError):
    """The API server refused a request."""

    def __init__(self, method: str, path: str, status: int, text: str) -> None:
        super().__init__(f"{method} {path}: {status}: {text[:500]}")
        self.status = status


READY_TIMEOUT_SECONDS = 5.0
# No connection, or none that lasted.
Unreachable = urllib3.exceptions.HTTPError


class Api:
    """The API server at 127.0.0.1:PORT, as a subject of the certificates."""

    def __init__(self, port: int, pki: Pki, subject: str = "admin", timeout_seconds: float = 60.0) -> None:
        context = ssl.create_default_context(cafile=str(pki.folder / "ca.crt"))
        context.load_cert_chain(pki.certificate(subject), pki.private_key(subject))
        self._timeout_seconds = timeout_seconds
        self._pool = urllib3.HTTPSConnectionPool("127.0.0.1", port, ssl_context=context, retries=False)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout_seconds: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """One request; an answer of 400 or more is returned, not raised."""
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        return self._pool.request(method, path, body=body, headers=headers, timeout=timeout_seconds or self._timeout_seconds)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One request with JSON on both sides; raises ApiError."""
        return self._checked(method, path, self.request(method, path, None if body is None else json.dumps(body).encode()))

    def apply(self, path: str, manifest: bytes) -> dict[str, Any]:
        """Server-side apply of one object in YAML or JSON."""
        query = f"{path}?fieldManager=rlhf-e2e&force=true"
        return self._checked("PATCH", path, self.request("PATCH", query, manifest, "application/apply-patch+yaml"))

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Merge patch; raises ApiError."""
        return self._checked("PATCH", path, self.request("PATCH", path, json.dumps(body).encode(), "application/merge-patch+json"))

    def exists(self, path: str) -> bool:
        """Whether there is such an object."""
        response = self.request("GET", path)
        if response.status == 404:
            return False
        self._checked("GET", path, response)
        return True

    def ready(self) -> bool:
        """Whether the API server says it is ready; no connection counts as no."""
        try:
            return self.request("GET", "/readyz", timeout_seconds=READY_TIMEOUT_SECONDS).status == 200
        except Unreachable:
            return False

    def token(self, namespace: str, service_account: str, seconds: int) -> str:
        """A new bearer token of a service account."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": seconds}}
        return str(self.call("POST", path, request)["status"]["token"])

    @staticmethod
    def _checked(method: str, path: str, response: urllib3.BaseHTTPResponse) -> dict[str, Any]:
        if response.status >= 400:
            raise ApiError(method, path, response.status, response.data.decode(errors="replace"))
        answer: dict[str, Any] = json.loads(response.data)
        return answer
