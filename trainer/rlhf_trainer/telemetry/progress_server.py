"""Read-only HTTP of a running driver.

Port 8290: ``/progress`` (JSON, ``rlhf_api.progress.Progress``) behind the job's token. Port 8291: ``/metrics``
(Prometheus) and ``/healthz`` without one. Both answer from their own threads, so they work while a phase blocks.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import logging
import re
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from typing import ClassVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from rlhf_api.progress import Progress
from rlhf_trainer.errors import ConfigError
from rlhf_trainer.telemetry.phases import Phases

PROGRESS_PORT = 8290
METRICS_PORT = 8291
PORT_SEARCH = 200
HEARTBEAT_LIMIT_SECONDS = 4200.0
"""Above the longest deadline inside one phase (3600 s), which then ends the job with its own words."""

log = logging.getLogger(__name__)

Route = Callable[[], "Answer"]


@dataclass(frozen=True, slots=True)
class Ports:
    progress: int
    metrics: int


@dataclass(frozen=True, slots=True)
class Answer:
    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


class ProgressServer:
    """``token`` None serves ``/progress`` openly, which only a loopback ``host`` may do.

    A port of None is the default one, or the next free one with a log line; 0 is any free one; a number is that port or
    a ConfigError. ``/healthz`` fails when the last heartbeat is older than ``heartbeat_limit_seconds``.
    """

    def __init__(
        self,
        token: str | None,
        phases: Phases,
        progress: Progress,
        progress_port: int | None = None,
        metrics_port: int | None = None,
        host: str = "127.0.0.1",
        heartbeat_limit_seconds: float = HEARTBEAT_LIMIT_SECONDS,
    ) -> None:
        if token is None and not _is_loopback(host):
            raise ConfigError(f"progress server: host {host} is reachable from outside and there is no token\n  Nearest: host 127.0.0.1.")
        self._token = token
        self._phases = phases
        self._progress = progress
        self._wanted = (progress_port, metrics_port)
        self._host = host
        self._limit = heartbeat_limit_seconds
        self._servers: list[ThreadingHTTPServer] = []
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_ProgressCollector(self))

    def start(self) -> Ports:
        """Begin to serve; returns the ports in use. ConfigError when an explicit port is taken."""
        progress = self._serve(self._wanted[0], PROGRESS_PORT, "progress", {"/progress": self._answer_progress}, self._token)
        metrics = self._serve(
            self._wanted[1], METRICS_PORT, "metrics", {"/metrics": self._answer_metrics, "/healthz": self._answer_health}, None
        )
        return Ports(progress, metrics)

    def update(self, progress: Progress) -> None:
        """Publish; stage and heartbeat age are always taken from the phases at the moment of a request."""
        self._progress = progress

    @property
    def progress(self) -> Progress:
        """What ``/progress`` says now."""
        live = {"stage": self._phases.current, "heartbeat_age_seconds": round(self._phases.age_seconds, 3)}
        return self._progress.model_copy(update=live)

    def stop(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._servers.clear()

    def _serve(self, wanted: int | None, default: int, name: str, routes: dict[str, Route], token: str | None) -> int:
        handler = type("Handler", (_Handler,), {"routes": routes, "token": token})
        server = self._bind(wanted, default, name, handler)
        self._servers.append(server)
        threading.Thread(target=server.serve_forever, name=f"rlhf-{name}", daemon=True, kwargs={"poll_interval": 0.1}).start()
        return int(server.server_address[1])

    def _bind(self, wanted: int | None, default: int, name: str, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
        if wanted is not None:
            try:
                return _Server((self._host, wanted), handler)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                free = nearest_free_port(self._host, wanted)
                self.stop()
                raise ConfigError(f"{name} port {wanted} on {self._host} is in use\n  Nearest: {free} is free.") from error
        for port in range(default, default + PORT_SEARCH):
            try:
                server = _Server((self._host, port), handler)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            if port != default:
                log.warning("%s port %d is in use, serving on %d", name, default, port)
            return server
        raise ConfigError(f"no free {name} port between {default} and {default + PORT_SEARCH - 1} on {self._host}")

    def _answer_progress(self) -> Answer:
        return Answer(HTTPStatus.OK, self.progress.model_dump_json(by_alias=True).encode(), "application/json")

    def _answer_metrics(self) -> Answer:
        return Answer(HTTPStatus.OK, generate_latest(self._registry), CONTENT_TYPE_LATEST)

    def _answer_health(self) -> Answer:
        age = self._phases.age_seconds
        text = f"{self._phases.current}: heartbeat {age:.0f} s old, limit {self._limit:.0f} s\n".encode()
        return Answer(HTTPStatus.OK if age <= self._limit else HTTPStatus.SERVICE_UNAVAILABLE, text)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        # HTTPServer asks the name service for the host's name here, which can block for seconds and is never used.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    routes: ClassVar[Mapping[str, Route]]
    token: ClassVar[str | None]
    timeout = 10
    protocol_version = "HTTP/1.1"
    server_version = "rlhf"
    sys_version = ""

    def do_GET(self) -> None:
        route = self.routes.get(self.path.partition("?")[0])
        if not self._authorized():
            self._send(Answer(HTTPStatus.UNAUTHORIZED, b"a valid token is needed\n"), {"WWW-Authenticate": "Bearer"})
        elif route is None:
            self._send(Answer(HTTPStatus.NOT_FOUND, f"there is: {', '.join(self.routes)}\n".encode()))
        else:
            self._send(route())

    def _refuse(self) -> None:
        # The body was not read, so the connection can't be reused.
        self.close_connection = True
        self._send(Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"read-only\n"), {"Allow": "GET"})

    do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = _refuse  # noqa: N815 - the names http.server looks for

    def log_message(self, format: str, *args: object) -> None:
        """Polls are not events."""

    def _authorized(self) -> bool:
        if self.token is None:
            return True
        offered = (self.headers.get(name, "") for name in ("Authorization", "X-Ray-Authorization"))
        matches = [hmac.compare_digest(_bearer(value).encode(), self.token.encode()) for value in offered]
        return any(matches)

    def _send(self, answer: Answer, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)


class _ProgressCollector(Collector):
    """Gauges of the present progress; metrics that are not finite are absent."""

    def __init__(self, server: ProgressServer) -> None:
        self._server = server

    def collect(self) -> Iterator[GaugeMetricFamily]:
        progress = self._server.progress
        values: dict[str, tuple[str, float]] = {
            "rlhf_step": ("Rollout steps done.", progress.step),
            "rlhf_total_steps": ("Rollout steps of the whole job.", progress.total_steps),
            "rlhf_epoch": ("Complete passes over the data.", progress.epoch),
            "rlhf_attempt": ("Attempt of this driver.", progress.attempt),
            "rlhf_heartbeat_age_seconds": ("Since the last progress inside the running phase.", progress.heartbeat_age_seconds),
            "rlhf_updates_planned": ("Optimizer updates of the whole job.", progress.updates.planned),
            "rlhf_updates_done": ("Optimizer updates so far.", progress.updates.done),
        }
        if progress.eta is not None:
            values["rlhf_eta_seconds"] = ("Seconds to the end at the present pace.", progress.eta)
        if progress.checkpoint is not None:
            values["rlhf_checkpoint_step"] = ("Step of the last complete checkpoint.", progress.checkpoint.step)
        for key, count in progress.counts.items():
            values.setdefault(metric_name(f"count/{key}"), (f"Total of {key}.", count))
        for key, value in progress.metrics.items():
            if value is not None:
                values.setdefault(metric_name(key), (f"{key} of the last step.", value))
        for name, (text, number) in values.items():
            yield GaugeMetricFamily(name, text, value=number)
        stage = GaugeMetricFamily("rlhf_stage", "1 for the phase that is running.", labels=["stage"])
        stage.add_metric([progress.stage], 1)
        yield stage


def metric_name(key: str) -> str:
    """``rollout/reward_mean`` -> ``rlhf_rollout_reward_mean``: what Prometheus does not allow becomes an underscore."""
    return "rlhf_" + re.sub(r"[^a-zA-Z0-9_]", "_", key)


def nearest_free_port(host: str, wanted: int) -> int:
    """The next port above ``wanted`` that can be bound, else the next one below."""
    above = range(wanted + 1, min(wanted + PORT_SEARCH, 65_536))
    below = range(wanted - 1, max(wanted - PORT_SEARCH, 1023), -1)
    for port in chain(above, below):
        try:
            with _Server((host, port), _Handler):
                return port
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            continue
    raise ConfigError(f"no free port near {wanted} on {host}")


def _bearer(value: str) -> str:
    scheme, _, rest = value.strip().partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else value.strip()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
