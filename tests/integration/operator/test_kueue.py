"""A job in a queue: Kueue owns the suspension of its RayCluster, and the operator follows."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import tools
from e2e.kit.api import Api
from e2e.kit.helm import Helm
from e2e.kit.waiting import eventually, steady
from tests.integration.chart.recorder import Recorder
from tests.integration.chart.test_rights import RELEASE, account_kubeconfig, chart_variables, recorder
from tests.integration.operator.asking import phase, reaches, status
from tests.integration.operator.conftest import OperatorProcess, job
from tests.integration.operator.kueue import Kueue, following_pods, installed
from tests.integration.operator.standin import Head, StandIn

__all__ = ["recorder"]

WAITS = "couldn't assign flavors to pod set workers: insufficient unused quota for nvidia.com/gpu in flavor h200, 8 more needed"
PREEMPTED = "Preempted to accommodate a workload (UID: 1b2c, JobUID: 3d4e) due to prioritization in the ClusterQueue"


@pytest.fixture
def kueue(request: pytest.FixtureRequest, admin: Api, api: Api) -> Iterator[Kueue]:
    version = str(getattr(request, "param", "v1beta1"))
    with installed(admin, api, version):
        yield Kueue(api, version)


@pytest.fixture
def head(api: Api, namespace: str, standin: StandIn) -> Iterator[Head]:
    found = standin.head(namespace, "tiny")
    found.hold = True
    with following_pods(api, found):
        yield found


@pytest.fixture
def operator(operators: Callable[..., OperatorProcess]) -> OperatorProcess:
    return operators(RLHF_KUEUE="true").start().wait()


def queued_job(**spec: Any) -> dict[str, Any]:
    return job(cluster={"files": {"configMap": "reward"}, "queueName": "research"}, **spec)


def condition(api: Api, kind: str) -> dict[str, Any]:
    return next((each for each in status(api).get("conditions", []) if each["type"] == kind), {})


def pods(api: Api) -> list[str]:
    return [each["metadata"]["name"] for each in api.list("Pod", labels="rlhf.dev/job=tiny")]


def failures(api: Api) -> list[tuple[str, str]]:
    return [(each["class"], each["reason"]) for each in status(api).get("failures", [])]


def is_suspended(kueue: Kueue) -> bool:
    return kueue.cluster()["spec"].get("suspend") is True


def test_a_job_waits_for_admission_without_an_attempt(api: Api, kueue: Kueue, operator: OperatorProcess, head: Head):
    api.create(queued_job())
    reaches(api, "Queued")
    assert status(api)["reason"] == "Queued"
    assert "queue research: waiting for admission" in status(api)["message"]
    began = time.monotonic()
    kueue.takes(WAITS)
    eventually("Kueue's words in the status", lambda: WAITS in status(api)["message"], seconds=45)
    print(f"Kueue's words in the status after {time.monotonic() - began:.1f} s")
    steady("suspended, Queued and without pods", lambda: is_suspended(kueue) and phase(api) == "Queued" and not pods(api), seconds=8)
    now = status(api)
    assert kueue.cluster()["metadata"]["generation"] == 1, "nobody but Kueue writes the RayCluster's spec"
    assert (now.get("attempt"), now.get("failures", []), head.posts) == (None, [], [])
    assert now.get("provisioningSince") is None, "waiting in a queue has no deadline"
    kueue.admits()
    final = reaches(api, "Running")
    assert (final["attempt"], head.posts) == (1, ["tiny-a1"])
    assert condition(api, "ClusterReady")["status"] == "True"


def test_a_preempted_job_continues_on_the_same_cluster(api: Api, kueue: Kueue, operator: OperatorProcess, head: Head):
    api.create(queued_job(lifecycle={"maxInfraRestarts": 0, "backoffLimit": 0}))
    reaches(api, "Queued")
    kueue.takes(WAITS)
    eventually("Kueue's words in the status", lambda: WAITS in status(api)["message"], seconds=45)
    kueue.admits()
    reaches(api, "Running")
    uid = kueue.cluster()["metadata"]["uid"]
    eventually("a checkpoint", lambda: status(api).get("checkpoint"), seconds=30)
    began = time.monotonic()
    kueue.preempts(PREEMPTED)
    reaches(api, "Queued")
    print(f"Queued {time.monotonic() - began:.1f} s after the preemption")
    now = status(api)
    assert [(each["class"], each["reason"], each["attempt"]) for each in now["failures"]] == [("Preempted", "QueueEvicted", 1)]
    assert PREEMPTED in now["failures"][0]["message"]
    assert WAITS not in now["failures"][0]["message"], "what it waited for before it ran is no reason of its end"
    assert now["counters"].get("infra", 0) == 0, now["counters"]
    eventually("pods to go", lambda: not pods(api), seconds=30)
    kueue.says(QuotaReserved=("False", "Pending", WAITS))
    eventually("Kueue's new words in the status", lambda: WAITS in status(api)["message"], seconds=45)
    steady("suspended and Queued", lambda: is_suspended(kueue) and phase(api) == "Queued", seconds=4)
    head.total_steps, head.hold = 3, False
    kueue.admits()
    final = reaches(api, "Succeeded", seconds=90)
    assert (final["attempt"], head.posts) == (2, ["tiny-a1", "tiny-a2"])
    assert final["rayCluster"]["uid"] == uid
    assert failures(api) == [("Preempted", "QueueEvicted")]


@pytest.mark.parametrize("moment", ["never admitted", "preempted"])
def test_a_user_suspends_and_resumes_what_the_queue_holds(moment: str, api: Api, kueue: Kueue, operator: OperatorProcess, head: Head):
    api.create(queued_job())
    reaches(api, "Queued")
    kueue.takes(WAITS)
    ran = moment == "preempted"
    if ran:
        kueue.admits()
        reaches(api, "Running")
        kueue.preempts(PREEMPTED)
        reaches(api, "Queued")
    first = kueue.cluster()["metadata"]["uid"]
    api.patch("RLHFJob", "tiny", {"spec": {"suspend": True}})
    final = reaches(api, "Suspended")
    assert "place in the queue was given up" in final["message"]
    assert (api.get("RayCluster", "tiny"), pods(api)) == (None, [])
    steady("Suspended", lambda: phase(api) == "Suspended" and api.get("RayCluster", "tiny") is None, seconds=4)
    api.patch("RLHFJob", "tiny", {"spec": {"suspend": False}})
    reaches(api, "Queued")
    assert kueue.cluster()["metadata"]["uid"] != first
    kueue.takes(WAITS)
    kueue.admits()
    final = reaches(api, "Running")
    assert final["attempt"] == (2 if ran else 1)
    assert failures(api) == ([("Preempted", "QueueEvicted")] if ran else [])


def test_a_user_suspends_and_the_queue_takes_the_place_back_meanwhile(api: Api, kueue: Kueue, operator: OperatorProcess, head: Head):
    api.create(queued_job())
    reaches(api, "Queued")
    kueue.takes(WAITS)
    kueue.admits()
    reaches(api, "Running")
    head.status_code = 503  # the stop does not arrive
    api.patch("RLHFJob", "tiny", {"spec": {"suspend": True}})
    reaches(api, "Suspending")
    operator.allowed.append("StopSubmission failed")
    kueue.preempts(PREEMPTED)
    reaches(api, "Suspended")
    assert failures(api) == [], "a stop that the user asked for is no failure"
    head.status_code = 0
    api.patch("RLHFJob", "tiny", {"spec": {"suspend": False}})
    reaches(api, "Queued")
    kueue.takes(WAITS)
    kueue.admits()
    assert reaches(api, "Running")["attempt"] == 2


def test_quick_flips_never_submit_twice_and_never_get_stuck(api: Api, kueue: Kueue, operator: OperatorProcess, head: Head):
    api.create(queued_job(lifecycle={"maxInfraRestarts": 0, "backoffLimit": 0}))
    reaches(api, "Queued")
    kueue.takes(WAITS)
    kueue.admits()
    for pause in (0.0, 0.05, 0.3, 1.0, 3.0, 0.0, 0.1):
        time.sleep(2 * pause)
        kueue.suspends()
        time.sleep(pause)
        kueue.unsuspends()
    reaches(api, "Running", seconds=120)
    for pause in (0.0, 0.02, 0.5):
        kueue.suspends()
        time.sleep(pause)
        kueue.unsuspends()
        eventually("an end of the attempt or none", lambda: phase(api) in ("Running", "Restarting", "Starting", "Provisioning"), seconds=60)
        time.sleep(5)
        reaches(api, "Running", seconds=120)
    print(f"posts {head.posts}, failures {failures(api)}")
    assert len(head.posts) == len(set(head.posts))
    assert set(failures(api)) <= {("Preempted", "QueueEvicted")}
    assert status(api)["attempt"] == len(head.posts)


def test_a_preemption_that_nobody_watched_is_on_no_budget(api: Api, kueue: Kueue, operators: Callable[..., OperatorProcess], head: Head):
    first = operators(RLHF_KUEUE="true").start().wait()
    api.create(queued_job(lifecycle={"maxInfraRestarts": 0, "backoffLimit": 0}))
    reaches(api, "Queued")
    kueue.takes(WAITS)
    kueue.admits()
    reaches(api, "Running")
    before = pods(api)
    assert first.stop() == 0
    kueue.preempts(PREEMPTED)
    eventually("pods to go", lambda: not pods(api), seconds=30)
    kueue.admits()
    eventually("new pods", lambda: len(pods(api)) == len(before) and not head.down, seconds=30)
    operators(RLHF_KUEUE="true").start().wait()
    eventually("the second attempt", lambda: head.posts == ["tiny-a1", "tiny-a2"], seconds=60)
    reaches(api, "Running")
    assert failures(api) == [("Preempted", "QueueEvicted")]


@pytest.mark.parametrize("kueue", ["v1beta1", "v1beta2"], indirect=True)
def test_the_charts_rights_suffice_for_a_queue(
    api: Api, admin: Api, namespace: str, kubeconfig: Path, recorder: Recorder, kueue: Kueue, tmp_path: Path
):
    helm = Helm(tools.prepare(("helm",)).binary("helm"), tmp_path / "helm", kubeconfig)
    helm.install(RELEASE, namespace, {"watch": {"scope": "release"}, "kueue": {"enabled": True}, "crds": {"enabled": False}})
    try:
        secret: dict[str, Any] = api.get("Secret", f"{RELEASE}-token-key") or {}
        with StandIn(base64.b64decode(secret["data"]["token_key"])) as standin:
            found = standin.head(namespace, "tiny")
            account = account_kubeconfig(admin, namespace, recorder.url, tmp_path)
            operator = OperatorProcess(account, namespace, standin, tmp_path, **chart_variables(api)).start().wait()
            try:
                api.create(queued_job())
                reaches(api, "Queued")
                kueue.takes(WAITS)
                eventually("Kueue's words in the status", lambda: WAITS in status(api)["message"], seconds=45)
                kueue.admits()
                reaches(api, "Succeeded")
                assert found.posts == ["tiny-a1"]
            finally:
                operator.stop()
    finally:
        helm.uninstall(RELEASE, namespace)
    assert [call for call in recorder.calls if call.status in (401, 403) and call.namespace in ("", namespace)] == []
    assert ("kueue.x-k8s.io", "workloads", "list") in {call.right for call in recorder.calls}
