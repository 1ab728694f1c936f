"""One bounded HTTP call to something that may hang, lie or be half dead: never raises for what the other side does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from rlhf_api.masking import heard

CALL_SECONDS = 5.0
BODY_BYTES = 1 << 20
TRACEBACK = b"Traceback (most recent call last):"
"""Ray's dashboard answers 500 with the whole of it, as text."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``status`` 0 = no complete answer, and ``fault`` says why."""

    status: int
    body: bytes = b""
    fault: str = ""

    def says(self, limit: int = 512) -> str:
        """What it was, for people: one line of at most about ``limit`` characters. Of a traceback its last line, the error."""
        if self.status == 0:
            return " ".join(heard(self.fault).split())
        body = self.body[: 4 * limit]
        if TRACEBACK in body:
            body = self.body.rstrip().rpartition(b"\n")[2][: 4 * limit]
        text = " ".join(heard(body.decode("utf-8", "replace")).split())
        return f"{self.status} {text[:limit]}".rstrip()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Base URL (no trailing slash) and the headers that carry the job's token."""

    url: str
    headers: Mapping[str, str]
    seconds: float = CALL_SECONDS
    """Limit of one call."""
    proxied: bool = False
    """Behind the API server's service proxy, which also answers for itself: a missing Service or right, no endpoint, too many calls."""


async def call(
    session: aiohttp.ClientSession,
    method: str,
    endpoint: Endpoint,
    path: str,
    *,
    body: Any = None,
    keep_tail: bool = False,
    seconds: float | None = None,
) -> Answer:
    """``seconds``: another limit than the endpoint's. ``keep_tail``: a longer body than BODY_BYTES is not refused, its end is kept."""
    seconds = seconds if seconds is not None else endpoint.seconds
    timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, endpoint.seconds))
    try:
        async with session.request(
            method, endpoint.url + path, json=body, headers=endpoint.headers, timeout=timeout, allow_redirects=False
        ) as response:
            if 300 <= response.status < 400:
                target = response.headers.get("Location", "?")[:200]
                return Answer(0, fault=f"answered {response.status}, a redirect to {target}; not followed")
            kept = bytearray()
            async for chunk in response.content.iter_chunked(1 << 16):
                kept += chunk
                if len(kept) > BODY_BYTES:
                    if not keep_tail:
                        return Answer(0, fault=f"the answer to {method} {path} is longer than {BODY_BYTES} bytes")
                    del kept[:-BODY_BYTES]
            answer = Answer(response.status, bytes(kept))
            words = _of_the_proxy(answer) if endpoint.proxied and response.status >= 400 else None
            return Answer(0, fault=words) if words is not None else answer
    except TimeoutError:
        return Answer(0, fault=f"no answer to {method} {path} within {seconds:g} s")
    except (aiohttp.ClientError, OSError, ValueError) as fault:
        return Answer(0, fault=f"{method} {path}: {str(fault) or type(fault).__name__}"[:512])


def _of_the_proxy(answer: Answer) -> str | None:
    """What the API server said itself, in its own form of an error; None where the head said it."""
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or (found.get("kind"), found.get("apiVersion")) != ("Status", "v1"):
        return None
    return f"the API server's proxy answered {answer.status}: {' '.join(str(found.get('message') or 'no message').split())}"[:512]
