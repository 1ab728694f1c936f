"""Upgrade and uninstall with jobs at work: an operator may go and come, the jobs and what helm left to them stay."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.kit.api import Api
from e2e.kit.budgets import Budgets
from e2e.kit.clients import Clients
from e2e.kit.inspection import overlaps, repeated
from e2e.kit.jobs import CHILDREN, Job, Jobs
from e2e.kit.operator import CHART, CRD, Images, Release
from e2e.kit.waiting import eventually

PREVIOUS = Path(__file__).parent / "previous"
STEPS, STEP_SECONDS = 75, 2.0
AT_WORK: dict[str, Any] = {"training": {"maxSteps": STEPS, "epochs": 100}, "checkpoint": {"everySteps": 30, "keepLast": 1}}
"""Slow enough to be at work when an operator has gone and another has come."""
NOWHERE = {"nodeSelector": {"e2e.rlhf.dev/pool": "none"}}
PENDING: dict[str, Any] = {"cluster": {"head": NOWHERE, "workers": NOWHERE}}
"""All children and pods are there, and none of them takes processor time."""


@pytest.fixture
def changing(operator: Release, limits: Budgets) -> Iterator[Release]:
    """The session's release, for a test that replaces or removes it; afterwards it is as it was."""
    yield operator
    operator.install(limits.helm_install)


@pytest.fixture
def team(admin: Api, changing: Release, clients: Clients, images: Images, tmp_path: Path, limits: Budgets) -> Iterator[Jobs]:
    """Jobs of a namespace that the test deletes."""
    name = f"team-{secrets.token_hex(3)}"
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    found = Jobs(admin.within(name), clients, images.trainer, tmp_path)
    yield found
    admin.delete("Namespace", name)


def identities(job: Job) -> dict[str, tuple[str, int]]:
    """Of each pod: its uid and how often its container was started again."""
    return {pod["metadata"]["name"]: (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]) for pod in job.pods()}


def schema(crd: dict[str, Any]) -> dict[str, Any]:
    return dict(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


def ends_undisturbed(job: Job, limits: Budgets) -> None:
    """Succeeded in its first attempt, each step made once, nothing on record against it."""
    final = job.reaches("Succeeded", seconds=limits.run)
    assert (final["attempt"], final.get("failures", [])) == (1, [])
    assert final["progress"]["step"] == STEPS
    folder = job.folder()
    assert folder.attempts == [1]
    assert folder.steps(1) == list(range(1, STEPS + 1))
    assert (repeated(folder), overlaps(folder)) == (0, [])


@pytest.mark.level(1)
def test_an_upgrade_from_the_previous_chart_disturbs_no_training(
    changing: Release, admin: Api, api: Api, jobs: Jobs, clients: Clients, limits: Budgets
) -> None:
    (previous,) = PREVIOUS.glob("rlhf-operator-*.tgz")
    key = changing.token_key()
    changing.remove()
    changing.install(limits.helm_install, previous)
    assert changing.token_key() == key, "made once, kept over uninstall and install"
    job = jobs.start(spec=AT_WORK, step_seconds=STEP_SECONDS)
    job.trains_past(2, limits.first_step)
    pods, holder, token = identities(job), changing.holder(), job.token()

    before = job.progress()["step"]
    # Of two releases each has an image of its own, and so other pods; here both run this tree's, and the annotation makes them.
    values = ("--reset-then-reuse-values", "--set", "podAnnotations.release=this-tree")
    wait = ("--wait", "--timeout", f"{limits.helm_install:.0f}s")
    began = time.monotonic()
    clients.helm("upgrade", changing.name, CHART, *values, *wait, namespace=changing.namespace, seconds=limits.helm_install + 30)
    upgraded = time.monotonic() - began
    changing.another_leads(holder, limits.operator_back)
    acts = time.monotonic() - began
    after = job.progress()["step"]
    print(f"upgraded from {previous.stem} in {upgraded:.1f} s, another leads after {acts:.1f} s; steps {before} and {after}")
    assert STEPS > after > before, "the job trains meanwhile, and is still at work"

    shipped = yaml.safe_load((CHART / "files" / "rlhf.dev_rlhfjobs.yaml").read_text())
    assert schema(admin.get("CustomResourceDefinition", CRD) or {}) == schema(shipped)
    # The status follows the trainer again, so the new operator reads the head with the token of the old one.
    job.wait("to be followed", lambda now: now["progress"]["step"] > after, limits.detect + 30)
    assert (changing.token_key(), job.token()) == (key, token)
    assert job.submissions() == [f"{job.name}-a1"]
    assert identities(job) == pods
    ends_undisturbed(job, limits)


@pytest.mark.level(1)
def test_an_uninstall_leaves_jobs_alone_holds_up_no_deletion_and_an_install_takes_them_over(
    changing: Release, admin: Api, jobs: Jobs, team: Jobs, limits: Budgets
) -> None:
    pending = [team.start(example, PENDING) for example in ("grpo.yaml", "rloo.yaml")]
    finished = jobs.start("dr-grpo.yaml", {"training": {"maxSteps": 2}})
    finished.reaches("Succeeded", seconds=limits.run)
    for job in pending:
        eventually(f"the pods of {job.name} to wait", lambda job=job: len(job.pods()) == 2, seconds=limits.reported, api=team.api)  # type: ignore[misc]
    training = jobs.start(spec=AT_WORK, step_seconds=STEP_SECONDS)
    training.trains_past(2, limits.first_step)
    pods, holder, key = identities(training), changing.holder(), changing.token_key()

    began = time.monotonic()
    changing.remove()
    print(f"helm uninstall, with a job that trains, one that ended and two that wait: {time.monotonic() - began:.1f} s")
    eventually("the operator's pods to be gone", lambda: not changing.api.list("Pod", labels=changing.labels), seconds=limits.gone)
    print(f"the operator is gone {time.monotonic() - began:.1f} s after the request")
    crd = admin.get("CustomResourceDefinition", CRD) or {}
    assert not crd["metadata"].get("deletionTimestamp")
    assert [job.phase for job in (finished, training, *pending)] == ["Succeeded", "Running", "Provisioning", "Provisioning"]
    assert changing.token_key() == key
    step = training.progress()["step"]

    assert pending[1].children() == list(CHILDREN)
    for job in (finished, pending[1]):
        owned = job.children()
        assert len(owned) > 1, owned
        began = time.monotonic()
        job.clients.kubectl("delete", "rlhfjob", job.name, "--wait=false", namespace=job.api.namespace)
        job.gone(limits.gone, kept=("PersistentVolumeClaim",))
        print(f"{job.name} deleted without an operator, and {', '.join(owned)}: {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    admin.delete("Namespace", team.api.namespace)
    eventually("its namespace to be gone", lambda: admin.get("Namespace", team.api.namespace) is None, seconds=limits.gone, api=team.api)
    print(f"a namespace with a job was gone without an operator in {time.monotonic() - began:.1f} s")
    after = training.trains_past(step, limits.reported)["step"]

    began = time.monotonic()
    changing.install(limits.helm_install)
    changing.another_leads(holder, limits.operator_back)
    training.wait("to be followed by the new operator", lambda now: now["progress"]["step"] > after, limits.detect + 30)
    print(f"installed again: the job of step {training.status()['progress']['step']} is followed after {time.monotonic() - began:.1f} s")
    assert changing.token_key() == key
    assert training.submissions() == [f"{training.name}-a1"]
    assert identities(training) == pods
    ends_undisturbed(training, limits)
