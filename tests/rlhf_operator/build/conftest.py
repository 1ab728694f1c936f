"""Jobs and settings that builders are tried with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from rlhf_api.resolve import derive, resolve
from rlhf_api.spec import RLHFJob
from rlhf_operator.settings import OperatorSettings

UID = "6f1d3b52-0c5e-4b8e-9d3c-2a8f4f2f9a10"

TINY: dict[str, Any] = {
    "rl": {
        "algorithm": "grpo",
        "rollout": {"promptsPerStep": 16, "maxNewTokens": 16},
        "reward": {"sources": [{"function": {"file": "reward.py"}}]},
    },
    "models": {"actor": {"path": "/models/actor"}},
    "data": {"datasets": [{"path": "train.jsonl"}], "maxLength": 32},
    "training": {"globalBatchSize": 32, "microBatchSize": 4},
    "placement": {"accelerator": "cpu"},
    "cluster": {
        "files": {"configMap": "tiny-files", "items": [{"key": "train.jsonl", "path": "data/train.jsonl"}]},
        "volumes": [{"name": "models", "mountPath": "/models", "readOnly": True, "existingClaim": "models"}],
    },
    "checkpoint": {"volume": {"existingClaim": "runs"}},
}
"""Colocated on CPU: one actor rank and one engine take turns in one worker pod."""

INFINIBAND: dict[str, Any] = {
    "rl": {
        "algorithm": "grpo",
        "rollout": {"promptsPerStep": 128, "maxNewTokens": 1024},
        "reward": {"sources": [{"function": {"file": "reward.py"}}]},
    },
    "models": {"actor": {"path": "meta-llama/Llama-3.1-8B-Instruct"}},
    "data": {"datasets": [{"path": "gsm8k.jsonl"}], "maxLength": 2048},
    "training": {"globalBatchSize": 1024, "microBatchSize": 4},
    "placement": {
        "colocate": "all",
        "actor": {"nodes": 2, "gpusPerNode": 8},
        "rollout": {"engines": 8, "tensorParallel": 2},
    },
    "cluster": {
        "image": "registry.example/trainer:0.2",
        "rayVersion": "2.61.0",
        "imagePullPolicy": "Always",
        "imagePullSecrets": [{"name": "registry"}],
        "serviceAccountName": "training",
        "securityContext": {"runAsUser": 2000, "runAsGroup": 2000, "fsGroup": 3000, "supplementalGroups": [4000]},
        "volumes": [{"name": "hf-cache", "mountPath": "/cache", "existingClaim": "cache"}],
        "head": {"resources": {"requests": {"cpu": 4}, "limits": {"memory": "64Gi"}}, "nodeSelector": {"pool": "cpu"}},
        "workers": {
            "resources": {"requests": {"cpu": 64, "memory": "512Gi"}, "limits": {"memory": "1Ti"}},
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            "tolerations": [{"key": "dedicated", "value": "training", "effect": "NoSchedule"}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r1", "r2"]}]}]
                    }
                }
            },
            "priorityClassName": "training-high",
        },
        "network": {
            "infiniband": {
                "hca": "mlx5_0,mlx5_1",
                "socketInterface": "ib0",
                "resource": {"rdma/hca_shared_devices_a": 1},
                "gidIndex": 3,
                "trafficClass": 106,
                "serviceLevel": 0,
                "networks": "ib-a,ib-b",
            },
            "requireRdma": True,
            "env": {"NCCL_DEBUG": "INFO", "NCCL_NET_GDR_LEVEL": "PHB"},
        },
        "shmSize": "64Gi",
        "env": [{"name": "HF_HUB_ENABLE_HF_TRANSFER", "value": "1"}],
        "secretEnv": [{"name": "HF_TOKEN", "secretKeyRef": {"name": "hf", "key": "token"}}],
        "files": {"configMap": "gsm8k-reward"},
        "queueName": "research",
        "labels": {"team": "rl", "ray.io/priority-class-name": "training-high", "volcano.sh/queue-name": "gpu"},
        "annotations": {"kueue.x-k8s.io/podset-preferred-topology": "cloud.provider.com/topology-rack"},
        "terminationGracePeriodSeconds": 300,
    },
    "checkpoint": {"volume": {"create": {"size": "2Ti", "storageClassName": "fast"}}},
}
"""Two nodes of eight GPUs with InfiniBand; every field of spec.cluster is set."""

SEPARATE: dict[str, Any] = {
    **INFINIBAND,
    "placement": {
        "colocate": "none",
        "actor": {"nodes": 2, "gpusPerNode": 4},
        "rollout": {"engines": 4, "tensorParallel": 2},
    },
    "cluster": {"gpuResource": "amd.com/gpu"},
    "checkpoint": {"volume": {"create": {"size": "1Ti", "retain": False}}},
}
"""Actor, reference and engines on GPUs of their own, no field of spec.cluster but the GPU's name."""

SPECS = {"tiny": TINY, "infiniband": INFINIBAND, "separate": SEPARATE}

MakeJob = Callable[..., RLHFJob]


def _set(node: dict[str, Any], path: str, value: Any) -> None:
    first, _, rest = path.partition(".")
    if rest:
        _set(node.setdefault(first, {}), rest, value)
    else:
        node[first] = value


@pytest.fixture
def make_job() -> MakeJob:
    """``make_job("tiny", {"cluster.shmSize": "1Gi"}, name=…)``: a resolved job as the operator sees it."""

    def make(which: str = "tiny", changes: Mapping[str, Any] | None = None, name: str = "example") -> RLHFJob:
        spec = copy.deepcopy(SPECS[which])
        for path, value in (changes or {}).items():
            _set(spec, path, copy.deepcopy(value))
        metadata = {"name": name, "namespace": "team", "uid": UID, "generation": 1, "annotations": {"note": "kept by kubectl"}}
        raw = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": metadata, "spec": spec}
        return derive(RLHFJob.model_validate(resolve(raw), by_alias=True, by_name=False))

    return make


@pytest.fixture
def settings() -> OperatorSettings:
    return OperatorSettings(
        namespace="rlhf-system",
        pod_name="rlhf-operator-0",
        default_image="ghcr.io/example/rlhf-trainer:0.1",
        default_ray_version="2.60.0",
        token_key=b"0123456789abcdef0123456789abcdef",
        metrics_from={"kubernetes.io/metadata.name": "monitoring"},
    )
