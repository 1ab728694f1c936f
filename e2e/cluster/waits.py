"""Waiting for a part: with a limit, and not a moment longer than the part lives."""

from __future__ import annotations

import time
from collections.abc import Callable

from e2e.cluster import control, kuberay
from e2e.cluster.api import Api, ApiError
from e2e.cluster.sandbox import Sandbox, SandboxError, log_tail

# Twenty times what a loaded two-core machine took.
API_LIMIT_SECONDS = 120.0
CONTROLLERS_LIMIT_SECONDS = 120.0
KUBERAY_LIMIT_SECONDS = 60.0
_CANARY = f"/api/v1/namespaces/{kuberay.NAMESPACE}/serviceaccounts/default"


class NotUpError(SandboxError):
    """A part ended, or did not do in time what was awaited. The message ends with its last log lines."""


def wait_for(sandbox: Sandbox, part: str, what: str, probe: Callable[[], bool], limit_seconds: float) -> None:
    """Returns once `probe` is true; raises NotUpError when the part has ended or the limit has passed."""
    started = time.monotonic()
    while not probe():
        state = sandbox.part(part)
        waited = time.monotonic() - started
        if state is None:
            raise NotUpError(f"{part}: was never started, and {what} is awaited of it")
        if not state.running:
            raise NotUpError(f"{part} {state.describe()} before: {what}; {_log(sandbox, part)}")
        if waited > limit_seconds:
            raise NotUpError(f"{part}: not within {limit_seconds:.0f} s: {what}; it still runs; {_log(sandbox, part)}")
        time.sleep(0.02 if waited < 5 else 0.2)


def _log(sandbox: Sandbox, part: str) -> str:
    return f"the end of {sandbox.log(part)}:\n{log_tail(sandbox.log(part))}"


def await_api_server(sandbox: Sandbox, api: Api) -> None:
    """Until /readyz, which includes etcd."""
    wait_for(sandbox, control.API_SERVER, "/readyz answers 200", api.ready, API_LIMIT_SECONDS)


def await_controllers(sandbox: Sandbox, api: Api) -> None:
    """Until the controller-manager repairs something: its /healthz answers long before its controllers work."""
    try:
        api.call("DELETE", _CANARY)
    except ApiError as error:
        if error.status != 404:
            raise
    what = f"the default service account of {kuberay.NAMESPACE} is made again"
    wait_for(sandbox, control.CONTROLLER_MANAGER, what, lambda: api.exists(_CANARY), CONTROLLERS_LIMIT_SECONDS)


def await_kuberay(sandbox: Sandbox) -> None:
    """Until KubeRay's /readyz."""

    def ready() -> bool:
        return sandbox.probe(control.KUBERAY_HEALTH_PORT, "/readyz") == 200

    wait_for(sandbox, control.KUBERAY, "its /readyz answers 200", ready, KUBERAY_LIMIT_SECONDS)


def await_part(sandbox: Sandbox, api: Api, part: str) -> None:
    """Waits until a part that was just started works; parts without a sign of it are only looked at once."""
    if part in (control.ETCD, control.API_SERVER):
        await_api_server(sandbox, api)
    elif part == control.CONTROLLER_MANAGER:
        await_controllers(sandbox, api)
    elif part == control.KUBERAY:
        await_kuberay(sandbox)
    else:
        wait_for(sandbox, part, "it runs", lambda: (state := sandbox.part(part)) is not None and state.running, 1.0)
