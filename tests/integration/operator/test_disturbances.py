"""What goes wrong around a job: heads, operators, the API server, refused objects."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from e2e.cluster.cluster import Cluster
from e2e.kit.api import Api
from e2e.kit.log_scan import LogScan
from e2e.kit.waiting import eventually, steady
from tests.integration.operator.asking import answers, phase, reaches, status
from tests.integration.operator.conftest import OperatorProcess, install, job
from tests.integration.operator.standin import StandIn


def test_rc37_no_post_before_the_head_answers(api: Api, namespace: str, operator: OperatorProcess, standin: StandIn):
    head = standin.head(namespace, "tiny")
    head.status_code = 503
    api.create(job())
    eventually("waiting for the head", lambda: status(api).get("reason") == "WaitingForHead", seconds=60)
    steady("waiting for the head", lambda: status(api).get("reason") == "WaitingForHead", seconds=4)
    now = status(api)
    assert head.posts == []
    assert now.get("failures", []) == []
    assert any("503" in each["message"] for each in now["conditions"]), now
    head.status_code, head.agent = 0, False
    eventually("a POST without an agent", lambda: head.refused_posts >= 2, seconds=30)
    assert status(api).get("failures", []) == []
    head.agent = True
    reaches(api, "Succeeded")
    assert head.posts == ["tiny-a1"]


def test_rc20_a_gap_of_the_dashboard_is_no_failure(api: Api, namespace: str, operator: OperatorProcess, standin: StandIn):
    head = standin.head(namespace, "tiny")
    head.hold = True
    api.create(job())
    reaches(api, "Running")
    head.down = True
    steady("Running without a dashboard", lambda: phase(api) == "Running", seconds=5)
    head.down, head.delay_seconds = False, 6.0
    steady("Running with a dashboard that hangs", lambda: phase(api) == "Running", seconds=8)
    head.end("tiny-a1", "SUCCEEDED", 0)
    head.delay_seconds = 0.0
    final = reaches(api, "Succeeded")
    assert (final["attempt"], head.posts, final.get("failures", [])) == (1, ["tiny-a1"], [])


@pytest.mark.parametrize("moment", ["before the POST", "after the POST"])
def test_rc43_a_killed_operator_submits_once(
    moment: str, api: Api, namespace: str, operators: Callable[..., OperatorProcess], standin: StandIn
):
    head = standin.head(namespace, "tiny")
    head.hold, head.agent = True, moment == "after the POST"
    first = operators(RLHF_LEADER_ELECTION="false").start().wait()
    api.create(job())
    if head.agent:
        eventually("the POST", lambda: bool(head.posts), seconds=60, every=0.01)
    else:
        eventually("a refused POST", lambda: head.refused_posts > 0, seconds=60, every=0.01)
    first.stop(signal.SIGKILL)
    head.agent = True
    operators(RLHF_LEADER_ELECTION="false").start().wait()
    reaches(api, "Running")
    time.sleep(3)
    assert head.posts == ["tiny-a1"]
    assert status(api)["attempt"] == 1


def test_rc32_a_refused_child_is_told_and_started_when_the_cause_is_gone(
    api: Api, admin: Api, namespace: str, operator: OperatorProcess, standin: StandIn
):
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"count/rayclusters.ray.io": "0"}}}
    api.create(quota)
    operator.allowed.append("exceeded quota")
    eventually("the quota to count", lambda: "used" in (api.get("ResourceQuota", "none") or {}).get("status", {}), seconds=20)
    api.create(job())

    def told() -> bool:
        return any("exceeded quota" in each.get("message", "") for each in status(api).get("conditions", []))

    eventually("the API server's words in a condition", told, seconds=20)
    assert phase(api) not in ("", "Succeeded")
    if phase(api) != "Failed":
        api.delete("ResourceQuota", "none")
        reaches(api, "Succeeded", seconds=90)


def test_rc62_of_two_operators_one_acts_and_the_other_takes_over(
    api: Api, namespace: str, operators: Callable[..., OperatorProcess], standin: StandIn
):
    first = operators().start().wait()
    second = operators().start()
    eventually("the standby to be ready", lambda: second.probe("/readyz") == 200, seconds=20)
    head = standin.head(namespace, "tiny")
    head.hold = True
    api.create(job())
    reaches(api, "Running")
    assert not second.acting()
    first.allowed.append("lease lost")
    assert first.process is not None
    first.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    eventually("the standby to act", second.acting, seconds=25, every=0.1)
    print(f"standby acts {time.monotonic() - began:.1f} s after the leader stopped")
    first.process.send_signal(signal.SIGCONT)
    assert first.process.wait(10) == 1, "a woken leader leaves"
    head.hold, head.total_steps = False, 0
    reaches(api, "Succeeded")
    assert head.posts == ["tiny-a1"]


def test_a_stopped_operator_hands_over_at_once(api: Api, namespace: str, operators: Callable[..., OperatorProcess]):
    first = operators().start().wait()
    second = operators().start()
    time.sleep(3)
    began = time.monotonic()
    assert first.stop() == 0
    eventually("the standby to act", second.acting, seconds=10, every=0.1)
    print(f"handed over in {time.monotonic() - began:.1f} s")


def test_lost_pods_are_a_new_attempt_on_the_same_cluster(api: Api, namespace: str, operator: OperatorProcess, standin: StandIn):
    """No kubelet restarts the workers of a lost head here, so they go with it."""
    head = standin.head(namespace, "tiny")
    head.hold = True
    api.create(job())
    reaches(api, "Running")
    cluster = (api.get("RayCluster", "tiny") or {})["metadata"]["uid"]
    head.lose_state()
    began = time.monotonic()
    for pod in api.list("Pod", labels="rlhf.dev/job=tiny"):
        api.delete("Pod", pod["metadata"]["name"], grace_seconds=0)
    eventually("the second attempt", lambda: head.posts == ["tiny-a1", "tiny-a2"], seconds=120)
    print(f"second attempt {time.monotonic() - began:.1f} s after the pods were deleted")
    eventually("Running", lambda: phase(api) == "Running", seconds=30)
    now = status(api)
    assert now["attempt"] == 2
    assert [each["class"] for each in now["failures"]] == ["Infra"]
    assert (api.get("RayCluster", "tiny") or {})["metadata"]["uid"] == cluster


def test_rc46_an_api_server_that_restarts_is_followed_again(
    api: Api, namespace: str, cluster: Cluster, operators: Callable[..., OperatorProcess], standin: StandIn, log_scan: LogScan
):
    operator = operators(RLHF_LEADER_ELECTION="false").start().wait()
    operator.allowed += ["Request attempt", "Unreachable", "lease", "resync failed"]
    log_scan.allowed.append(".")
    head = standin.head(namespace, "tiny")
    head.hold = True
    api.create(job())
    reaches(api, "Running")
    cluster.restart("kube-apiserver", 4.0)
    eventually("the API server", lambda: answers(api), seconds=30)
    head.end("tiny-a1", "SUCCEEDED", 0)
    began = time.monotonic()
    reaches(api, "Succeeded", seconds=40)
    print(f"Succeeded {time.monotonic() - began:.1f} s after the API server was back")
    api.create(job("gone-0"))
    reaches(api, "Succeeded", "gone-0")
    assert operator.process is not None
    assert operator.process.poll() is None
    assert head.posts == ["tiny-a1"]
    assert operator.probe("/livez") == 200


@pytest.mark.parametrize("scope", ["namespaces", "cluster"])
def test_rc46_a_crd_that_is_deleted_and_made_again_blinds_nobody(
    scope: str, api: Api, admin: Api, namespace: str, cluster: Cluster, operators: Callable[..., OperatorProcess], standin: StandIn
):
    """The process follows the new kind or leaves, so that Kubernetes starts another one; it never stays and sees nothing."""
    variables = {"RLHF_WATCH_SCOPE": scope, "RLHF_WATCH_NAMESPACES": namespace if scope == "namespaces" else ""}
    operator = operators(RLHF_LEADER_ELECTION="false", **variables).start().wait()
    operator.allowed.append(".")
    assert operator.process is not None
    admin.delete("CustomResourceDefinition", "rlhfjobs.rlhf.dev")
    eventually("the CRD to be gone", lambda: admin.get("CustomResourceDefinition", "rlhfjobs.rlhf.dev") is None, seconds=30)
    time.sleep(5)
    install(admin)
    standin.head(namespace, "tiny").step_seconds = 0.05
    api.create(job())

    def done() -> bool:
        if operator.process is not None and operator.process.poll() is not None:
            print(f"the operator left with {operator.process.returncode}; another one is started")
            operator.start()
        return phase(api) == "Succeeded"

    eventually("Succeeded", done, seconds=60, every=0.5)
