"""A thin client of the Kubernetes API: the few verbs the operator's rights name, JSON in and out, typed errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp

from rlhf_api.masking import heard

Json = dict[str, Any]

CONNECT_SECONDS = 5.0
TOTAL_SECONDS = 30.0
PAGE = 100
"""Objects a page of a list. Nothing else runs while a page is parsed, and a pod has 10 kB."""

MESSAGE_CHARACTERS = 8192

PERMANENT = frozenset({400, 403, 404, 405, 413, 422})
"""Answers that the same request meets again until somebody changes something."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A resource of the API server. ``prefix`` is ``api/v1`` or ``apis/GROUP/VERSION``."""

    prefix: str
    plural: str

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        parts = [self.prefix]
        if namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
        if subresource is not None:
            parts.append(subresource)
        return "/" + "/".join(parts)

    def __str__(self) -> str:
        group = self.prefix.split("/")[1] if self.prefix.startswith("apis/") else ""
        return f"{self.plural}.{group}" if group else self.plural


RLHFJOBS = Kind("apis/rlhf.dev/v1alpha1", "rlhfjobs")
RAYCLUSTERS = Kind("apis/ray.io/v1", "rayclusters")
PODS = Kind("api/v1", "pods")
CONFIG_MAPS = Kind("api/v1", "configmaps")
SECRETS = Kind("api/v1", "secrets")
CLAIMS = Kind("api/v1", "persistentvolumeclaims")
CORE_EVENTS = Kind("api/v1", "events")
EVENTS = Kind("apis/events.k8s.io/v1", "events")
NETWORK_POLICIES = Kind("apis/networking.k8s.io/v1", "networkpolicies")
DISRUPTION_BUDGETS = Kind("apis/policy/v1", "poddisruptionbudgets")
LEASES = Kind("apis/coordination.k8s.io/v1", "leases")


class KubeError(Exception):
    """The API server refused, failed, or did not answer (``status`` 0). The text is what it said."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        request: str,
        retry_after: float | None = None,
        causes: tuple[str, ...] = (),
        fields: tuple[str, ...] = (),
    ) -> None:
        super().__init__(f"{request}: {f'{status} {reason}: ' if status else ''}{message}")
        self.status, self.reason, self.message = status, reason, message
        self.retry_after = retry_after
        """Seconds that the server asked to wait."""
        self.causes = causes
        """``reason`` of each entry of ``details.causes``."""
        self.fields = fields
        """``field`` of each of them that has one, such as ``status.progress.step``."""

    @property
    def permanent(self) -> bool:
        return self.status in PERMANENT

    @property
    def invalid(self) -> bool:
        """What was sent does not fit the resource's schema or rules, or is not readable."""
        return self.status in (400, 422)

    @property
    def not_found(self) -> bool:
        return self.status == 404

    @property
    def already_exists(self) -> bool:
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        """The object changed since it was read, or its UID is another one."""
        return self.status == 409 and self.reason == "Conflict"

    @property
    def namespace_terminating(self) -> bool:
        return "NamespaceTerminating" in self.causes

    @property
    def too_large(self) -> bool:
        """The object no longer fits: the API server's body limit, or etcd's (``etcdserver: request is too large``)."""
        return self.status == 413 or "request is too large" in self.message or "Too long" in self.message


def kube_error(status: int, body: bytes, request: str, headers: Mapping[str, str]) -> KubeError:
    """What a refusal says. Never raises, whatever stands in ``body``: a proxy in between may answer in HTML."""
    try:
        parsed = json.loads(body)
    except ValueError:
        parsed = None
    found: Json = parsed if isinstance(parsed, dict) else {}
    details = found.get("details")
    details = details if isinstance(details, dict) else {}
    causes = details.get("causes")
    each_cause = [each for each in causes if isinstance(each, dict)] if isinstance(causes, list) else []
    names = tuple(str(each.get("reason")) for each in each_cause)
    fields = tuple(str(each["field"]) for each in each_cause if each.get("field"))
    message = found.get("message")
    if not isinstance(message, str) or not message:
        message = body[:512].decode("utf-8", "replace").strip() or "no message"
    message = heard(message[:MESSAGE_CHARACTERS])
    reason = found.get("reason")
    wait = _seconds(headers.get("Retry-After")) or _seconds(details.get("retryAfterSeconds"))
    said = reason if isinstance(reason, str) else ""
    return KubeError(status, said, message, request=request, retry_after=wait, causes=names, fields=fields)


