"""What keeps pods from being ready is said with pod, container, reason and the cluster's own words, and ends at the deadline."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from rlhf_operator.decide.observation import Observation, VolumeClaimView
from tests.rlhf_operator.decide.builders import (
    NAME,
    READY,
    actions,
    ago,
    condition,
    conditions,
    container,
    decided,
    ended_status,
    head,
    head_view,
    job_spec,
    later,
    names,
    observe,
    ray_cluster,
    running_status,
    submission,
    worker,
)

WAITS = running_status().model_copy(
    update={
        "attempt": None,
        "run": None,
        "provisioning_since": ago(50),
        "started_at": None,
        "conditions": conditions(ClusterReady=("False", "Provisioning"), Running=("False", "NotRunning")),
    }
)
NOT_READY: dict[str, Any] = {"ready": False, "phase": "Pending"}


def waiting(name: str, reason: str, message: str = "", **changes: Any) -> Any:
    return container(name, "", ready=False, state="waiting", started_at=None, waiting_reason=reason, waiting_message=message, **changes)


def provisioning(**changes: Any) -> Observation:
    fields: dict[str, Any] = {"status": WAITS, "head": None, "cluster": ray_cluster(ready_workers=0, conditions={}, state="")}
    return observe(**(fields | changes))


class Case(NamedTuple):
    name: str
    given: dict[str, Any]
    reason: str
    says: tuple[str, ...]


CASES = (
    Case(
        "RC-01 a: image that does not exist",
        {"pods": (head(**NOT_READY, containers=(waiting("ray", "ImagePullBackOff", "manifest unknown"),)),)},
        "ImagePull",
        ("pod gsm8k-head-x1, container ray: ImagePullBackOff: manifest unknown",),
    ),
    Case(
        "RC-01 c: image without Ray",
        {
            "pods": (
                head(
                    **NOT_READY,
                    containers=(waiting("ray", "CrashLoopBackOff", restart_count=4, terminated_reason="Error", terminated_exit_code=127),),
                ),
            )
        },
        "CrashLoop",
        ("container ray: CrashLoopBackOff", "exit code 127", "restarted 4 times"),
    ),
    Case(
        "RC-01 d: worker image wrong, head right",
        {"pods": (head(), worker(**NOT_READY, containers=(waiting("ray", "ErrImagePull", "denied"),)))},
        "ImagePull",
        ("pod gsm8k-workers-worker-w1", "denied"),
    ),
    Case(
        "missing Secret",
        {"pods": (head(**NOT_READY, containers=(waiting("ray", "CreateContainerConfigError", 'secret "hf" not found'),)),)},
        "ContainerConfig",
        ('secret "hf" not found',),
    ),
    Case(
        "no GPUs",
        {"pods": (head(), worker(**NOT_READY, containers=(), unschedulable="0/3 nodes are available: 3 Insufficient nvidia.com/gpu."))},
        "Unschedulable",
        ("no node for pod gsm8k-workers-worker-w1: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",),
    ),
    Case(
        "quota",
        {
            "cluster": ray_cluster(conditions={"ReplicaFailure": ("True", "FailedCreateWorkerPod", "exceeded quota: gpus, requested: 8")}),
            "pods": (head(),),
        },
        "QuotaExceeded",
        ("FailedCreateWorkerPod: exceeded quota: gpus",),
    ),
    Case(
        "admission policy",
        {
            "cluster": ray_cluster(conditions={"ReplicaFailure": ("True", "FailedCreateHeadPod", 'violates PodSecurity "restricted"')}),
            "pods": (),
        },
        "AdmissionDenied",
        ("PodSecurity",),
    ),
    Case(
        "a message that begins with its reason",
        {
            "cluster": ray_cluster(conditions={"ReplicaFailure": ("True", "FailedCreateHeadPod", "FailedCreateHeadPod Pod x: denied")}),
            "pods": (),
        },
        "AdmissionDenied",
        ("FailedCreateHeadPod: Pod x: denied",),
    ),
    Case(
        "RC-35: volume attached elsewhere",
        {
            "pods": (
                head(),
                worker(
                    **NOT_READY,
                    containers=(waiting("ray", "ContainerCreating"),),
                    warning="FailedAttachVolume: Multi-Attach error for volume pvc-1",
                ),
            )
        },
        "VolumeMount",
        ("pod gsm8k-workers-worker-w1: FailedAttachVolume: Multi-Attach error",),
    ),
    Case(
        "RC-35: claim without a provisioner",
        {
            "claim": VolumeClaimView("ckpt", "Pending", False, ("ReadWriteMany",), "ProvisioningFailed: no such class"),
            "pods": (head(**NOT_READY, containers=()),),
        },
        "VolumePending",
        ("PersistentVolumeClaim ckpt is Pending: ProvisioningFailed: no such class",),
    ),
    Case(
        "claim that stays pending without a word",
        {
            "claim": VolumeClaimView("ckpt", "Pending", False, ("ReadWriteMany",), ""),
            "pods": (head(**NOT_READY, containers=(), created_at=later(-21)),),
        },
        "VolumePending",
        ("PersistentVolumeClaim ckpt is Pending: no volume yet",),
    ),
    Case(
        "claim that waits for its first pod",
        {
            "claim": VolumeClaimView("ckpt", "Pending", False, ("ReadWriteMany",), ""),
            "pods": (head(**NOT_READY, containers=(), created_at=later(-2)),),
        },
        "Provisioning",
        ("head pod not ready",),
    ),
    Case(
        "init container waits for the head",
        {
            "pods": (
                head(),
                worker(**NOT_READY, containers=(container("wait-gcs-ready", "i1", ready=False, init=True, started_at=later(-300)),)),
            )
        },
        "WaitingForHead",
        ("pod gsm8k-workers-worker-w1: init container wait-gcs-ready runs for 5m00s and waits for Ray's head",),
    ),
    Case(
        "KubeRay refuses the cluster",
        {"cluster": ray_cluster(conditions={}, state="", warning="InvalidRayClusterSpec: no container"), "pods": ()},
        "InvalidRayCluster",
        ("InvalidRayClusterSpec: no container",),
    ),
    Case("KubeRay is not there", {"pods": ()}, "Provisioning", ("is KubeRay running",)),
    Case(
        "a node that vanished",
        {"pods": (head(), worker(deleting_since=later(-600)))},
        "NodeLost",
        ("pod gsm8k-workers-worker-w1 is being deleted for 10m00s, its node gpu-1", "--force"),
    ),
    Case(
        "one of two workers",
        {"cluster": ray_cluster(conditions=READY, desired_workers=2), "pods": (head(), worker(1), worker(2, **NOT_READY, containers=()))},
        "Provisioning",
        ("head pod ready, 1 of 2 worker pods ready; not ready: gsm8k-workers-worker-w2 (Pending)",),
    ),
    Case(
        "RC-37: the dashboard does not answer yet",
        {"cluster": ray_cluster(), "head": head_view(reachable=False, error="connection refused")},
        "WaitingForHead",
        ("http://gsm8k-head-svc.research.svc.cluster.local:8265", "connection refused"),
    ),
    Case(
        "RC-37: the control store is not healthy",
        {"cluster": ray_cluster(), "head": head_view(gcs_healthy=False)},
        "WaitingForHead",
        ("control store",),
    ),
    Case(
        "a head that does not take the token names the Secret",
        {"cluster": ray_cluster(), "head": head_view(reachable=False, error="401 Unauthorized: no valid token")},
        "TokenRefused",
        ("401 Unauthorized: no valid token", "kubectl -n research delete secret/gsm8k-ray-token raycluster/gsm8k"),
    ),
    Case(
        "something that is not Ray answers",
        {"cluster": ray_cluster(), "head": head_view(version="", error="it answers 200 <html>Log in")},
        "WaitingForHead",
        ("not with a version yet: it answers 200 <html>Log in",),
    ),
    Case("RC-37: no version yet", {"cluster": ray_cluster(), "head": head_view(version="")}, "WaitingForHead", ("version",)),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_awaited_stands_in_the_condition(case: Case) -> None:
    decision = decided(provisioning(**case.given))
    ready = condition(decision, "ClusterReady")
    assert (ready.status, ready.reason) == ("False", case.reason)
    for words in case.says:
        assert words in ready.message
    assert decision.status.phase == "Provisioning"
    assert (decision.status.reason, decision.status.message) == (ready.reason, ready.message)
    assert not decision.status.failures, "waiting burns no retries"
    assert "Submit" not in names(decision)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_at_the_provisioning_deadline_the_job_fails_and_everything_is_released(case: Case) -> None:
    late = WAITS.model_copy(update={"provisioning_since": ago(1801)})
    decision = decided(provisioning(**(case.given | {"status": late})))
    failed = condition(decision, "Failed")
    assert (decision.status.phase, failed.reason) == ("Failed", "ProvisioningDeadlineExceeded")
    assert case.says[0] in failed.message
    assert [(failure.class_, failure.reason) for failure in decision.status.failures] == [("Config", case.reason)]
    assert names(decision) == ["DeleteCluster"], "also with cleanupPolicy.onFailure workers"
    assert decision.after_status, "the end is stored before the cluster goes"


def test_trouble_is_an_event_once() -> None:
    pods = (head(**NOT_READY, containers=(waiting("ray", "ImagePullBackOff", "manifest unknown"),)),)
    first = decided(provisioning(pods=pods))
    assert [(event.type, event.reason) for event in first.events] == [("Warning", "ImagePull")]
    assert first.urgent
    again = decided(provisioning(pods=pods, status=first.status), seconds=30)
    assert not again.events
    assert not again.urgent


def test_a_head_that_was_not_asked_yet_is_no_reason_to_fail() -> None:
    late = WAITS.model_copy(update={"provisioning_since": ago(5000)})
    decision = decided(provisioning(cluster=ray_cluster(), status=late))
    assert decision.status.phase == "Provisioning"
    assert decision.requeue_after_seconds is not None


@pytest.mark.parametrize("attempt", [0, 1])
def test_no_post_on_the_word_of_a_former_head(attempt: int) -> None:
    status = ended_status() if attempt else WAITS
    seen = head_view(submission(None), at=later(-70 if attempt else -55))
    assert "Submit" not in names(decided(observe(status=status, head=seen)))


def test_workers_of_a_lost_head_must_rejoin_before_the_next_attempt() -> None:
    """Their pods look ready until they notice that the control store is another one."""
    new_head = head(uid="head-2", containers=(container(container_id="head-c2", started_at=later(-30)),))
    old_worker = worker(containers=(container(container_id="worker-c1", started_at=later(-600)),))
    new_worker = worker(containers=(container(container_id="worker-c9", started_at=later(-10)),))
    view = head_view(submission(None))
    waits = decided(observe(status=ended_status(), pods=(new_head, old_worker), head=view))
    assert "Submit" not in names(waits)
    assert "to join the new head: gsm8k-workers-worker-w1" in condition(waits, "ClusterReady").message
    assert "Submit" in names(decided(observe(status=ended_status(), pods=(new_head, new_worker), head=view)))


@pytest.mark.parametrize(
    ("modes", "workers", "allowed"),
    [
        (("ReadWriteMany",), 4, True),
        (("ReadWriteOnce",), 1, True),
        (("ReadWriteOnce",), 2, False),
        (("ReadOnlyMany",), 1, False),
        (("ReadWriteOncePod",), 1, False),
        ((), 4, True),
    ],
)
def test_rc35_a_claim_that_cannot_serve_the_pods_is_refused_before_they_are_made(
    modes: tuple[str, ...], workers: int, allowed: bool
) -> None:
    claim = VolumeClaimView("ckpt", "Bound", False, modes)
    decision = decided(provisioning(cluster=None, pods=(), claim=claim, job={"worker_pods": workers}))
    assert ("EnsureCluster" in names(decision)) is allowed
    ready = condition(decision, "ClusterReady")
    assert (ready.reason == "VolumeUnsuitable") is not allowed
    if not allowed:
        assert modes[0] in ready.message
        assert "ReadWriteMany" in ready.message


@pytest.mark.parametrize(
    ("size", "allowed"), [(100 * 2**30, True), (200 * 2**30, True), (None, True), (100 * 2**30 - 1, False), (2**30, False)]
)
def test_a_claim_of_an_earlier_job_that_is_smaller_than_asked_is_told(size: int | None, allowed: bool) -> None:
    claim = VolumeClaimView("gsm8k-ckpt", "Bound", True, ("ReadWriteMany",), size_bytes=size)
    spec = job_spec(claim={"create": {"size": "100Gi"}})
    decision = decided(provisioning(cluster=None, pods=(), claim=claim, spec=spec))
    assert ("EnsureCluster" in names(decision)) is allowed
    ready = condition(decision, "ClusterReady")
    assert (ready.reason == "VolumeUnsuitable") is not allowed
    if not allowed:
        assert f"gsm8k-ckpt was there before this job and has {size} bytes, less than checkpoint.volume.create.size 100Gi" in ready.message
    given = decided(provisioning(cluster=None, pods=(), claim=claim))
    assert "EnsureCluster" in names(given), "of a claim that somebody else made no size is asked"


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        (("PersistentVolumeClaim ckpt",), "VolumeMissing"),
        (("ConfigMap gsm8k-reward",), "ObjectMissing"),
        (("Secret hf", "PersistentVolumeClaim ckpt"), "ObjectMissing"),
    ],
)
def test_rc35_missing_objects_are_named_before_gpus_are_taken(missing: tuple[str, ...], reason: str) -> None:
    decision = decided(provisioning(cluster=None, pods=(), missing=missing))
    ready = condition(decision, "ClusterReady")
    assert ready.reason == reason
    assert all(name in ready.message for name in missing)
    assert "EnsureCluster" not in names(decision)
    assert not actions(decided(provisioning(cluster=None, pods=(), missing=missing, status=decision.status), seconds=1000))


def test_a_lower_deadline_from_an_edit_counts_at_once() -> None:
    edited = job_spec(provisioningDeadlineSeconds=30)
    decision = decided(provisioning(pods=(), spec=edited, job={"generation": 2}))
    assert decision.status.phase == "Failed"
    assert decision.status.observed_generation == 2
    assert f"RayCluster {NAME}" in (decision.status.message or "")
