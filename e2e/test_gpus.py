"""A job for GPU nodes with InfiniBand, on a node that only claims to have both: everything but the devices is real."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster.cluster import Cluster
from e2e.cluster.init import NODE_NAME
from e2e.kit.api import Api
from e2e.kit.budgets import Budgets
from e2e.kit.jobs import Jobs
from e2e.kit.operator import Release
from e2e.kit.waiting import eventually, steady

GPU, RDMA = "nvidia.com/gpu", "rdma/hca_shared_devices_a"
DEVICES = {GPU: "2", RDMA: "1"}
LABEL = {"e2e.rlhf.dev/pool": "gpu"}
TAINT = {"key": "e2e.rlhf.dev/reserved", "value": "gpu", "effect": "NoSchedule"}
TOLERATION = {"operator": "Equal", **TAINT}
SHM = 512 << 20
USER, GROUP, FILES_GROUP, FURTHER_GROUP = 4242, 4243, 4244, 4245
IPC_LOCK_BIT = 14
"""linux/capability.h."""
SPEC: dict[str, Any] = {
    "placement": {"accelerator": "gpu", "actor": {"nodes": 1, "gpusPerNode": 2}, "rollout": {"engines": 2}},
    "cluster": {
        "head": {"tolerations": [TOLERATION]},
        "workers": {"nodeSelector": LABEL, "tolerations": [TOLERATION]},
        "shmSize": "512Mi",
        "securityContext": {"runAsUser": USER, "runAsGroup": GROUP, "fsGroup": FILES_GROUP, "supplementalGroups": [FURTHER_GROUP]},
        "network": {
            "infiniband": {"hca": "mlx5_0,mlx5_1", "socketInterface": "ib0", "resource": {RDMA: 1}, "gidIndex": 3, "trafficClass": 106},
            "requireRdma": True,
            "env": {"NCCL_NET_GDR_LEVEL": "PHB"},
        },
    },
}
NCCL = {
    "NCCL_DEBUG": "WARN", "NCCL_IB_DISABLE": "0", "NCCL_IB_HCA": "mlx5_0,mlx5_1", "NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "ib0",
    "NCCL_IB_GID_INDEX": "3", "NCCL_IB_TC": "106", "NCCL_NET_GDR_LEVEL": "PHB",
}  # fmt: skip
INSIDE = """
import json, os, resource
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
shm = os.statvfs("/dev/shm")
print(json.dumps({
    "env": dict(os.environ), "user": os.getuid(), "groups": sorted({os.getgid(), *os.getgroups()}), "shm": shm.f_frsize * shm.f_blocks,
    "may have": int(status["CapBnd"], 16), "has": int(status["CapEff"], 16), "locked": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
}))
"""
NODES = """
import json, ray
ray.init(address="auto", log_to_driver=False)
print(json.dumps({node["NodeManagerAddress"]: node["Resources"] for node in ray.nodes() if node["Alive"]}))
"""


def set_taints(admin: Api, *taints: dict[str, str]) -> None:
    admin.patch("Node", NODE_NAME, {"spec": {"taints": list(taints)}})


def set_labels(admin: Api, labels: dict[str, str | None]) -> None:
    admin.patch("Node", NODE_NAME, {"metadata": {"labels": labels}})


@pytest.fixture
def gpu_node(admin: Api, cluster: Cluster) -> Iterator[None]:
    """The node claims devices and refuses pods that do not tolerate it; its label is put on by the test."""
    cluster.set_capacity(DEVICES)
    set_taints(admin, TAINT)
    yield
    set_labels(admin, dict.fromkeys(LABEL))
    set_taints(admin)
    cluster.set_capacity(dict.fromkeys(DEVICES, "0"))


@pytest.fixture
def inspected(operator: Release) -> Iterator[Release]:
    """Whatever a test does to the number of operators, one is there after it."""
    yield operator
    operator.scale(1)


@pytest.mark.level(1)
def test_a_gpu_job_with_infiniband_gets_the_pods_it_asks_for_and_fails_once_where_they_have_no_gpu(
    inspected: Release, admin: Api, api: Api, gpu_node: None, jobs: Jobs, limits: Budgets
) -> None:
    job = jobs.start(spec=SPEC)
    status = job.wait("to tell of the node", lambda now: "affinity/selector" in str(now.get("conditions")), limits.reported)
    print(f"no node with the label: {job.condition('ClusterReady')['message']}")
    assert status["phase"] == "Provisioning"
    eventually("the head to be there", lambda: job.pods("head"), seconds=limits.reported, api=api)
    # Without an operator no trainer is started: the pods can be looked at for as long as that takes.
    inspected.scale(0)
    began = time.monotonic()
    set_labels(admin, dict(LABEL))
    eventually("all pods to be ready", job.pods_ready, seconds=limits.pods_ready, every=0.5, api=api)
    print(f"pods ready {time.monotonic() - began:.1f} s after the node had its label")

    head, worker = job.pod("head"), job.pod("worker")
    for pod in (head, worker):
        assert pod["spec"]["nodeName"] == NODE_NAME
        assert TOLERATION.items() <= next(each for each in pod["spec"]["tolerations"] if each.get("key") == TAINT["key"]).items()
    assert worker["spec"]["nodeSelector"] == LABEL
    assert "nodeSelector" not in head["spec"]
    assert {"key": GPU, "operator": "Exists", "effect": "NoSchedule"} in worker["spec"]["tolerations"]
    on_worker, on_head = (next(each for each in pod["spec"]["containers"] if each["name"] == "ray") for pod in (worker, head))
    for kind in ("requests", "limits"):
        assert DEVICES.items() <= on_worker["resources"][kind].items()
        assert not set(DEVICES) & set(on_head["resources"][kind])
    assert on_worker["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert on_head["securityContext"]["capabilities"] == {"drop": ["ALL"]}

    inside_worker, inside_head = (json.loads(job.execute(pod["metadata"]["name"], INSIDE)) for pod in (worker, head))
    assert NCCL.items() <= inside_worker["env"].items()
    assert not [name for name in inside_head["env"] if name.startswith("NCCL_")]
    assert inside_worker["may have"] == 1 << IPC_LOCK_BIT, "this capability and no other"
    assert inside_head["may have"] == 0
    print(f"worker: effective capabilities {inside_worker['has']:#x}, may lock {inside_worker['locked']} bytes")
    for inside in (inside_worker, inside_head):
        assert (inside["user"], inside["groups"]) == (USER, sorted([GROUP, FILES_GROUP, FURTHER_GROUP]))
        assert inside["shm"] == SHM

    seen = json.loads(job.execute(head["metadata"]["name"], NODES).strip().splitlines()[-1])
    print(f"Ray sees {seen}")
    assert seen[worker["status"]["podIP"]].get("GPU") == 2
    assert "GPU" not in seen[head["status"]["podIP"]]
    assert "CPU" not in seen[head["status"]["podIP"]], "no actor may run there"

    # The operator does not tolerate it, and there is no other node.
    set_taints(admin)
    inspected.scale(1)
    began = time.monotonic()
    failed = job.reaches("Failed", seconds=limits.first_step)
    print(f"Failed {time.monotonic() - began:.1f} s after the operator was back")
    print(json.dumps(failed["failures"], indent=1))
    # The image of this lane is the one for CPUs; no other attempt could end better.
    assert [(each["class"], each["reason"]) for each in failed["failures"]] == [("Config", "BadConfiguration")]
    assert "its image is the build for CPUs" in failed["failures"][0]["message"]
    assert "Traceback" not in failed["failures"][0]["message"]
    steady("Failed", lambda: job.phase == "Failed", seconds=5)
