"""Every rule about pods and volumes with one fault and its valid neighbour, and what holds on a cluster only."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from rlhf_api import rules
from rlhf_api.owned import MOUNT_PATHS, SYSTEM_PATHS
from rlhf_api.quantity import parse
from rlhf_api.resolve import derive
from rlhf_api.rules import RULES
from rlhf_api.spec import RLHFJob
from tests.rlhf_api.jobs import ON_CLUSTER

Changes = Mapping[str, Any]
ValidJob = Callable[[Changes], RLHFJob]
TWO_PODS: Changes = {"placement.actor": {"nodes": 2}, "placement.rollout": {"engines": 2}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
CREATE_RWO: Changes = {"checkpoint.volume": {"create": {"size": "10Gi", "accessModes": ["ReadWriteOnce"]}}}

WITH_ITEMS: Changes = {
    "files": {
        "configMap": "files",
        "items": [
            {"key": "reward.py", "path": "reward.py"},
            {"key": "train.jsonl", "path": "d/train.jsonl"},
            {"key": "config.json", "path": "model/config.json"},
        ],
    }
}


def volume(name: str, path: str) -> dict[str, str]:
    return {"name": name, "mountPath": path, "existingClaim": "claim"}


def memory(limit: str) -> dict[str, Any]:
    return {"resources": {"limits": {"memory": limit}}}


@dataclass(frozen=True)
class Case:
    rule: str
    fault: Changes
    neighbour: Changes
    field: str
    nearest: str
    context: Changes = dataclasses.field(default_factory=dict)


CASES = [
    # volumes
    Case(
        "volumes-differ",
        {"cluster.volumes": [volume("a", "/a"), volume("a", "/b")]},
        {"cluster.volumes": [volume("a", "/a"), volume("b", "/b")]},
        "cluster.volumes[1].name",
        "name: a-2",
    ),
    Case(
        "volumes-differ",
        {"cluster.volumes": [volume("a", "/a"), volume("b", "/a")]},
        {"cluster.volumes": [volume("a", "/a"), volume("b", "/ab")]},
        "cluster.volumes[1].mountPath",
        "mountPath: /mnt/b",
    ),
    Case(
        "volumes-differ",
        {"cluster.volumes": [volume("a", "/a"), volume("b", "/a/b")]},
        {"cluster.volumes": [volume("a", "/a/a"), volume("b", "/a/b")]},
        "cluster.volumes[1].mountPath",
        "mountPath: /mnt/b",
    ),
    Case(
        "volumes-differ",
        {"cluster.volumes": [volume("a", "/data/a/b"), volume("b", "/data")]},
        {"cluster.volumes": [volume("a", "/data/a/b"), volume("b", "/data/b")]},
        "cluster.volumes[1].mountPath",
        "mountPath: /mnt/b",
    ),
    Case(
        "volumes-are-free",
        {"cluster.volumes": [volume("rlhf-config", "/a")]},
        {"cluster.volumes": [volume("config", "/a")]},
        "cluster.volumes[0].name",
        "name: config",
    ),
    Case(
        "volumes-are-free",
        {"cluster.volumes": [volume("shared-mem", "/a")]},
        {"cluster.volumes": [volume("my-shared-mem", "/a")]},
        "cluster.volumes[0].name",
        "name: my-shared-mem",
    ),
    *(
        Case(
            "volumes-are-free",
            {"cluster.volumes": [volume("a", path)]},
            {"cluster.volumes": [volume("a", "/mnt/a")]},
            "cluster.volumes[0].mountPath",
            "mountPath: /mnt/a",
        )
        for path in (
            *MOUNT_PATHS,
            *SYSTEM_PATHS,
            *("/checkpoints/deep", "/etc/rlhf/files", "/home", "/opt", "/opt/rlhf/venv", "/usr/lib/python3", "/var"),
        )
    ),
    *(
        Case(
            "volumes-are-free",
            {"cluster.volumes": [volume("a", "/etc")]},
            {"cluster.volumes": [volume("a", path)]},
            "cluster.volumes[0].mountPath",
            "mountPath: /mnt/a",
        )
        for path in (
            "/data",
            "/opt/models",
            "/home/me",
            "/checkpoints-of-others",
            "/var/lib/models",
            "/etcetera",
            "/tmp.d",
            "/..data",
            "/...",
        )
    ),
    Case(
        "checkpoint-volume-is-one",
        {"checkpoint.volume": {}},
        {"checkpoint.volume": {"existingClaim": "ckpt"}},
        "checkpoint.volume",
        "{create: {size: 100Gi}}",
    ),
    Case(
        "checkpoint-volume-is-one",
        {"checkpoint.volume": {"existingClaim": "ckpt", "create": {"size": "1Gi"}}},
        {"checkpoint.volume": {"create": {"size": "1Gi"}}},
        "checkpoint.volume",
        "{existingClaim: NAME}",
    ),
    *(
        Case(
            "claim-size-is-whole",
            {"checkpoint.volume": {"create": {"size": size}}},
            {"checkpoint.volume": {"create": {"size": neighbour}}},
            "checkpoint.volume.create.size",
            "size: 100Gi",
        )
        for size, neighbour in (("1m", "1000m"), ("8Ei", "7Ei"), ("99999999999999999999Gi", "1.5Gi"), ("0.3", "0.5Ki"))
    ),
    *(
        Case("relative-paths-stay-below", fault, neighbour, where, nearest, context=ON_CLUSTER)
        for fault, neighbour, where, nearest in (
            (
                {"rl.reward.sources": [{"function": {"file": "../../etc/passwd"}}]},
                {"rl.reward.sources": [{"function": {"file": "a/../reward.py"}}]},
                "rl.reward.sources[0].function.file",
                "passwd in cluster.files",
            ),
            (
                {"data.datasets": [{"path": "a/../../b.jsonl"}]},
                {"data.datasets": [{"path": "./b.jsonl"}]},
                "data.datasets[0].path",
                "b.jsonl in cluster.files",
            ),
            ({"models.actor.path": ".."}, {"models.actor.path": "a/b"}, "models.actor.path", "NAME in cluster.files"),
        )
    ),
    Case("checkpoint-volume-is-there", {"checkpoint": {}}, {}, "checkpoint.volume", "{create: {size: 100Gi}}", context=ON_CLUSTER),
    Case(
        "checkpoint-volume-is-shared",
        TWO_PODS,
        {"placement.actor": {"gpusPerNode": 2}, "placement.rollout": {"engines": 2}},
        "checkpoint.volume.create.accessModes",
        "[ReadWriteMany]",
        context=CREATE_RWO,
    ),
    Case(
        "file-items-differ",
        {"cluster.files": {"configMap": "f", "items": [{"key": "a", "path": "x"}, {"key": "b", "path": "x"}]}},
        {"cluster.files": {"configMap": "f", "items": [{"key": "a", "path": "x/a"}, {"key": "b", "path": "x/b"}]}},
        "cluster.files.items[1].path",
        "path: b",
    ),
    Case(
        "file-items-differ",
        {"cluster.files": {"configMap": "f", "items": [{"key": "a", "path": "x/../../a"}]}},
        {"cluster.files": {"configMap": "f", "items": [{"key": "a", "path": "x/..a"}]}},
        "cluster.files.items[0].path",
        "path: a",
    ),
    Case(
        "relative-paths-need-files",
        {"cluster": {}, "data.datasets.0.path": "/data/train.jsonl"},
        {"cluster": {}, "data.datasets.0.path": "openai/gsm8k", "rl.reward.sources.0.function.file": "/code/reward.py"},
        "rl.reward.sources[0].function.file",
        "rlhf files FILE",
        context=ON_CLUSTER,
    ),
    Case(
        "relative-paths-need-files",
        {"evaluation": {"datasets": [{"path": "./held-out"}]}},
        {"evaluation": {"datasets": [{"path": "/data/held-out"}]}},
        "evaluation.datasets[0].path",
        "cluster.volumes",
        context={
            **ON_CLUSTER,
            "cluster": {},
            "data.datasets.0.path": "/data/train.jsonl",
            "rl.reward.sources.0.function.file": "/code/reward.py",
        },
    ),
    *(
        Case("relative-paths-need-files", fault, neighbour, where, nearest, context=ON_CLUSTER)
        for fault, neighbour, where, nearest in (
            ({"data.datasets.0.path": "d/a.jsonl"}, {"data.datasets.0.path": "./a.jsonl"}, "data.datasets[0].path", "path: d/a.jsonl"),
            ({"data.datasets.0.path": "./rows"}, {"data.datasets.0.path": "owner/rows"}, "data.datasets[0].path", "path: rows/NAME"),
            ({"models.actor.path": "./model"}, {"models.actor.path": "."}, "models.actor.path", "path: model/NAME"),
            ({"models.actor.path": "./model"}, {"models.actor.path": "/team/model"}, "models.actor.path", "cluster.volumes"),
            (
                {"models.reference": {"path": "./start"}},
                {"models.reference": {"path": "start"}},
                "models.reference.path",
                "path: start/NAME",
            ),
            (
                {"rl.reward.sources.0.function.file": "code/reward.py"},
                {"rl.reward.sources.0.function.file": "code/../reward.py"},
                "rl.reward.sources[0].function.file",
                "path: code/reward.py",
            ),
        )
    ),
    *(
        Case(
            "relative-paths-need-files",
            fault,
            neighbour,
            where,
            nearest,
            context={**ON_CLUSTER, "cluster": WITH_ITEMS, "data.datasets.0.path": "d/train.jsonl"},
        )
        for fault, neighbour, where, nearest in (
            ({"data.datasets.0.path": "d/a.jsonl"}, {"data.datasets.0.path": "./d/train.jsonl"}, "data.datasets[0].path", "d/a.jsonl"),
            ({"data.datasets.0.path": "train.jsonl"}, {}, "data.datasets[0].path", "path: train.jsonl"),
            ({"data.datasets.0.path": "./m"}, {"data.datasets.0.path": "./d"}, "data.datasets[0].path", "path: m/NAME"),
            ({"models.actor.path": "./mode"}, {"models.actor.path": "./model"}, "models.actor.path", "path: mode/NAME"),
            (
                {"models.actor.path": "./model/config.json"},
                {"models.actor.path": "model/config.json"},
                "models.actor.path",
                "cluster.volumes",
            ),
            (
                {"rl.reward.sources.0.function.file": "reward.txt"},
                {"rl.reward.sources.0.function.file": "./reward.py"},
                "rl.reward.sources[0].function.file",
                "path: reward.txt",
            ),
        )
    ),
    # pods
    Case(
        "image-needs-ray-version",
        {"cluster.image": "x"},
        {"cluster.image": "x", "cluster.rayVersion": "2.60.0"},
        "cluster.rayVersion",
        "ray --version",
    ),
    Case(
        "image-needs-ray-version",
        {"cluster.rayVersion": "2.60.0"},
        {"cluster.rayVersion": "2.60.0", "cluster.image": "x"},
        "cluster.rayVersion",
        "no rayVersion",
    ),
    Case(
        "file-items-differ",
        {"cluster.files": {"configMap": "f", "items": [{"key": "a", "path": "x"}, {"key": "b", "path": "x/b"}]}},
        {"cluster.files": {"configMap": "f", "items": [{"key": "a", "path": "x"}, {"key": "b", "path": "xx/b"}]}},
        "cluster.files.items[0].path",
        "path: x-file",
    ),
    Case(
        "file-items-differ",
        {"cluster.files": {"configMap": "f", "items": [{"key": "a", "path": "x" * 256}]}},
        {"cluster.files": {"configMap": "f", "items": [{"key": "a", "path": "x" * 127 + "/" + "x" * 127}]}},
        "cluster.files.items[0].path",
        "path: a",
    ),
    Case(
        "file-items-differ",
        {"cluster.files": {"configMap": "f", "items": [{"key": "a", "path": "x\0"}]}},
        {"cluster.files": {"configMap": "f", "items": [{"key": "a", "path": "ü x"}]}},
        "cluster.files.items[0].path",
        "path: a",
    ),
    Case(
        "resources-are-of-kubernetes",
        {"cluster.workers": {"resources": {"requests": {"mem": "1Gi"}}}},
        {"cluster.workers": {"resources": {"requests": {"memory": "1Gi", "hugepages-2Mi": "2Mi", "example.com/fpga": 1}}}},
        "cluster.workers.resources.requests.mem",
        "memory",
    ),
    Case(
        "resources-are-of-kubernetes",
        {"cluster.gpuResource": "gpu"},
        {"cluster.gpuResource": "amd.com/gpu"},
        "cluster.gpuResource",
        "nvidia.com/gpu",
    ),
    Case(
        "tolerations-are-whole",
        {"cluster.head": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}},
        {"cluster.head": {"tolerations": [{"key": "a", "value": "b"}, {"operator": "Exists"}]}},
        "cluster.head.tolerations[0].value",
        "operator: Equal",
    ),
    Case(
        "tolerations-are-whole",
        {"cluster.head": {"tolerations": [{"value": "b"}]}},
        {"cluster.head": {"tolerations": [{"operator": "Exists", "effect": "NoSchedule"}]}},
        "cluster.head.tolerations[0].key",
        "operator: Exists",
    ),
    Case(
        "tolerations-are-whole",
        {"cluster.workers": {"tolerations": [{"key": "a", "tolerationSeconds": 5}]}},
        {"cluster.workers": {"tolerations": [{"key": "a", "effect": "NoExecute", "tolerationSeconds": 5}]}},
        "cluster.workers.tolerations[0].tolerationSeconds",
        "effect: NoExecute",
    ),
    Case(
        "sizes-are-above-zero",
        {"cluster.head": memory("0Gi")},
        {"cluster.head": {"resources": {"requests": {"memory": 0}, "limits": {"memory": "1"}}}},
        "cluster.head.resources.limits.memory",
        "no limit of memory",
    ),
    Case(
        "sizes-are-above-zero",
        {"checkpoint.volume": {"create": {"size": "0.0"}}},
        {"checkpoint.volume": {"create": {"size": "1Gi"}}},
        "checkpoint.volume.create.size",
        "size: 100Gi",
    ),
    Case("sizes-are-above-zero", {"cluster.shmSize": 0}, {"cluster.shmSize": 1}, "cluster.shmSize", "no shmSize"),
    Case(
        "shm-within-memory",
        {"cluster.workers": memory("8Gi")},
        {"cluster.workers": memory("16Gi")},
        "cluster.shmSize",
        "shmSize: 8Gi",
        context={"cluster.shmSize": "16Gi"},
    ),
    Case(
        "shm-within-memory",
        {"cluster.workers": memory("4000M")},
        {"cluster.workers": memory("5G"), "cluster.head": memory("1G")},
        "cluster.shmSize",
        "shmSize: 4000M",
        context={"cluster.shmSize": "4Gi"},
    ),
    Case(
        "requests-within-limits",
        {"cluster.workers": {"resources": {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}}},
        {"cluster.workers": {"resources": {"requests": {"cpu": 2}, "limits": {"cpu": "2000m"}}}},
        "cluster.workers.resources.requests.cpu",
        "cpu: 1500m",
    ),
    Case(
        "devices-come-from-their-fields",
        {"cluster.workers": {"resources": {"limits": {"nvidia.com/gpu": 8}}}},
        {"cluster.workers": {"resources": {"limits": {"cpu": 8}}}},
        "cluster.workers.resources.limits.nvidia.com/gpu",
        "no nvidia.com/gpu here",
    ),
    Case(
        "devices-come-from-their-fields",
        {"cluster.head": {"resources": {"requests": {"rdma/ib": 1}}}},
        {"cluster.head": {"resources": {"requests": {"memory": "8Gi"}}}},
        "cluster.head.resources.requests.rdma/ib",
        "no rdma/ib here",
        context={"cluster.network": {"infiniband": {"resource": {"rdma/ib": 1}}}},
    ),
    Case(
        "rdma-needs-resource",
        {"cluster.network": {"requireRdma": True, "infiniband": {"hca": "mlx5_0"}}},
        {"cluster.network": {"requireRdma": True, "infiniband": {"resource": {"rdma/ib": 1}}}},
        "cluster.network.requireRdma",
        "requireRdma: false",
    ),
    *(
        Case("env-is-free", {"cluster.env": [{"name": name, "value": "x"}]}, {}, "cluster.env[0].name", "another name")
        for name in ("RAY_AUTH_TOKEN", "RLHF_JOB_NAME", "KUBERNETES_SERVICE_HOST", "CUDA_VISIBLE_DEVICES", "PATH")
    ),
    Case(
        "env-is-free",
        {"cluster.secretEnv": [{"name": "RAY_AUTH_TOKEN", "secretKeyRef": {"name": "s", "key": "k"}}]},
        {"cluster.secretEnv": [{"name": "HF_TOKEN", "secretKeyRef": {"name": "s", "key": "k"}}]},
        "cluster.secretEnv[0].name",
        "another name",
    ),
    Case(
        "env-names-differ",
        {"cluster.secretEnv": [{"name": "A", "secretKeyRef": {"name": "s", "key": "k"}}]},
        {"cluster.secretEnv": [{"name": "B", "secretKeyRef": {"name": "s", "key": "k"}}]},
        "cluster.secretEnv[0].name",
        "one of the two",
        context={"cluster.env": [{"name": "A", "value": "x"}]},
    ),
    Case(
        "hf-home-is-the-cache",
        {"cluster.volumes": [volume("hf-cache", "/cache")]},
        {"cluster.volumes": [volume("cache", "/cache")]},
        "cluster.env[0].name",
        "no HF_HOME",
        context={"cluster.env": [{"name": "HF_HOME", "value": "/cache"}]},
    ),
    Case(
        "fabric-env-has-its-place",
        {"cluster.env": [{"name": "NCCL_DEBUG", "value": "INFO"}]},
        {"cluster.network": {"env": {"NCCL_DEBUG": "INFO"}}},
        "cluster.env[0].name",
        "cluster.network.env",
    ),
    Case(
        "fabric-env-has-its-place",
        {"cluster.network": {"env": {"OMP_NUM_THREADS": "4"}}},
        {"cluster.env": [{"name": "OMP_NUM_THREADS", "value": "4"}]},
        "cluster.network.env.OMP_NUM_THREADS",
        "cluster.env",
    ),
    Case("keys-are-free", {"cluster.labels": {"rlhf.dev/job": "x"}}, {}, "cluster.labels.rlhf.dev/job", "another key"),
    Case(
        "keys-are-free",
        {"cluster.labels": {"kueue.x-k8s.io/queue-name": "q"}},
        {"cluster.queueName": "q"},
        "cluster.labels.kueue.x-k8s.io/queue-name",
        "cluster.queueName",
    ),
    Case(
        "keys-are-free",
        {"cluster.annotations": {"ray.io/overwrite-container-cmd": "true"}},
        {"cluster.labels": {"ray.io/gang-scheduling-enabled": "true", "volcano.sh/queue-name": "q"}},
        "cluster.annotations.ray.io/overwrite-container-cmd",
        "another key",
    ),
    Case(
        "overlay-is-a-pod-template",
        {"cluster.podOverlay": {"hostAliases": []}},
        {"cluster.podOverlay": {"spec": {"hostAliases": []}}},
        "cluster.podOverlay.hostAliases",
        "podOverlay: {spec: {hostAliases: …}}",
    ),
    Case(
        "overlay-is-a-pod-template",
        {"cluster.podOverlay": {"metadata": {"name": "x"}}},
        {"cluster.podOverlay": {"metadata": {"labels": {"a": "b"}}}},
        "cluster.podOverlay.metadata.name",
        "labels and annotations only",
    ),
    Case(
        "pod-templates-have-their-shape",
        {"cluster.head": {"affinity": {"podAffinity": []}}},
        {"cluster.head": {"affinity": {"podAffinity": {}}}},
        "cluster.head.affinity.podAffinity",
        "podAffinity: {…}, a mapping",
    ),
    Case(
        "pod-templates-have-their-shape",
        {"cluster.workers": {"affinity": {"nodeAffinity": {REQUIRED: [{}]}}}},
        {"cluster.workers": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{}]}}}}},
        "cluster.workers.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
        "a mapping",
    ),
    Case(
        "pod-templates-have-their-shape",
        {"cluster.podOverlay": {"spec": {"affinity": {"podAffinity": {REQUIRED: [1]}}}}},
        {"cluster.podOverlay": {"spec": {"affinity": {"podAffinity": None}}}},
        "cluster.podOverlay.spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]",
        "a mapping",
    ),
    Case(
        "pod-templates-have-their-shape",
        {"cluster.podOverlay": {"metadata": {"annotations": ["a"]}}},
        {"cluster.podOverlay": {"metadata": {"annotations": {"a": "b"}}}},
        "cluster.podOverlay.metadata.annotations",
        "annotations: {…}, a mapping",
    ),
    Case(
        "pod-templates-have-their-shape",
        {"cluster.podOverlay": {"spec": {"volumes": [{"name": "a", "projected": {"sources": 5}}]}}},
        {"cluster.podOverlay": {"spec": {"volumes": [{"name": "a", "projected": {"sources": []}}]}}},
        "cluster.podOverlay.spec.volumes[0].projected.sources",
        "sources: […], a list",
    ),
    Case(
        "pod-settings-are-small",
        {"cluster.podOverlay": {"spec": {"note": "x" * 70_000}}},
        {"cluster.podOverlay": {"spec": {"note": "x" * 60_000}}},
        "cluster.podOverlay",
        "a ConfigMap as cluster.files",
    ),
    Case(
        "shm-sync-stays-in-a-pod",
        {"placement": {"accelerator": "cpu", "actor": {"nodes": 2}, "rollout": {"engines": 2, "weightSync": "shm"}}},
        {"placement": {"accelerator": "cpu", "actor": {"gpusPerNode": 2}, "rollout": {"engines": 2, "weightSync": "shm"}}},
        "placement.rollout.weightSync",
        "weightSync: auto",
        context=ON_CLUSTER,
    ),
]


def _reported(job: RLHFJob, *, cluster: bool) -> list[Any]:
    return (rules.check_cluster(job) if cluster else rules.check(job)) + rules.warnings(job)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}:{case.field.removeprefix('cluster.')}")
def test_rule_names_the_fault_and_accepts_its_neighbour(case: Case, valid_job: ValidJob) -> None:
    rule = next(each for each in RULES if each.id == case.rule)

    found = _reported(valid_job({**case.context, **case.fault}), cluster=rule.cluster)
    assert [(each.field, each.rule.startswith(rule.text)) for each in found] == [(f"spec.{case.field}", True)]
    assert case.nearest in (found[0].nearest or "")

    neighbour = valid_job({**case.context, **case.neighbour})
    assert _reported(neighbour, cluster=rule.cluster) == []
    assert _reported(derive(neighbour), cluster=rule.cluster) == []


def test_every_rule_about_a_cluster_has_a_case() -> None:
    of_pods = (rules.pods.__name__, rules.templates.__name__, rules.volumes.__name__)
    assert {rule.id for rule in RULES if rule.cluster or rule.check.__module__ in of_pods} == {case.rule for case in CASES}


def test_local_run_needs_neither_volume_nor_files(valid_job: ValidJob) -> None:
    job = valid_job({})
    assert rules.check(job) == []
    assert {each.field for each in rules.check_cluster(job)} == {
        "spec.checkpoint.volume",
        "spec.rl.reward.sources[0].function.file",
        "spec.data.datasets[0].path",
    }


def test_automatic_accelerator_means_gpu_on_a_cluster(valid_job: ValidJob) -> None:
    job = valid_job({**ON_CLUSTER, "placement": {"colocate": "none", "rollout": {"weightSync": "gloo"}}})
    assert rules.check(job) == []
    assert [each.field for each in rules.check_cluster(job)] == ["spec.placement.rollout.weightSync"]


@pytest.mark.parametrize(
    ("placement", "pods"),
    [
        ({}, 1),
        ({"actor": {"nodes": 2}, "rollout": {"engines": 2}}, 2),
        ({"colocate": "actorReference"}, 2),
        ({"colocate": "none", "rollout": {"engines": 2}}, 4),
    ],
)
def test_rc35_volume_of_one_node_is_refused_for_workers_on_several(valid_job: ValidJob, placement: Changes, pods: int) -> None:
    faults = rules.check_cluster(valid_job({**ON_CLUSTER, **CREATE_RWO, "placement": placement}))
    assert [fault.field for fault in faults] == (["spec.checkpoint.volume.create.accessModes"] if pods > 1 else [])
    assert all(f"({pods} worker pods here)" in fault.rule for fault in faults)


@pytest.mark.parametrize(
    ("text", "number"),
    [(3, 3), ("3", 3), ("500m", 0.5), ("1k", 1000), ("1Ki", 1024), ("1.5Gi", 1.5 * 2**30), ("2G", 2e9), ("1E", 10**18), ("1Ei", 2**60)],
)
def test_quantity_is_read_as_kubernetes_does(text: str | int, number: float) -> None:
    assert parse(text) == number
