"""What people do by hand to a job's objects, and to what it refers to, while the operator works on it."""

from __future__ import annotations

import time

from e2e.kit.api import Api
from e2e.kit.objects import config_map
from e2e.kit.waiting import eventually, steady
from tests.integration.operator.asking import phase, reaches, status
from tests.integration.operator.conftest import OperatorProcess, job
from tests.integration.operator.standin import StandIn


def ensures(operator: OperatorProcess) -> int:
    """Actions on children so far; the log has one line for each."""
    return sum('"message": "Ensure' in line or '"message": "MarkCluster' in line for line in operator.log.read_text().splitlines())


def reason(api: Api, name: str = "tiny") -> str:
    return str(status(api, name).get("reason", ""))


def test_what_was_missing_is_seen_seconds_after_it_is_created(api: Api, namespace: str, operator: OperatorProcess, standin: StandIn):
    for name in ("gone-0", "gone-1"):
        standin.head(namespace, name).total_steps = 1
    api.create(job("gone-0", cluster={"files": {"configMap": "later"}}, lifecycle={"provisioningDeadlineSeconds": 60}))
    api.create(job("gone-1", checkpoint={"volume": {"existingClaim": "later"}}))
    eventually("the ConfigMap to be missed", lambda: reason(api, "gone-0") == "ObjectMissing", seconds=20)
    eventually("the claim to be missed", lambda: reason(api, "gone-1") == "VolumeMissing", seconds=20)
    time.sleep(7)
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    api.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "later"}, "spec": claim})
    api.create(config_map("later", {"reward.py": "def reward(sample): return 1.0"}))
    began = time.monotonic()
    for name in ("gone-0", "gone-1"):
        eventually(f"{name} to go on", lambda name=name: not reason(api, name).endswith("Missing"), seconds=15, every=0.1)
    print(f"seen {time.monotonic() - began:.1f} s after both were created")
    reaches(api, "Succeeded", "gone-0")


def test_a_running_jobs_cluster_gets_back_what_somebody_took_off(api: Api, namespace: str, operator: OperatorProcess, standin: StandIn):
    head = standin.head(namespace, "tiny")
    head.hold = True
    api.create(job())
    reaches(api, "Running")
    for taken in ("labels", "ownerReferences"):
        before = api.get("RayCluster", "tiny")
        assert before is not None
        api.patch("RayCluster", "tiny", {"metadata": {taken: None}})

        def back(before=before, taken=taken) -> bool:
            found = api.get("RayCluster", "tiny") or {"metadata": {}}
            return bool(found["metadata"].get(taken) == before["metadata"][taken])

        began = time.monotonic()
        eventually(f"{taken} to be there again", back, seconds=15, every=0.1)
        print(f"{taken} were back after {time.monotonic() - began:.1f} s")
    made = ensures(operator)
    steady("Running", lambda: phase(api) == "Running", seconds=5)
    assert ensures(operator) - made <= 1, "nothing runs in a loop"
    assert (head.posts, head.stops, status(api).get("failures", [])) == (["tiny-a1"], [], [])
    head.end("tiny-a1", "SUCCEEDED", 0)
    reaches(api, "Succeeded")


def test_pods_that_lost_the_jobs_label_train_on(api: Api, namespace: str, operator: OperatorProcess, standin: StandIn):
    head = standin.head(namespace, "tiny")
    head.hold = True
    api.create(job())
    reaches(api, "Running")
    for pod in api.list("Pod", labels="rlhf.dev/job=tiny"):
        api.patch("Pod", pod["metadata"]["name"], {"metadata": {"labels": {"rlhf.dev/job": None}}})
    steady("Running", lambda: phase(api) == "Running", seconds=10)
    assert (head.posts, head.stops, status(api).get("failures", [])) == (["tiny-a1"], [], [])
    head.end("tiny-a1", "SUCCEEDED", 0)
    reaches(api, "Succeeded")


def test_rc34_a_deleted_job_that_a_finalizer_holds_stops_its_trainer_and_says_so(
    api: Api, namespace: str, operator: OperatorProcess, standin: StandIn
):
    head = standin.head(namespace, "tiny")
    head.hold = True
    api.create({**job(), "metadata": {"name": "tiny", "finalizers": ["example.com/hold"]}})
    reaches(api, "Running")
    api.delete("RLHFJob", "tiny")
    eventually("the stop", lambda: head.stops == ["tiny-a1"], seconds=10, every=0.1)
    eventually("the cluster to be gone", lambda: api.get("RayCluster", "tiny") is None, seconds=10, every=0.1)
    eventually("the last word", lambda: reason(api) == "Deleting", seconds=10, every=0.1)
    assert "is being deleted" in status(api)["message"]
    written = (api.get("RLHFJob", "tiny") or {})["metadata"]["resourceVersion"]
    time.sleep(4)
    assert (api.get("RLHFJob", "tiny") or {})["metadata"]["resourceVersion"] == written, "one last status"
    assert api.get("RayCluster", "tiny") is None, "nothing is made again"
    api.patch("RLHFJob", "tiny", {"metadata": {"finalizers": None}})
    eventually("the job to be gone", lambda: api.get("RLHFJob", "tiny") is None, seconds=10)


def test_rc43_a_status_without_its_run_follows_the_trainer_that_runs(api: Api, namespace: str, operator: OperatorProcess, standin: StandIn):
    head = standin.head(namespace, "tiny")
    head.hold = True
    api.create(job())
    reaches(api, "Running")
    api.patch("RLHFJob", "tiny", {"status": {"run": None}}, status=True)
    eventually("the attempt to be followed again", lambda: "run" in status(api) and phase(api) == "Running", seconds=30, every=0.1)
    steady("Running", lambda: phase(api) == "Running", seconds=3)
    assert (head.posts, head.stops, status(api)["attempt"]) == (["tiny-a1"], [], 1)
    head.end("tiny-a1", "SUCCEEDED", 0)
    assert reaches(api, "Succeeded").get("failures", []) == []
