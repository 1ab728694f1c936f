"""The eviction API, by which nodes are drained, and the head of a job: a real API server and a real disruption controller."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from e2e.kit.api import Api
from e2e.kit.waiting import eventually, ready_pods
from tests.integration.operator.asking import reaches
from tests.integration.operator.conftest import OperatorProcess, job
from tests.integration.operator.standin import StandIn

HEAD = "ray.io/node-type=head,rlhf.dev/job=tiny"
WORKER = "ray.io/node-type=worker,rlhf.dev/job=tiny"
KEEP = {"cleanupPolicy": {"onSuccess": "none", "onFailure": "none"}}


def ready_pod(api: Api, labels: str) -> dict[str, Any]:
    (found,) = eventually(f"the pod {labels}", lambda: ready_pods(api, labels, 1), seconds=10)
    return found


def evict(api: Api, labels: str) -> tuple[int, str]:
    """As ``kubectl drain`` asks; tried only, so that the pod lives on."""
    name = ready_pod(api, labels)["metadata"]["name"]
    metadata = {"name": name, "namespace": api.namespace}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": {"dryRun": ["All"]}}
    status, text = api.http("POST", f"/api/v1/namespaces/{api.namespace}/pods/{name}/eviction", body)
    return status, text if status == 201 else str(json.loads(text)["message"])


def budget(api: Api) -> dict[str, Any]:
    return api.get("PodDisruptionBudget", "tiny-head") or {}


def counted(api: Api) -> bool:
    status = budget(api).get("status") or {}
    return (status.get("currentHealthy"), status.get("desiredHealthy"), status.get("disruptionsAllowed")) == (1, 1, 0)


def test_the_head_of_a_running_job_cannot_be_evicted_and_that_of_an_ended_one_can(
    api: Api, namespace: str, operators: Callable[..., OperatorProcess], standin: StandIn
) -> None:
    operators(RLHF_HEAD_DISRUPTION_BUDGET="true").start().wait()
    head = standin.head(namespace, "tiny")
    head.hold = True
    api.create(job(lifecycle=KEEP))
    reaches(api, "Running")
    eventually("the head to be counted", lambda: counted(api), seconds=30, last=lambda: budget(api))
    status, text = evict(api, HEAD)
    assert status == 429
    assert "violate the pod's disruption budget" in text
    assert evict(api, WORKER)[0] == 201
    head.end(head.posts[-1], "SUCCEEDED", 0)
    reaches(api, "Succeeded")
    eventually("the budget to go", lambda: not budget(api), seconds=20)
    assert evict(api, HEAD)[0] == 201


def test_a_head_that_is_not_ready_holds_up_no_drain(
    api: Api, namespace: str, operators: Callable[..., OperatorProcess], standin: StandIn
) -> None:
    operators(RLHF_HEAD_DISRUPTION_BUDGET="true").start().wait()
    standin.head(namespace, "tiny").hold = True
    api.create(job())
    reaches(api, "Running")
    eventually("the head to be counted", lambda: counted(api), seconds=30, last=lambda: budget(api))
    pod = ready_pod(api, HEAD)
    name = pod["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
    unready = [
        {**each, "status": "False"} if each["type"] in ("Ready", "ContainersReady") else each for each in pod["status"]["conditions"]
    ]

    def evicted() -> bool:
        # Whoever marks pods here may have marked it again.
        api.patch("Pod", name, {"status": {"conditions": unready}}, status=True)
        return api.http("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction?dryRun=All", body)[0] == 201

    eventually("the eviction to be taken", evicted, seconds=20)


def test_without_the_setting_a_head_can_be_evicted(api: Api, namespace: str, operator: OperatorProcess, standin: StandIn) -> None:
    standin.head(namespace, "tiny").hold = True
    api.create(job())
    reaches(api, "Running")
    assert not budget(api)
    assert evict(api, HEAD)[0] == 201
