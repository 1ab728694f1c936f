"""Suspending, deleting, waiting for what is not there: a job keeps what it must and releases the rest."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.cluster import Cluster
from e2e.kit.api import Api
from e2e.kit.budgets import Budgets
from e2e.kit.clients import Clients, CommandFailedError
from e2e.kit.inspection import overlaps, repeated
from e2e.kit.jobs import Job, Jobs
from e2e.kit.operator import Images, Release
from e2e.kit.waiting import eventually, steady

STEPS = 200
LONG: dict[str, Any] = {"training": {"maxSteps": STEPS, "epochs": 100}, "checkpoint": {"everySteps": 5, "keepLast": 2}}
"""A job that is still at work whenever a test does something to it."""
ON_GPUS: dict[str, Any] = {"placement": {"accelerator": "gpu"}, "lifecycle": {"provisioningDeadlineSeconds": 45}}
TWO_GPUS = {"accelerator": "gpu", "actor": {"nodes": 1, "gpusPerNode": 2}, "rollout": {"engines": 2}}
GPU = "nvidia.com/gpu"


@pytest.mark.level(1)
def test_a_suspended_job_frees_its_pods_keeps_its_checkpoint_and_continues(api: Api, jobs: Jobs, limits: Budgets) -> None:
    job = jobs.start(spec={"training": {"maxSteps": 25}, "checkpoint": {"everySteps": 50, "keepLast": 2}}, step_seconds=1)
    job.trains_past(3, limits.first_step)
    began = time.monotonic()
    job.suspend(True)
    suspended = job.reaches("Suspended", seconds=limits.suspend)
    print(f"Suspended {time.monotonic() - began:.1f} s after the request")
    eventually("its pods to be gone", lambda: not job.pods(), seconds=limits.released, every=0.5, api=api)
    step = suspended["checkpoint"]["step"]
    assert step > 3, "the checkpoint of the moment it was stopped, not one of everySteps"
    steady("Suspended", lambda: job.phase == "Suspended" and not job.pods(), seconds=5)
    assert f"step-{step:06d}" in job.folder().checkpoints

    job.suspend(False)
    final = job.reaches("Succeeded", seconds=limits.run)
    assert (final["attempt"], final.get("failures", [])) == (2, [])
    folder = job.folder()
    assert folder.steps(2)[0] == step + 1
    assert (repeated(folder), overlaps(folder)) == (0, [])
    assert [row["step"] for row in folder.metrics] == list(range(26))


def while_provisioning(job: Job, limits: Budgets) -> None:
    job.reaches("Provisioning", seconds=60)


def while_starting(job: Job, limits: Budgets) -> None:
    job.wait("to be handed to Ray", lambda now: now.get("run"), limits.pods_ready)


def while_training(job: Job, limits: Budgets) -> None:
    job.trains_past(0, limits.first_step)


def while_suspended(job: Job, limits: Budgets) -> None:
    job.trains_past(0, limits.first_step)
    job.suspend(True)
    job.reaches("Suspended", seconds=limits.suspend)


@pytest.mark.parametrize(
    "moment",
    [while_provisioning, *(pytest.param(later, marks=pytest.mark.level(1)) for later in (while_starting, while_training, while_suspended))],
)
def test_a_deleted_job_is_gone_within_seconds(moment: Callable[[Job, Budgets], None], jobs: Jobs, limits: Budgets) -> None:
    job = jobs.start(spec=LONG, step_seconds=1)
    moment(job, limits)
    jobs.clients.kubectl("delete", "rlhfjob", job.name, "--wait=false", namespace=jobs.api.namespace)
    print(f"deleted {moment.__name__.replace('_', ' ')}: all gone in {job.gone(limits.gone, kept=('PersistentVolumeClaim',)):.1f} s")


@pytest.mark.level(1)
def test_a_job_goes_with_its_namespace(admin: Api, api: Api, jobs: Jobs, limits: Budgets) -> None:
    job = jobs.start(spec=LONG, step_seconds=1)
    while_training(job, limits)
    began = time.monotonic()
    admin.delete("Namespace", api.namespace)
    eventually("its namespace to be gone", lambda: admin.get("Namespace", api.namespace) is None, seconds=limits.gone, every=0.5, api=api)
    print(f"a namespace with a running job was gone in {time.monotonic() - began:.1f} s")


@pytest.mark.level(1)
def test_a_job_goes_without_the_operator(operator: Release, jobs: Jobs, limits: Budgets) -> None:
    job = jobs.start(spec=LONG, step_seconds=1)
    while_training(job, limits)
    operator.scale(0)
    try:
        jobs.clients.kubectl("delete", "rlhfjob", job.name, "--wait=false", namespace=jobs.api.namespace)
        print(f"deleted with the operator down: all gone in {job.gone(limits.gone, kept=('PersistentVolumeClaim',)):.1f} s")
    finally:
        operator.scale(1)


def test_too_few_gpus_are_told_in_the_schedulers_words_and_end_at_the_deadline(
    api: Api, cluster: Cluster, jobs: Jobs, limits: Budgets
) -> None:
    cluster.set_capacity({GPU: "1"})
    try:
        began = time.monotonic()
        job = jobs.start(spec={**ON_GPUS, "placement": TWO_GPUS})
        job.wait("to tell of GPUs", lambda now: f"Insufficient {GPU}" in str(now.get("conditions")), limits.reported)
        told = time.monotonic() - began
        status = job.status()
        assert status["phase"] == "Provisioning"
        assert status["gpus"] == 2
        assert job.condition("ClusterReady")["reason"] == "Unschedulable"
        failed = job.reaches("Failed", seconds=45 + limits.reported)
        print(f"too few GPUs: told after {told:.1f} s, Failed after {time.monotonic() - began:.1f} s\n{failed['message']}")
        assert failed["reason"] == "ProvisioningDeadlineExceeded"
        assert f"Insufficient {GPU}" in failed["message"]
        eventually("everything to be released", lambda: not job.pods(), seconds=limits.released, every=0.5, api=api)
        eventually("its RayCluster to be gone", lambda: api.get("RayCluster", job.name) is None, seconds=limits.released, api=api)
    finally:
        cluster.set_capacity({GPU: "0"})


def test_an_image_that_cannot_be_pulled_is_told_within_a_minute(jobs: Jobs, limits: Budgets) -> None:
    began = time.monotonic()
    job = jobs.start(spec={"cluster": {"image": "10.200.0.1:5000/rlhf-trainer:no-such-tag", "rayVersion": "2.60.0"}})
    job.wait("to tell of the image", lambda now: "no-such-tag" in str(now.get("conditions")), limits.reported)
    print(f"an image that cannot be pulled: told after {time.monotonic() - began:.1f} s")
    condition = job.condition("ClusterReady")
    assert (condition["status"], condition["reason"]) == ("False", "ImagePull")
    assert "container ray" in condition["message"]
    events = [event for event in jobs.api.list("Event") if (event.get("involvedObject") or {}).get("kind") == "RLHFJob"]
    assert [event["reason"] for event in events].count("ImagePull") == 1, "one Event a transition"


@pytest.fixture
def aside(operator: Release) -> Iterator[None]:
    """The session's operator, which looks at all namespaces, does nothing meanwhile."""
    operator.scale(0)
    yield
    operator.scale(1)


