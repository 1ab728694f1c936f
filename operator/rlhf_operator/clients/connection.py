"""How to reach the API server: a service account in a pod, a kubeconfig elsewhere.

kopf and our own client get sessions of the same kind, so both follow a rotated service account token without a new login.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import kopf

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_REREAD_SECONDS = 10.0
"""The kubelet replaces the token file at 80 % of its life; reading it this often costs nothing."""

Middleware = Callable[[aiohttp.ClientRequest, aiohttp.ClientHandlerType], Awaitable[aiohttp.ClientResponse]]


class ConnectError(Exception):
    """No usable way to reach the API server; the text says what was looked at."""


class FileToken:
    """A bearer token that its owner replaces on disk."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._value = ""
        self._read_at: float | None = None

    def __call__(self) -> str:
        now = self._clock()
        if self._read_at is None or now - self._read_at >= TOKEN_REREAD_SECONDS:
            self._value, self._read_at = self._path.read_text(encoding="utf-8").strip(), now
        return self._value


@dataclass(frozen=True)
class Connection:
    """One API server and how to authenticate there."""

    server: str
    """Base URL without a trailing slash."""
    tls: ssl.SSLContext | None
    headers: Mapping[str, str]
    token: FileToken | None = None
    """Set in a pod; then ``headers`` carry no authorization."""
    namespace: str | None = None
    """The namespace of the service account, or of the kubeconfig's context."""
    proxy: str | None = None

    def session(self, *middlewares: Middleware) -> aiohttp.ClientSession:
        """A session whose owner closes it. ``middlewares`` see each request after authorization was added."""

        async def authorize(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
            if self.token is not None:
                request.headers["Authorization"] = f"Bearer {self.token()}"
            return await handler(request)

        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self.tls if self.tls is not None else True),
            headers={"User-Agent": "rlhf-operator", **self.headers},
            middlewares=(authorize, *middlewares),
            proxy=self.proxy,
        )


def connect(env: Mapping[str, str] = os.environ, service_account: Path = SERVICE_ACCOUNT) -> Connection:
    """``KUBECONFIG`` where it is set, else the pod's service account, else ``~/.kube/config``. Raises ConnectError."""
    token = service_account / "token"
    if not env.get("KUBECONFIG") and token.exists():
        return _in_cluster(env, service_account)
    try:
        info = kopf.login_with_kubeconfig(settings=kopf.OperatorSettings())
    except (OSError, KeyError, kopf.LoginError) as fault:
        raise ConnectError(f"kubeconfig {env.get('KUBECONFIG') or '~/.kube/config'} can't be used: {fault!r}") from fault
    if info is None:
        raise ConnectError(f"no KUBECONFIG, no {token}, no ~/.kube/config: there is no API server to talk to")
    headers = info.as_http_headers()
    if not headers and not (info.certificate_path or info.certificate_data):
        raise ConnectError(
            f"the user of kubeconfig {env.get('KUBECONFIG') or '~/.kube/config'} has no token, password or certificate; "
            "exec plugins are not run: give it a token (kubectl create token)"
        )
    tls = info.as_ssl_context() if info.server.startswith("https:") else None
    return Connection(
        server=info.server.rstrip("/"), tls=tls, headers=headers, namespace=info.default_namespace, proxy=info.proxy_url
    )


def _in_cluster(env: Mapping[str, str], folder: Path) -> Connection:
    host, port = env.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc"), env.get("KUBERNETES_SERVICE_PORT", "443")
    namespace = folder / "namespace"
    return Connection(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        tls=ssl.create_default_context(cafile=str(folder / "ca.crt")),
        headers={},
        token=FileToken(folder / "token"),
        namespace=namespace.read_text(encoding="utf-8").strip() if namespace.exists() else None,
    )
