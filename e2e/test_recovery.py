"""Whatever is lost while a job trains, it ends as if nothing had happened: same weights, no step lost, the failure on record.

Level 0 holds the losses that happen every week; level 1 the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from e2e.cluster.cluster import Cluster
from e2e.kit import faults
from e2e.kit.api import Api
from e2e.kit.budgets import Budgets
from e2e.kit.clients import Clients
from e2e.kit.inspection import Folder, overlaps, repeated
from e2e.kit.jobs import Job, Jobs
from e2e.kit.log_scan import LogScan
from e2e.kit.operator import Images, Release
from e2e.kit.waiting import eventually

EVERY_STEPS = 5
SHORT = {
    "training": {"maxSteps": 40},
    "checkpoint": {"everySteps": EVERY_STEPS, "keepLast": 2},
    "lifecycle": {"provisioningDeadlineSeconds": 900},
}
STEP_SECONDS = 1.0
"""A pod that is deleted drains for up to 30 seconds, in which training goes on; the job must not be done by then."""
DRAIN_SECONDS = 90.0
FAULT_AFTER = EVERY_STEPS + 1
"""Two steps after the first checkpoint, so that there is something to lose and something to continue from."""


@pytest.fixture(scope="session")
def undisturbed(
    release: Release, admin: Api, clients: Clients, images: Images, limits: Budgets, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Folder]:
    """What the short job leaves when nobody disturbs it."""
    namespace = "undisturbed"
    admin.delete("Namespace", namespace)
    eventually("the namespace of an earlier session to be gone", lambda: admin.get("Namespace", namespace) is None, seconds=120)
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    jobs = Jobs(admin.within(namespace), clients, images.trainer, tmp_path_factory.mktemp("undisturbed"))
    began = time.monotonic()
    job = jobs.start(spec=SHORT, step_seconds=STEP_SECONDS)
    job.reaches("Succeeded", seconds=limits.run)
    print(f"undisturbed: apply to Succeeded {time.monotonic() - began:.1f} s")
    folder = job.folder()
    assert folder.weights is not None
    assert repeated(folder) == 0
    yield folder
    jobs.close(limits.gone)
    admin.delete("Namespace", namespace)


def has_ended(pod: dict[str, Any] | None) -> bool:
    """Whether a pod is gone, or its container."""
    statuses = (pod or {}).get("status", {}).get("containerStatuses") or []
    return pod is None or any("terminated" in status.get("state", {}) for status in statuses)


@dataclass
class Trial:
    """A job that is disturbed, and the checks that all such jobs share."""

    jobs: Jobs
    limits: Budgets
    undisturbed: Folder

    def training(self, spec: dict[str, Any] | None = None) -> Job:
        """The short job, past its first checkpoint."""
        job = self.jobs.start(spec={**SHORT, **(spec or {})}, step_seconds=STEP_SECONDS)
        job.trains_past(FAULT_AFTER - 1, self.limits.first_step)
        return job

    def comes_back(self, job: Job, disturb: Callable[[], object], victim: str = "") -> dict[str, Any]:
        """Disturbs, and measures: detection, pods, next attempt. Returns the status of a job whose second attempt runs.

        ``victim``: name of a pod that is deleted. It drains first, and only its end is what is to be detected.
        """
        before = job.progress().get("step")
        asked = time.monotonic()
        disturb()
        if victim:
            eventually(f"pod {victim} to end", lambda: has_ended(job.api.get("Pod", victim)), seconds=DRAIN_SECONDS, every=0.2, api=job.api)
        began = time.monotonic()
        job.wait("to be seen as disturbed", lambda now: now["phase"] != "Running" or now.get("failures"), self.limits.detect)
        detected = time.monotonic() - began
        eventually("its pods to be back", job.pods_ready, seconds=self.limits.pods_back, every=0.5, api=job.api)
        back = time.monotonic() - began
        status = job.wait("to run again", lambda now: now["attempt"] == 2 and now["run"].get("runningSince"), self.limits.new_attempt)
        again = time.monotonic() - began
        print(f"asked for after step {before}, it happened {began - asked:.1f} s later; from then on:", end=" ")
        print(f"detected {detected:.1f} s, pods ready {back:.1f} s, attempt 2 runs {again:.1f} s")
        return status

    def ends_the_same(self, job: Job, attempts: int, *reasons: str) -> Folder:
        """Succeeded after ``attempts``, with failures of these ``reasons`` on record, and the same end as the undisturbed run."""
        final = job.reaches("Succeeded", seconds=self.limits.run)
        failures = final.get("failures", [])
        print("\n".join(f"failure of attempt {each['attempt']}: {each['class']} {each['reason']}: {each['message']}" for each in failures))
        assert len(failures) == attempts - 1, failures
        for number, failure in enumerate(failures, start=1):
            assert failure["attempt"] == number
            assert failure["class"] == "Infra", failure
            assert failure["reason"] in reasons, failure
            assert failure["message"], failure
        assert final["attempt"] == attempts
        folder = job.folder()
        assert folder.claim["attempt"] == attempts
        assert folder.attempts == list(range(1, attempts + 1))
        assert overlaps(folder) == []
        assert repeated(folder) <= (attempts - 1) * EVERY_STEPS, [folder.steps(attempt) for attempt in folder.attempts]
        assert [row["step"] for row in folder.metrics] == [row["step"] for row in self.undisturbed.metrics]
        for key in ("rollout/reward_mean", "actor/loss"):
            assert folder.series(key) == self.undisturbed.series(key), key
        assert folder.weights == self.undisturbed.weights, "bit for bit"
        print(f"{repeated(folder)} steps repeated; attempts made {[len(folder.steps(attempt)) for attempt in folder.attempts]} steps")
        return folder


@pytest.fixture
def trial(jobs: Jobs, limits: Budgets, undisturbed: Folder) -> Trial:
    return Trial(jobs, limits, undisturbed)


def test_a_deleted_head_pod_is_a_new_attempt(trial: Trial, api: Api) -> None:
    job = trial.training()
    head = job.pod("head")["metadata"]["name"]
    trial.comes_back(job, lambda: api.delete("Pod", head), victim=head)
    trial.ends_the_same(job, 2, "HeadLost")


def test_a_deleted_worker_pod_is_a_new_attempt(trial: Trial, api: Api) -> None:
    job = trial.training()
    worker = job.pod("worker")["metadata"]["name"]
    trial.comes_back(job, lambda: api.delete("Pod", worker), victim=worker)
    trial.ends_the_same(job, 2, "WorkerLost")


def test_a_restarted_operator_goes_on_where_it_was(trial: Trial, operator: Release) -> None:
    job = trial.training()
    before = operator.holder()
    operator.api.delete("Pod", operator.leader())
    print(f"another operator leads {operator.another_leads(before, trial.limits.operator_back):.1f} s after the deletion")
    trial.ends_the_same(job, 1)


@pytest.mark.level(1)
def test_a_head_pod_taken_without_grace_is_a_new_attempt(trial: Trial, api: Api) -> None:
    job = trial.training()
    head = job.pod("head")["metadata"]["name"]
    trial.comes_back(job, lambda: api.delete("Pod", head, grace_seconds=0), victim=head)
    trial.ends_the_same(job, 2, "HeadLost")


@pytest.mark.level(1)
def test_a_killed_trainer_is_started_again_in_the_same_pods(trial: Trial) -> None:
    job = trial.training()
    before = sorted(pod["metadata"]["uid"] for pod in job.pods())
    trial.comes_back(job, lambda: faults.kill_trainer(job))
    assert sorted(pod["metadata"]["uid"] for pod in job.pods()) == before
    trial.ends_the_same(job, 2, "Killed")


@pytest.mark.level(1)
def test_a_worker_killed_for_memory_is_a_new_attempt_and_is_told_so(trial: Trial, cluster: Cluster) -> None:
    job = trial.training({"cluster": {"workers": {"resources": {"limits": {"memory": "4Gi"}}}}})
    trial.comes_back(job, lambda: faults.fill_memory(cluster, job))
    trial.ends_the_same(job, 2, "OutOfMemory")


@pytest.mark.level(1)
def test_an_operator_killed_between_the_post_and_the_status_submits_nothing_twice(
    trial: Trial, operator: Release, cluster: Cluster, log_scan: LogScan
) -> None:
    log_scan.allowed.append("context deadline exceeded|leader election lost|timed out")
    process = faults.container_id(operator.pods()[0])
    job = trial.jobs.start(spec=SHORT, step_seconds=STEP_SECONDS)
    eventually("all pods to be ready", job.pods_ready, seconds=trial.limits.pods_ready, every=0.1, api=job.api)
    head, token = job.pod("head")["status"]["podIP"], job.token()
    eventually(f"{job.name} to be written down for submission", lambda: job.status().get("run"), seconds=60, every=0.02, api=job.api)
    # From here the API server answers nobody: what follows the POST can't be stored before the operator dies.
    with faults.paused(cluster, "kube-apiserver"):
        posted = eventually("the POST", lambda: faults.submissions(cluster, head, token), seconds=30, every=0.1)
        faults.kill_container(cluster, process)
    assert posted == [f"{job.name}-a1"]
    trial.ends_the_same(job, 1)


@pytest.mark.level(1)
def test_an_api_server_that_is_away_for_half_a_minute_disturbs_no_training(
    trial: Trial, operator: Release, cluster: Cluster, log_scan: LogScan
) -> None:
    operator.allowed.append("lease lost|connect|Connect|Disconnected|disconnected|refused")
    log_scan.allowed.append("connection refused|connection reset|unexpected EOF|connection lost|leader election|timed out|context deadline")
    job = trial.training()
    cluster.restart("kube-apiserver", 30.0)
    trial.ends_the_same(job, 1)


@pytest.mark.level(1)
def test_of_two_replicas_the_other_takes_over_when_the_leader_is_killed(trial: Trial, operator: Release, cluster: Cluster) -> None:
    operator.scale(2)
    try:
        job = trial.training()
        before, leader = operator.holder(), operator.leader()
        killed = next(pod for pod in operator.pods() if pod["metadata"]["name"] == leader)
        faults.kill_container(cluster, faults.container_id(killed))
        print(f"another operator leads {operator.another_leads(before, trial.limits.operator_back):.1f} s after the leader was killed")
        # The new leader is put to work: it has to notice a loss and make the next attempt.
        head = job.pod("head")["metadata"]["name"]
        trial.comes_back(job, lambda: trial.jobs.api.delete("Pod", head), victim=head)
        trial.ends_the_same(job, 2, "HeadLost")
    finally:
        operator.scale(1)


@pytest.mark.level(1)
def test_an_operator_that_cannot_reach_the_head_says_so_and_waits(trial: Trial, operator: Release, cluster: Cluster) -> None:
    job = trial.training()
    head = job.pod("head")["status"]["podIP"]
    with faults.cut_off(cluster, faults.container_id(operator.pods()[0]), head):
        status = job.wait(
            "to show that its head is out of reach",
            lambda now: any(found["type"] == "Running" and found["reason"] == "HeadUnreachable" for found in now["conditions"]),
            trial.limits.detect + 90,
        )
        assert status["attempt"] == 1
    trial.ends_the_same(job, 1)