def _seconds(value: Any) -> float | None:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return None
    return min(seconds, 300.0) if seconds > 0 else None


class KubeClient:
    """``guard`` is asked before each write: it raises when this process may not write any more, else returns the seconds it may."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        server: str,
        *,
        guard: Callable[[], float] = lambda: TOTAL_SECONDS,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        self._session, self._server = session, server
        self._guard, self._answered = guard, answered

    def may_write(self) -> None:
        """Raises where this process must not begin a write, here or elsewhere."""
        self._guard()

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Json:
        return await self._call("GET", kind.path(namespace, name))

    async def find(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        """None where it does not exist."""
        try:
            return await self.get(kind, namespace, name)
        except KubeError as error:
            if error.not_found:
                return None
            raise

    async def read(self, path: str) -> Json:
        """Discovery documents."""
        return await self._call("GET", path)

    async def list(self, kind: Kind, namespace: str | None, *, labels: str = "", fields: str = "") -> AsyncIterator[Json]:
        """Items page by page. An expired continuation (410) is raised: the caller begins again."""
        query = {"limit": str(PAGE)}
        if labels:
            query["labelSelector"] = labels
        if fields:
            query["fieldSelector"] = fields
        while True:
            page = await self._call("GET", kind.path(namespace), query=query)
            for item in page.get("items") or ():
                yield item
            token = page.get("metadata", {}).get("continue")
            if not token:
                return
            query["continue"] = token

    async def create(self, kind: Kind, body: Json, *, dry_run: bool = False) -> Json:
        """Unknown fields are refused by the server, never dropped in silence."""
        query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        return await self._call("POST", kind.path(body["metadata"]["namespace"]), body=body, query=query, write=not dry_run)

    async def merge_patch(self, kind: Kind, namespace: str, name: str, patch: Json, *, subresource: str | None = None) -> Json:
        """RFC 7386. A ``metadata.resourceVersion`` or ``metadata.uid`` in ``patch`` is checked by the server (409)."""
        return await self._call(
            "PATCH", kind.path(namespace, name, subresource), body=patch, content_type="application/merge-patch+json", write=True
        )

    async def replace(self, kind: Kind, body: Json) -> Json:
        meta = body["metadata"]
        return await self._call("PUT", kind.path(meta["namespace"], meta["name"]), body=body, write=True)

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str | None = None, propagation: str = "Background") -> bool:
        """False where it is gone already, or is another object than ``uid``."""
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            await self._call("DELETE", kind.path(namespace, name), body=options, write=True)
        except KubeError as error:
            if error.not_found or (uid is not None and error.conflict):
                return False
            raise
        return True

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Json | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        write: bool = False,
    ) -> Json:
        limit = min(TOTAL_SECONDS, self._guard()) if write else TOTAL_SECONDS
        request = f"{method} {path}"
        data = json.dumps(body, separators=(",", ":")).encode() if body is not None else None
        headers = {"Content-Type": content_type} if data is not None else None
        timeout = aiohttp.ClientTimeout(total=limit, sock_connect=min(CONNECT_SECONDS, limit))
        try:
            async with self._session.request(
                method, self._server + path, data=data, params=query, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                answer = await response.read()
                self._answered()
                if response.status >= 300:
                    raise kube_error(response.status, answer, request, response.headers)
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError, OSError) as fault:
            what = f"no answer within {limit:g} s" if isinstance(fault, TimeoutError) else str(fault) or type(fault).__name__
            raise KubeError(0, "Unreachable", what, request=request) from fault
        try:
            parsed = json.loads(answer)
        except ValueError as fault:
            raise KubeError(0, "Unreadable", "the answer is not JSON", request=request) from fault
        if not isinstance(parsed, dict):
            raise KubeError(0, "Unreadable", f"the answer is a {type(parsed).__name__}, not an object", request=request)
        return parsed
