"""Bodies as the API server has them -> views; and no body, however odd, that raises."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_operator.decide.observation import ContainerView
from rlhf_operator.runtime.views import claim_view, cluster_record, pod_view, resource_version, without_templates

HEAD = {
    "metadata": {
        "name": "job-head-x",
        "uid": "p",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "deletionTimestamp": "2026-01-01T00:05:00Z",
        "deletionGracePeriodSeconds": 120,
        "labels": {"ray.io/node-type": "head", "ray.io/group": "headgroup"},
    },
    "spec": {"nodeName": "n1"},
    "status": {
        "phase": "Running",
        "conditions": [
            {"type": "Ready", "status": "False"},
            {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"},
            {"type": "PodScheduled", "status": "True"},
        ],
        "initContainerStatuses": [{"name": "init", "state": {"terminated": {"reason": "Completed", "exitCode": 0}}}],
        "containerStatuses": [
            {
                "name": "ray",
                "containerID": "containerd://2",
                "restartCount": 1,
                "ready": False,
                "state": {"running": {"startedAt": "2026-01-01T00:03:00Z"}},
                "lastState": {
                    "terminated": {"reason": "OOMKilled", "exitCode": 137, "message": "m" * 5000, "finishedAt": "2026-01-01T00:02:59Z"}
                },
            }
        ],
    },
}


def test_a_head_that_was_killed_and_is_being_deleted():
    view = pod_view(HEAD, gone=False)
    assert (view.head, view.group, view.node, view.ready, view.disruption) == (True, "headgroup", "n1", False, "PreemptionByScheduler")
    assert view.deleting_since == datetime(2026, 1, 1, 0, 3, tzinfo=UTC)
    init, ray = view.containers
    assert (init.init, init.state, init.terminated_exit_code) == (True, "terminated", 0)
    assert ray == ContainerView(
        name="ray",
        container_id="containerd://2",
        restart_count=1,
        ready=False,
        terminated_reason="OOMKilled",
        terminated_exit_code=137,
        terminated_message="m" * 1024,
        terminated_at=datetime(2026, 1, 1, 0, 2, 59, tzinfo=UTC),
        state="running",
        started_at=datetime(2026, 1, 1, 0, 3, tzinfo=UTC),
    )


def test_an_unschedulable_pod():
    status = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}]}
    view = pod_view({"metadata": {}, "status": status}, gone=True)
    assert (view.phase, view.unschedulable, view.gone) == ("Pending", "0/3 nodes are available", True)


def test_absent_worker_counts_are_zero():
    """KubeRay leaves readyWorkerReplicas out while no worker is ready."""
    view = cluster_record({"metadata": {"name": "job"}, "status": {"state": "ready", "desiredWorkerReplicas": 2}}).view
    assert (view.ready_workers, view.desired_workers, view.state) == (0, 2, "ready")


def test_a_suspension_that_ended_and_one_that_lasts():
    def resumed(status: str) -> datetime | None:
        suspended = {"type": "RayClusterSuspended", "status": status, "lastTransitionTime": "2026-01-01T00:03:00Z"}
        return cluster_record({"metadata": {"name": "job"}, "status": {"conditions": [suspended]}}).view.resumed_at

    assert (resumed("False"), resumed("True")) == (datetime(2026, 1, 1, 0, 3, tzinfo=UTC), None)


def test_a_claim_of_ours_and_one_of_somebody_else():
    claim = {"metadata": {"name": "c", "labels": {"rlhf.dev/job": "job"}}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    view = claim_view(claim, "job", "ProvisioningFailed: no")
    assert (view.phase, view.owned, view.access_modes, view.message) == ("Pending", True, ("ReadWriteOnce",), "ProvisioningFailed: no")
    assert not claim_view(claim, "another", "").owned


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "metadata",
                    "spec",
                    "status",
                    "labels",
                    "conditions",
                    "type",
                    "state",
                    "lastState",
                    "running",
                    "terminated",
                    "waiting",
                    "containerStatuses",
                    "head",
                    "exitCode",
                    "name",
                    "initContainerStatuses",
                    "ownerReferences",
                    "creationTimestamp",
                    "deletionTimestamp",
                    "resourceVersion",
                    "suspend",
                    "accessModes",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=30,
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), values))
def test_no_body_raises(body):
    pod_view(body, gone=False)
    cluster_record(body)
    claim_view(body, "job", "")
    resource_version(body)


def test_without_its_templates_a_body_says_the_same():
    template = {"spec": {"containers": [{"name": "ray", "image": "i"}]}}
    pod = {**HEAD, "spec": {**HEAD["spec"], **template["spec"]}}
    slim = without_templates(pod)
    assert "containers" not in slim["spec"]
    assert pod_view(slim, gone=False) == pod_view(pod, gone=False)
    cluster = {
        "metadata": {
            "name": "job",
            "uid": "c",
            "resourceVersion": "7",
            "generation": 2,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": "2026-01-01T00:05:00Z",
            "labels": {"kueue.x-k8s.io/queue-name": "q", "rlhf.dev/job": "job"},
            "ownerReferences": [{"uid": "j"}],
            "managedFields": [{"manager": "kuberay"}],
        },
        "spec": {"suspend": True, "headGroupSpec": {"template": template}},
        "status": {
            "state": "ready",
            "readyWorkerReplicas": 1,
            "desiredWorkerReplicas": 2,
            "head": {"serviceName": "job-head-svc"},
            "conditions": [{"type": "HeadPodReady", "status": "True", "reason": "r", "message": "m"}],
        },
    }
    slim = without_templates(cluster)
    assert "headGroupSpec" not in slim["spec"]
    assert "managedFields" not in slim["metadata"]
    assert cluster_record(slim) == cluster_record(cluster)


@pytest.mark.parametrize(
    ("requested", "capacity", "size"),
    [
        ("10Gi", "10Gi", 10 * 2**30),
        ("10Gi", None, 10 * 2**30),
        ("20Gi", "10Gi", 20 * 2**30),
        ("1Gi", "5G", 5 * 10**9),
        (7, None, 7),
        ("1e9", None, 10**9),
        ("1500m", None, 2),
        (None, None, None),
        ("lots", "10u", None),
        ("NaN", "inf", None),
    ],
)
def test_a_claim_has_what_it_has_or_is_about_to_have(requested, capacity, size):
    body = {"spec": {"resources": {"requests": {"storage": requested}}}, "status": {"capacity": {"storage": capacity}}}
    assert claim_view(body, "job", "").size_bytes == size


def test_rc13_what_the_kubelet_quotes_of_a_log_is_masked_before_it_is_cut():
    said = "x" * 995 + " hf_" + "a" * 30 + "\x1b[31m\u202e end"
    state = {"terminated": {"reason": "Error", "exitCode": 1, "message": said}}
    body = {"status": {"message": said, "containerStatuses": [{"name": "ray", "state": state}], "conditions": []}}
    view = pod_view(body, gone=False)
    assert view.message == "x" * 995 + " *** end"
    assert view.containers[0].terminated_message == view.message
