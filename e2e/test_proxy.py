"""An operator that reaches heads through the API server alone: the whole life of a job, with the direct way cut."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.cluster import Cluster
from e2e.cluster.control import KUBERAY
from e2e.kit import faults
from e2e.kit.api import Api
from e2e.kit.budgets import Budgets
from e2e.kit.clients import Clients
from e2e.kit.jobs import Job, Jobs
from e2e.kit.operator import Images, Release
from e2e.kit.waiting import eventually, steady

STEPS = 25
DASHBOARD_PORT = 8265
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()
    print("connected")
except TimeoutError:
    print("no answer")
"""


@pytest.fixture
def behind(operator: Release, clients: Clients, admin: Api, images: Images, limits: Budgets) -> Iterator[Release]:
    """A release that runs the jobs of its own namespace through the proxy, while the session's does nothing."""
    values: dict[str, Any] = {"watch": {"scope": "release"}, "crds": {"enabled": False}, "headAccess": "proxy"}
    found = Release(clients, admin, images, name="behind", namespace=f"behind-{secrets.token_hex(2)}", values=values)
    operator.scale(0)
    try:
        found.install(limits.helm_install)
        yield found
    finally:
        found.uninstall()
        operator.scale(1)


@pytest.fixture
def jobs_behind(behind: Release, clients: Clients, tmp_path: Path, limits: Budgets) -> Iterator[Jobs]:
    """Jobs beside their operator, whose own pod stays when theirs go."""
    found = Jobs(behind.api, clients, behind.images.trainer, tmp_path)
    yield found
    for job in found.api.list("RLHFJob"):
        found.api.delete("RLHFJob", job["metadata"]["name"])
    eventually("pods of jobs to go", lambda: not found.api.list("Pod", labels="rlhf.dev/job"), seconds=limits.gone, every=0.5)


def cut(cluster: Cluster, release: Release, job: Job, limits: Budgets, not_this: str = "") -> tuple[str, ExitStack]:
    """Cuts the operator off from the head pod as soon as it has an address, long before Ray answers there."""

    def address() -> str:
        return next((ip for pod in job.pods("head") if (ip := pod.get("status", {}).get("podIP", "")) and ip != not_this), "")

    found = eventually("the head pod to have an address", address, seconds=limits.pods_ready, every=0.1, api=job.api)
    cuts = ExitStack()
    cuts.enter_context(faults.cut_off(cluster, faults.container_id(release.pods()[0]), found))
    return found, cuts


def from_the_operator(release: Release, address: str) -> str:
    pod = release.pods()[0]["metadata"]["name"]
    command = ("exec", pod, "--", "python", "-c", CONNECT, address, str(DASHBOARD_PORT))
    return release.clients.kubectl(*command, namespace=release.namespace).strip()


@pytest.mark.level(1)
def test_a_job_trains_is_suspended_and_continues_through_the_api_server(
    behind: Release, jobs_behind: Jobs, cluster: Cluster, limits: Budgets
) -> None:
    began = time.monotonic()
    spec = {"training": {"maxSteps": STEPS}, "checkpoint": {"everySteps": 50, "keepLast": 2}}
    job = jobs_behind.start(spec=spec, step_seconds=2)
    address, first = cut(cluster, behind, job, limits)
    with first:
        job.reaches("Running", seconds=limits.first_step)
        print(f"apply to Running {time.monotonic() - began:.1f} s")
        assert from_the_operator(behind, address) == "no answer", "the direct way is cut"
        shown = job.wait("to show progress", lambda now: (now.get("progress") or {}).get("step", 0) >= 1, limits.first_step)
        print(f"progress in the status after {time.monotonic() - began:.1f} s: step {shown['progress']['step']}")

        # Without the Service the API server says 404 by itself; that is not Ray's word that it knows no such submission.
        with faults.paused(cluster, KUBERAY):
            job.api.delete("Service", f"{job.name}-head-svc")
            steady("Running without a Service", lambda: job.phase == "Running", seconds=15, every=1)
            assert job.status().get("failures", []) == []
        eventually("the Service to be back", lambda: job.api.get("Service", f"{job.name}-head-svc"), seconds=60, every=0.5)
        steady("Running with a new Service", lambda: job.phase == "Running", seconds=5, every=1)

        asked = time.monotonic()
        job.suspend(True)
        suspended = job.reaches("Suspended", seconds=limits.suspend)
        print(f"Suspended {time.monotonic() - asked:.1f} s after the request, at step {suspended['checkpoint']['step']}")
        step = suspended["checkpoint"]["step"]
        assert 0 < step < STEPS, "the checkpoint of a trainer that was asked to stop; everySteps makes none"

    job.suspend(False)
    address, second = cut(cluster, behind, job, limits, not_this=address)
    with second:
        final = job.reaches("Succeeded", seconds=limits.run)
    print(f"apply to Succeeded {time.monotonic() - began:.1f} s")
    assert (final["attempt"], final.get("failures", [])) == (2, [])
    assert final["progress"]["step"] == STEPS
    assert job.folder().steps(2)[0] == step + 1
    assert behind.new_errors(began) == []
