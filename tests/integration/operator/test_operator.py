"""From ``kubectl apply`` to Succeeded on a real API server with the real KubeRay; only what runs in pods is played."""

from __future__ import annotations

import time
from collections.abc import Callable

from e2e.kit.api import Api
from e2e.kit.objects import config_map
from e2e.kit.waiting import eventually
from tests.integration.operator.asking import children, reaches, status
from tests.integration.operator.conftest import OperatorProcess, job
from tests.integration.operator.standin import StandIn


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
    # The garbage collector learns of a new kind every 30 s.
    eventually("children to be collected", lambda: children(api) == ["PersistentVolumeClaim"], seconds=60)
    eventually("gauges of the job to be gone", lambda: 'rlhfjob="tiny"' not in operator.scrape(), seconds=10)


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


def test_health_and_metrics(operator: OperatorProcess):
    assert operator.probe("/livez") == 200
    assert operator.probe("/readyz") == 200
    text = operator.scrape()
    for name in ("reconcile_seconds_bucket", "queue_depth", "watch_age_seconds", "event_loop_lag_seconds", "status_writes"):
        assert f"rlhf_operator_{name}" in text
    memory = operator.metric("process_resident_memory_bytes")
    print(f"resident memory of an idle operator: {memory / 2**20:.0f} MiB")
    assert memory < 200 * 2**20
