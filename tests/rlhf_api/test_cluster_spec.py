"""``spec.cluster``, ``spec.lifecycle``, the checkpoint volume: what the models take, refuse, and give back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from rlhf_api import manifest
from rlhf_api.resolve import to_raw
from rlhf_api.spec import ClusterSpec, LifecycleSpec, RLHFJob

Changes = Mapping[str, Any]
FULL: dict[str, Any] = {
    "image": "ghcr.io/example/rlhf-trainer:0.1",
    "rayVersion": "2.60.0",
    "imagePullSecrets": [{"name": "registry"}],
    "securityContext": {"runAsUser": 1000, "fsGroup": 1000, "supplementalGroups": [2000]},
    "volumes": [
        {"name": "models", "mountPath": "/models", "readOnly": True, "existingClaim": "models"},
        {"name": "hf-cache", "mountPath": "/cache", "existingClaim": "cache"},
    ],
    "head": {"resources": {"requests": {"cpu": 4, "memory": "16Gi"}, "limits": {"memory": "16Gi"}}, "priorityClassName": "high"},
    "workers": {
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
        "resources": {"requests": {"cpu": "32", "memory": "512Gi"}, "limits": {"memory": "512Gi"}},
    },
    "network": {
        "infiniband": {"hca": "mlx5_0", "socketInterface": "ib0", "resource": {"rdma/hca_shared_devices_a": 1}},
        "requireRdma": True,
        "env": {"NCCL_DEBUG": "INFO"},
    },
    "shmSize": "64Gi",
    "env": [{"name": "TOKENIZERS_PARALLELISM", "value": "false"}],
    "secretEnv": [{"name": "HF_TOKEN", "secretKeyRef": {"name": "hf", "key": "token"}}],
    "files": {"configMap": "gsm8k-reward", "items": [{"key": "train.jsonl", "path": "data/train.jsonl"}]},
    "queueName": "research",
    "labels": {"team": "rlhf"},
    "annotations": {"example.com/cost-centre": "42"},
    "podOverlay": {"spec": {"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["store"]}]}},
}


def test_every_field_survives_loading_and_printing(valid_job: Callable[[Changes], RLHFJob]) -> None:
    job = valid_job({"cluster": FULL})
    printed = to_raw(job.spec.cluster)
    assert ClusterSpec.model_validate(printed) == job.spec.cluster
    assert printed["workers"]["resources"]["requests"] == {"cpu": "32", "memory": "512Gi"}
    assert printed["podOverlay"] == FULL["podOverlay"]


def test_defaults_are_those_of_the_contract() -> None:
    assert to_raw(LifecycleSpec()) == {
        "backoffLimit": 0,
        "maxInfraRestarts": 10,
        "provisioningDeadlineSeconds": 1800,
        "progressDeadlineSeconds": 3600,
        "cleanupPolicy": {"onSuccess": "cluster", "onFailure": "workers"},
    }
    cluster = ClusterSpec()
    assert (cluster.gpu_resource, cluster.service_account_name, cluster.termination_grace_period_seconds) == (
        "nvidia.com/gpu",
        "default",
        120,
    )
    assert (cluster.security_context.run_as_user, cluster.security_context.fs_group, cluster.network.isolate) == (1000, 1000, True)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cluster.shmSize": "64 GB"}, "spec.cluster.shmSize"),
        ({"cluster.workers": {"resources": {"limits": {"memory": "64gb"}}}}, "spec.cluster.workers.resources.limits.memory"),
        ({"cluster.workers": {"resources": {"limits": {"cpu": 0.5}}}}, "spec.cluster.workers.resources.limits.cpu"),
        ({"cluster.securityContext": {"runAsUser": 0}}, "spec.cluster.securityContext.runAsUser"),
        ({"cluster.image": "an image"}, "spec.cluster.image"),
        ({"cluster.volumes": [{"name": "A", "mountPath": "/a", "existingClaim": "a"}]}, "spec.cluster.volumes[0].name"),
        ({"cluster.volumes": [{"name": "a", "mountPath": "a", "existingClaim": "a"}]}, "spec.cluster.volumes[0].mountPath"),
        ({"cluster.env": [{"name": "A B", "value": ""}]}, "spec.cluster.env[0].name"),
        ({"cluster.files": {"configMap": "Not_Valid"}}, "spec.cluster.files.configMap"),
        ({"lifecycle.backoffLimit": -1}, "spec.lifecycle.backoffLimit"),
        ({"lifecycle.cleanupPolicy": {"onSuccess": "all"}}, "spec.lifecycle.cleanupPolicy.onSuccess"),
        ({"suspend": "yes"}, "spec.suspend"),
    ],
)
def test_value_outside_of_its_form_is_refused_by_name(raw_job: Callable[[Changes], dict[str, Any]], changes: Changes, field: str) -> None:
    _, faults = manifest.validate(raw_job(changes))
    assert [fault.field for fault in faults] == [field]
