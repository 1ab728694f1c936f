"""The real KubeRay turns a RayCluster into pods of the trainer image, and the whole stack runs in them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from e2e.kit import objects
from e2e.kit.api import Api
from e2e.kit.ray_jobs import RayJobs
from e2e.kit.waiting import eventually, ray_cluster_is_ready, ready_pods

TOKEN = "a-token-of-the-test-0123456789abcdef"
STACK_JOB = Path(__file__).parent / "jobs" / "stack.py"
HEAD_AND_WORKERS = "ray.io/cluster=stack"
WORKERS = f"{HEAD_AND_WORKERS},ray.io/node-type=worker"


def test_vllm_and_deepspeed_run_in_the_pods_of_a_ray_cluster_and_a_deleted_worker_returns(api: Api, image: str) -> None:
    api.create(objects.secret("ray-token", {"auth_token": TOKEN}))
    api.create(objects.ray_cluster("stack", image, workers=2, token_secret="ray-token"))
    eventually("RayCluster stack to be ready", lambda: ray_cluster_is_ready(api, "stack"), seconds=300, every=1, api=api)

    unauthorized = RayJobs(api, "stack", token=None)
    assert unauthorized.call("POST", "/api/jobs/", {"entrypoint": "true"})[0] == 401

    jobs = RayJobs(api, "stack", TOKEN)
    jobs.submit(f"python -c {shlex.quote(STACK_JOB.read_text())}", "stack-1", {"test": "stack"})
    log = jobs.finish("stack-1", seconds=300)
    assert re.search(r"generated text: '.+'", log), log
    losses = re.findall(r"loss of rank (\d) on ([\d.]+): ([\d.]+) .* ([\d.]+)\n", log)
    assert [rank for rank, *_ in losses] == ["0", "1"], log
    assert losses[0][1] != losses[1][1], "the two ranks trained in two pods"
    print("\n".join(line for line in log.splitlines() if line.startswith(("generated text", "loss of"))))

    before = {pod["metadata"]["uid"] for pod in api.list("Pod", labels=WORKERS)}
    victim = api.list("Pod", labels=WORKERS)[0]["metadata"]["name"]
    api.delete("Pod", victim, grace_seconds=0)

    def replaced() -> bool:
        pods = ready_pods(api, WORKERS, 2)
        return pods is not None and {pod["metadata"]["uid"] for pod in pods} != before

    eventually("a new worker pod to be ready", replaced, seconds=180, every=1, api=api)

    api.delete("RayCluster", "stack")
    eventually("the pods of the deleted RayCluster to be gone", lambda: not api.list("Pod", labels=HEAD_AND_WORKERS), seconds=90, api=api)
    eventually("its service to be gone", lambda: api.get("Service", "stack-head-svc") is None, seconds=30, api=api)
