"""The pod marker against a real API server and a real KubeRay."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.cluster.cluster import Cluster
from e2e.kit import objects
from e2e.kit.api import Api
from e2e.kit.log_scan import LogScan
from e2e.kit.waiting import eventually, pod_is_ready, ready_pods, steady

WORKER = "ray.io/node-type=worker"


def pod(name: str, restart_policy: str = "Never", labels: dict[str, str] | None = None, **asks: str) -> dict[str, Any]:
    """A pod with annotations e2e.rlhf.dev/NAME."""
    made = objects.pod(name, "never-pulled", ["true"], labels=labels, restartPolicy=restart_policy)
    made["metadata"]["annotations"] = {f"e2e.rlhf.dev/{key.replace('_', '-')}": value for key, value in asks.items()}
    return made


def ask(api: Api, name: str, **asks: str) -> None:
    api.patch("Pod", name, {"metadata": {"annotations": {f"e2e.rlhf.dev/{key.replace('_', '-')}": value for key, value in asks.items()}}})


def rules(api: Api, *entries: dict[str, Any]) -> None:
    api.create(objects.config_map("e2e-pods", {"rules": json.dumps(entries)}))


def container(api: Api, name: str) -> dict[str, Any]:
    found = api.get("Pod", name)
    statuses = (found or {}).get("status", {}).get("containerStatuses") or [{}]
    return dict(statuses[0])


@pytest.mark.parametrize(
    ("outcome", "phase", "state"),
    [
        ("ready", "Running", "running"),
        ("image-pull-backoff", "Pending", "waiting"),
        ("crash-loop", "Running", "waiting"),
        ("oom-killed", "Failed", "terminated"),
        ("evicted", "Failed", "terminated"),
        ("succeeded", "Succeeded", "terminated"),
    ],
)
def test_a_new_pod_behaves_as_its_annotation_asks(api: Api, outcome: str, phase: str, state: str) -> None:
    api.create(pod("p", outcome=outcome))
    eventually(f"container {state}", lambda: state in container(api, "p").get("state", {}), seconds=20, every=0.05, api=api)
    found = api.get("Pod", "p")
    assert found is not None
    assert found["status"]["phase"] == phase


def test_a_running_pod_is_killed_for_memory_and_starts_again_twice(api: Api) -> None:
    api.create(pod("p", restart_policy="Always"))
    eventually("p runs", lambda: container(api, "p").get("ready"), seconds=20, every=0.05, api=api)
    for count in ("1", "2"):
        ask(api, "p", outcome="oom-killed", again=count)
        eventually("a restart", lambda count=count: container(api, "p").get("restartCount") == int(count), seconds=20, every=0.05, api=api)  # type: ignore[misc]
    status = container(api, "p")
    assert status["lastState"]["terminated"]["reason"] == "OOMKilled"
    assert status["ready"]


def test_a_restarted_marker_does_nothing_twice(api: Api, cluster: Cluster) -> None:
    api.create(pod("p", restart_policy="Always", outcome="failed"))
    eventually("a restart", lambda: container(api, "p").get("restartCount") == 1, seconds=20, every=0.05, api=api)
    address = (api.get("Pod", "p") or {})["status"]["podIP"]
    cluster.restart("pods", kill=True)
    api.create(pod("q"))
    eventually("the marker works again", lambda: container(api, "q").get("ready"), seconds=20, every=0.05, api=api)
    assert container(api, "p")["restartCount"] == 1
    assert (api.get("Pod", "p") or {})["status"]["podIP"] == address
    assert (api.get("Pod", "q") or {})["status"]["podIP"] != address


def test_a_pod_runs_until_it_is_due_to_fail(api: Api) -> None:
    api.create(pod("p", outcome="failed", after_seconds="1.5"))
    eventually("p runs first", lambda: container(api, "p").get("ready"), seconds=1.4, every=0.05, api=api)
    eventually("p fails", lambda: (api.get("Pod", "p") or {})["status"]["phase"] == "Failed", seconds=20, every=0.05, api=api)


def test_rules_hold_for_the_first_pods_with_their_labels_only(api: Api) -> None:
    rules(api, {"selector": {"group": "a"}, "count": 1, "outcome": "image-pull-backoff"}, {"selector": {"group": "b"}, "outcome": "failed"})
    for name, group in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("c1", "c")):
        api.create(pod(name, labels={"group": group}))
        eventually(f"{name} is marked", lambda name=name: container(api, name), seconds=20, every=0.05, api=api)  # type: ignore[misc]
    assert {name: next(iter(container(api, name)["state"])) for name in ("a1", "a2", "b1", "c1")} == {
        "a1": "waiting",
        "a2": "running",
        "b1": "terminated",
        "c1": "running",
    }


def test_a_wrong_outcome_leaves_the_pod_pending_and_is_logged(api: Api, cluster: Cluster, namespace: str) -> None:
    api.create(pod("p", outcome="explodes"))
    words = f"pod {namespace}/p: outcome: 'explodes'; possible are ready"
    eventually("a complaint", lambda: words in (cluster.logs / "pods.log").read_text(), seconds=20, every=0.05)
    assert (api.get("Pod", "p") or {})["status"]["phase"] == "Pending"


def test_a_bound_pod_hangs_while_its_deletion_is_held(api: Api, cluster: Cluster, namespace: str) -> None:
    node = f"node-{namespace}"
    cluster.add_node(node, {"nvidia.com/gpu": "8"})
    api.create(pod("p", node=node, hold_deletion="true"))
    eventually("p runs", lambda: container(api, "p").get("ready"), seconds=20, every=0.05, api=api)
    assert (api.get("Pod", "p") or {})["spec"]["nodeName"] == node
    api.delete("Pod", "p", grace_seconds=30)
    steady("p is still there", lambda: api.get("Pod", "p") is not None, seconds=1)
    ask(api, "p", hold_deletion="false")
    eventually("p is gone", lambda: api.get("Pod", "p") is None, seconds=20, every=0.05, api=api)
    api.delete("Node", node)


def test_kuberay_reaches_ready_and_replaces_an_evicted_worker(api: Api, log_scan: LogScan) -> None:
    log_scan.allowed.append("delete 1 unhealthy worker Pods")
    api.create(objects.ray_cluster("demo", "never-pulled", workers=2))
    eventually(
        "RayCluster demo ready",
        lambda: (api.get("RayCluster", "demo") or {}).get("status", {}).get("state") == "ready",
        seconds=60,
        api=api,
    )
    lost = api.list("Pod", labels=WORKER)[0]["metadata"]["name"]
    ask(api, lost, outcome="evicted")
    eventually(f"{lost} is replaced", lambda: api.get("Pod", lost) is None and ready_pods(api, WORKER, 2), seconds=60, api=api)
    api.delete("RayCluster", "demo")
    eventually("its pods are collected", lambda: not api.list("Pod"), seconds=60, api=api)


def test_a_services_slices_hold_the_ready_pods_address(api: Api, admin: Api, namespace: str) -> None:
    api.create(objects.service("s", {"app": "s"}, 8265))
    api.create(pod("p", labels={"app": "s"}, address="10.244.200.7"))
    eventually("p is ready", lambda: pod_is_ready(api.get("Pod", "p") or {}), seconds=20, every=0.05, api=api)
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    eventually("its address is in a slice", lambda: '"10.244.200.7"' in admin.http("GET", path)[1], seconds=20, every=0.1, api=api)
