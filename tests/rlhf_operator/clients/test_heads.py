"""Where a head is looked for, and with which token."""

from __future__ import annotations

import asyncio
import dataclasses

import aiohttp
import pytest
from aiohttp import web

from rlhf_operator.clients.heads import Heads
from rlhf_operator.clients.jobs import Fault, Refused
from rlhf_operator.decide.observation import SubmissionView
from rlhf_operator.settings import OperatorSettings

SETTINGS = OperatorSettings(namespace="rlhf", pod_name="o", default_image="i", default_ray_version="2.60.0", token_key=b"k" * 32)
PROXY = "/api/v1/namespaces/ns/services/job-head-svc"


def endpoints(settings: OperatorSettings) -> tuple[str, str, dict[str, str]]:
    async def main() -> tuple[str, str, dict[str, str]]:
        async with aiohttp.ClientSession() as session:
            head = Heads(settings, session, session, "https://api:6443", lambda uid: f"token-of-{uid}").at("ns", "job-head-svc", "u")
            return head._jobs._endpoint.url, head._progress.url, dict(head._jobs._endpoint.headers)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("changes", "jobs", "progress", "header"),
    [
        ({}, "http://job-head-svc.ns.svc.cluster.local:8265", "http://job-head-svc.ns.svc.cluster.local:8290", "Authorization"),
        (
            {"cluster_domain": "k8s.corp"},
            "http://job-head-svc.ns.svc.k8s.corp:8265",
            "http://job-head-svc.ns.svc.k8s.corp:8290",
            "Authorization",
        ),
        (
            {"head_access": "proxy"},
            f"https://api:6443{PROXY}:dashboard/proxy",
            f"https://api:6443{PROXY}:rlhf-progress/proxy",
            "X-Ray-Authorization",
        ),
        ({"head_url": "http://h:1/{namespace}/{service}/"}, "http://h:1/ns/job-head-svc", "http://h:1/ns/job-head-svc", "Authorization"),
    ],
)
def test_addresses(changes, jobs, progress, header):
    assert endpoints(dataclasses.replace(SETTINGS, **changes)) == (jobs, progress, {header: "Bearer token-of-u"})


def test_behind_the_proxy_both_logins_are_sent(serve):
    """Authorization is the operator's at the API server, X-Ray-Authorization the job's at Ray."""
    seen = []

    async def main():
        async def handler(request: web.Request) -> web.Response:
            seen.append((request.path, request.headers["Authorization"], request.headers["X-Ray-Authorization"]))
            return web.json_response({"ray_version": "2.60.0"})

        async with serve(handler) as url, aiohttp.ClientSession(headers={"Authorization": "Bearer operator"}) as api:
            head = Heads(dataclasses.replace(SETTINGS, head_access="proxy"), api, api, url, lambda uid: "ray").at("ns", "job-head-svc", "u")
            assert (await head.health()).version == "2.60.0"
            await head.progress("u", 1)

    asyncio.run(main())
    assert seen == [
        (f"{PROXY}:dashboard/proxy/api/version", "Bearer operator", "Bearer ray"),
        (f"{PROXY}:dashboard/proxy/api/gcs_healthz", "Bearer operator", "Bearer ray"),
        (f"{PROXY}:rlhf-progress/proxy/progress", "Bearer operator", "Bearer ray"),
    ]


def status(code: int, reason: str, message: str) -> web.Response:
    """An error of the API server itself, Kubernetes 1.36."""
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": reason, "code": code}
    return web.json_response(body, status=code)


REFUSALS = [
    (401, "Unauthorized", "Unauthorized"),
    (403, "Forbidden", 'services "job-head-svc" is forbidden: User "operator" cannot get resource "services/proxy"'),
    (404, "NotFound", 'services "job-head-svc" not found'),
    (429, "TooManyRequests", "too many requests, please try again"),
    (503, "ServiceUnavailable", 'no endpoints available for service "job-head-svc"'),
    (503, "ServiceUnavailable", "error trying to reach service: dial tcp 10.1.2.3:8265: connect: connection refused"),
]


@pytest.mark.parametrize(("code", "reason", "message"), REFUSALS)
def test_what_the_proxy_says_is_not_taken_for_the_heads_word(code, reason, message, serve):
    """No 404 of it means that Ray lost the submission, or that there is nothing to stop; no 403 that Ray will never take it."""

    async def main():
        async def handler(request: web.Request) -> web.Response:
            return status(code, reason, message)

        async with serve(handler) as url, aiohttp.ClientSession() as api:
            head = Heads(dataclasses.replace(SETTINGS, head_access="proxy"), api, api, url, lambda uid: "ray").at("ns", "job-head-svc", "u")
            words = f"the API server's proxy answered {code}: {message}"
            assert await head.look("job-a1") == Fault(words)
            assert await head.submit("job-a1", "python -m x", {}) == Refused(words, 0, retry=True)
            assert await head.stop("job-a1") == Fault(words)
            assert (await head.health()).fault == words
            assert await head.progress("u", 1) == Fault(words)
            assert await head.log_tail("job-a1") == ""

    asyncio.run(main())


@pytest.mark.parametrize("access", ["proxy", "direct"])
def test_what_the_head_says_is_its_word_also_behind_the_proxy(access, serve):
    async def main():
        async def handler(request: web.Request) -> web.Response:
            if request.method == "POST" and request.path.endswith("/api/jobs/"):
                return web.Response(status=500, text="No available agent to submit job, please try again later.")
            return web.Response(status=404, text="Job job-a1 does not exist")

        async with serve(handler) as url, aiohttp.ClientSession() as session:
            given = {"head_access": "proxy"} if access == "proxy" else {"head_url": url}
            settings = dataclasses.replace(SETTINGS, **given)
            head = Heads(settings, session, session, url, lambda uid: "ray").at("ns", "job-head-svc", "u")
            assert await head.look("job-a1") == SubmissionView("job-a1", found=False)
            assert await head.stop("job-a1") is None
            refused = await head.submit("job-a1", "python -m x", {})
            assert isinstance(refused, Refused)
            assert (refused.status, refused.retry) == (500, True)

    asyncio.run(main())
