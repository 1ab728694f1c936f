"""Where a head is looked for, and with which token."""

from __future__ import annotations

import asyncio
import dataclasses

import aiohttp
import pytest
from aiohttp import web

from rlhf_operator.clients.heads import Heads
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
