"""From ``kubectl apply`` to Succeeded on a real API server with the real KubeRay; only what runs in pods is played."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from e2e.cluster.cluster import Cluster
from e2e.kit.api import Api
from e2e.kit.log_scan import LogScan
from e2e.kit.objects import config_map
from e2e.kit.waiting import eventually, steady
from tests.integration.operator.conftest import OperatorProcess, install, job
from tests.integration.operator.standin import StandIn


@pytest.fixture(autouse=True)
def reward(api: Api) -> None:
    api.create(config_map("reward", {"reward.py": "def reward(sample): return 1.0"}))


@pytest.fixture(autouse=True)
def volumes(admin: Api, namespace: str) -> Iterator[None]:
    """Nothing provisions volumes here: one lies ready for each checkpoint claim."""
    names = []
    for job_name in ("tiny", *(f"gone-{number}" for number in range(4))):
        names.append(f"{namespace}-{job_name}")
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "storageClassName": "",
            "hostPath": {"path": "/tmp"},
            "claimRef": {"namespace": namespace, "name": f"{job_name}-ckpt"},
        }
        admin.create({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": names[-1]}, "spec": spec})
    yield
    for name in names:
        admin.delete("PersistentVolume", name)


def status(api: Api, name: str = "tiny") -> dict[str, Any]:
    found = api.get("RLHFJob", name)
    return (found or {}).get("status") or {}


def phase(api: Api, name: str = "tiny") -> str:
    return str(status(api, name).get("phase", ""))


def reaches(api: Api, wanted: str, name: str = "tiny", seconds: float = 60) -> dict[str, Any]:
    eventually(f"{name} to be {wanted}", lambda: phase(api, name) == wanted, seconds=seconds, every=0.1)
    return status(api, name)


def children(api: Api, name: str = "tiny") -> list[str]:
    kinds = {"RayCluster": "", "ConfigMap": "-config", "Secret": "-ray-token", "PersistentVolumeClaim": "-ckpt", "NetworkPolicy": ""}
    return [kind for kind, suffix in kinds.items() if api.get(kind, f"{name}{suffix}") is not None]


def test_a_job_runs_to_its_end(api: Api, namespace: str, operator: OperatorProcess, standin: StandIn):
    head = standin.head(namespace, "tiny")
    head.total_steps, head.step_seconds = 4, 0.5
    began = time.monotonic()
    api.create(job())
    steps: list[int] = []

    def watch() -> bool:
        now = status(api)
        step = (now.get("progress") or {}).get("step")
        if step is not None and (not steps or steps[-1] != step):
            steps.append(step)
        return now.get("phase") == "Succeeded"

    eventually("Succeeded", watch, seconds=90, every=0.1)
    print(f"apply to Succeeded {time.monotonic() - began:.1f} s, steps seen {steps}")
    final = status(api)
    assert head.posts == ["tiny-a1"]
    assert steps == sorted(steps)
    assert final["attempt"] == 1
    assert final["progress"]["step"] == 4
    assert final["checkpoint"]["step"] == 4
    truth = {each["type"]: each["status"] for each in final["conditions"]}
    assert truth["Complete"] == "True"
    assert truth["Validated"] == "True"
    eventually("the RayCluster to be removed", lambda: api.get("RayCluster", "tiny") is None, seconds=20)
    assert children(api) == ["ConfigMap", "Secret", "PersistentVolumeClaim", "NetworkPolicy"]
    reasons = [each["reason"] for each in api.list("Event") if each.get("involvedObject", {}).get("kind") == "RLHFJob"]
    assert "Succeeded" in reasons
    assert len(reasons) == len(set(reasons)), "one Event a transition"
    text = operator.scrape()
    assert 'rlhf_operator_jobs{phase="Succeeded"} 1.0' in text
    assert operator.metric("rlhf_operator_reconcile_errors_total") == 0
    api.delete("RLHFJob", "tiny")
    eventually("children to be collected", lambda: children(api) == ["PersistentVolumeClaim"], seconds=20)
    eventually("gauges of the job to be gone", lambda: 'job="tiny"' not in operator.scrape(), seconds=10)


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


def test_rc34_a_delete_at_any_moment_leaves_nothing(api: Api, namespace: str, operator: OperatorProcess, standin: StandIn):
    for number, pause in enumerate((0.01, 0.3, 1.0, 3.0)):
        name = f"gone-{number}"
        standin.head(namespace, name).hold = True
        api.create(job(name, checkpoint={"volume": {"create": {"size": "1Gi", "accessModes": ["ReadWriteOnce"], "retain": False}}}))
        time.sleep(pause)
        began = time.monotonic()
        api.delete("RLHFJob", name)
        eventually(f"{name} to be gone", lambda name=name: api.get("RLHFJob", name) is None, seconds=10, every=0.05)
        eventually(f"the children of {name} to be gone", lambda name=name: not children(api, name), seconds=30, every=0.1)
        print(f"deleted {pause} s after creation: all gone in {time.monotonic() - began:.1f} s")


def test_a_deleted_jobs_driver_is_asked_to_stop(api: Api, namespace: str, operator: OperatorProcess, standin: StandIn):
    head = standin.head(namespace, "tiny")
    head.hold = True
    api.create(job())
    reaches(api, "Running")
    api.delete("RLHFJob", "tiny")
    eventually("the stop call", lambda: head.stops == ["tiny-a1"], seconds=10)


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


def test_a_suspended_job_frees_its_pods_and_goes_on_later(api: Api, namespace: str, operator: OperatorProcess, standin: StandIn):
    head = standin.head(namespace, "tiny")
    head.hold = True
    api.create(job())
    reaches(api, "Running")
    api.patch("RLHFJob", "tiny", {"spec": {"suspend": True}})
    reaches(api, "Suspended")
    assert head.stops == ["tiny-a1"]
    eventually("the pods to be gone", lambda: not api.list("Pod", labels="rlhf.dev/job=tiny"), seconds=20)
    head.lose_state()
    head.hold, head.step_seconds = False, 0.1
    api.patch("RLHFJob", "tiny", {"spec": {"suspend": False}})
    final = reaches(api, "Succeeded")
    assert head.posts == ["tiny-a1", "tiny-a2"]
    assert (final["attempt"], final.get("failures") or []) == (2, [])


def test_a_users_error_ends_the_job_with_its_last_lines_and_frees_the_workers(
    api: Api, namespace: str, operator: OperatorProcess, standin: StandIn
):
    head = standin.head(namespace, "tiny")
    head.hold = True
    api.create(job())
    reaches(api, "Running")
    spec = (api.get("RayCluster", "tiny") or {})["spec"]
    assert spec["authOptions"] == {"mode": "token", "secretName": "tiny-ray-token"}, "KubeRay here knows authOptions.secretName"
    head.end("tiny-a1", "FAILED", 3, "JOB_ENTRYPOINT_COMMAND_ERROR")
    final = reaches(api, "Failed")
    assert [each["class"] for each in final["failures"]] == ["User"]
    assert "ValueError: no answer" in final["message"]

    def heads_only() -> bool:
        return [each["metadata"]["labels"]["ray.io/node-type"] for each in api.list("Pod", labels="rlhf.dev/job=tiny")] == ["head"]

    eventually("the workers to be gone", heads_only, seconds=20)
    assert head.posts == ["tiny-a1"]


def test_a_finished_job_is_deleted_when_its_time_is_over(api: Api, namespace: str, operator: OperatorProcess, standin: StandIn):
    standin.head(namespace, "tiny").step_seconds = 0.05
    api.create(job(lifecycle={"ttlSecondsAfterFinished": 2}))
    reaches(api, "Succeeded")
    eventually("the job to be deleted", lambda: api.get("RLHFJob", "tiny") is None, seconds=15)


def test_rc01_an_image_that_can_not_be_pulled_is_told_with_pod_and_container(
    api: Api, namespace: str, operator: OperatorProcess, standin: StandIn
):
    rules = "[{selector: {ray.io/node-type: worker}, outcome: image-pull-backoff}]"
    api.create(config_map("e2e-pods", {"rules": rules}))
    api.create(job())
    eventually("ImagePull", lambda: status(api).get("reason") == "ImagePull", seconds=60)
    message = status(api)["message"]
    assert "tiny-workers-worker-" in message
    assert "ImagePullBackOff" in message
    assert standin.head(namespace, "tiny").posts == []


def test_all_namespaces_are_watched_where_the_scope_is_the_cluster(
    api: Api, namespace: str, operators: Callable[..., OperatorProcess], standin: StandIn
):
    operators(RLHF_WATCH_SCOPE="cluster", RLHF_WATCH_NAMESPACES="").start().wait()
    standin.head(namespace, "tiny").step_seconds = 0.05
    api.create(job())
    reaches(api, "Succeeded")


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


def answers(api: Api) -> bool:
    try:
        api.get("RLHFJob", "tiny")
    except (ApiException, HTTPError):
        return False
    return True


def test_health_and_metrics(operator: OperatorProcess):
    assert operator.probe("/livez") == 200
    assert operator.probe("/readyz") == 200
    text = operator.scrape()
    for name in ("reconcile_seconds_bucket", "queue_depth", "watch_age_seconds", "event_loop_lag_seconds", "status_writes"):
        assert f"rlhf_operator_{name}" in text
    memory = operator.metric("process_resident_memory_bytes")
    print(f"resident memory of an idle operator: {memory / 2**20:.0f} MiB")
    assert memory < 200 * 2**20