@pytest.fixture
def two_releases(aside: None, clients: Clients, admin: Api, images: Images, limits: Budgets) -> Iterator[tuple[Release, Release]]:
    """Each runs the jobs of its own namespace, beside the CRD that the session's release owns."""
    values = {"watch": {"scope": "release"}, "crds": {"enabled": False}}
    pair = tuple(
        Release(clients, admin, images, name=f"team-{letter}", namespace=f"team-{letter}-{secrets.token_hex(2)}", values=values)
        for letter in "ab"
    )
    try:
        for one in pair:
            one.install(limits.helm_install)
        yield pair[0], pair[1]
    finally:
        for one in pair:
            one.uninstall()


def test_two_releases_of_scope_release_do_not_touch_each_other(
    two_releases: tuple[Release, Release], clients: Clients, tmp_path: Path
) -> None:
    first, second = two_releases
    started = {one.name: Jobs(one.api, clients, one.images.trainer, tmp_path).start(spec=ON_GPUS) for one in two_releases}
    for one in two_releases:
        started[one.name].wait("to be provisioned", lambda now: now.get("phase") == "Provisioning", 60)
        seen = {event.get("reportingInstance") or event.get("source", {}).get("host") for event in events_of(one.api)}
        assert all(str(name).startswith(one.full_name) for name in seen), f"events of {one.namespace} come from {seen}"
        assert one.leader(), "its own Lease"

    # With its operator away a job stays as it is, whatever the other does.
    first.scale(0)
    before = started[first.name].status()
    started[first.name].api.patch("RLHFJob", started[first.name].name, {"metadata": {"labels": {"looked-at": "no"}}})
    steady("the status of a job without its operator", lambda: started[first.name].status() == before, seconds=15, every=1)
    first.scale(1)

    for one, other in ((first, second), (second, first)):
        account = f"system:serviceaccount:{one.namespace}:{one.full_name}"
        for verb, resource in (("list", "rlhfjobs.rlhf.dev"), ("create", "rayclusters.ray.io"), ("watch", "pods"), ("create", "secrets")):
            assert may(clients, account, verb, resource, one.namespace)
            assert not may(clients, account, verb, resource, other.namespace)
    for one in two_releases:
        assert one.new_errors(time.monotonic() - 120) == []


def events_of(api: Api) -> list[dict[str, Any]]:
    return [event for event in api.list("Event") if (event.get("involvedObject") or {}).get("kind") == "RLHFJob"]


def may(clients: Clients, account: str, verb: str, resource: str, namespace: str) -> bool:
    """Exits with 1 where the answer is no."""
    try:
        return clients.kubectl("auth", "can-i", verb, resource, f"--as={account}", namespace=namespace).strip() == "yes"
    except CommandFailedError:
        return False
