"""Values that the chart is rendered with, and what tests ask of the objects that come out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from e2e.kit.helm import CHART

REPOSITORY = CHART.parents[1]
Object = dict[str, Any]
Render = Callable[[str], list[Object]]
Rights = set[tuple[str, str, str]]

KEY = "0123456789abcdef0123456789abcdef"
VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "release": {"watch": {"scope": "release"}, "crds": {"enabled": False}},
    "namespaces": {"watch": {"scope": "namespaces", "namespaces": ["team-a", "team-b"]}, "replicas": 2},
    "proxy": {"headAccess": "proxy", "networkPolicy": {"enabled": True}, "kueue": {"enabled": True}, "rbac": {"aggregate": False}},
    "budgets": {"jobs": {"podDisruptionBudget": True}},
    "own": {
        "image": {"repository": "r.example:5000/op", "digest": "sha256:" + "a" * 64},
        "imagePullSecrets": [{"name": "registry"}],
        "trainer": {"image": "r.example:5000/trainer:2", "rayVersion": "2.61.1"},
        "tokenKey": {"existingSecret": "ours"},
        "serviceAccount": {"create": False, "name": "given"},
        "crds": {"keep": False},
    },
    "everything": {
        "replicas": 3,
        "concurrentReconciles": 16,
        "clusterDomain": "k8s.example",
        "logLevel": "debug",
        "logFormat": "text",
        "env": [{"name": "RLHF_POLL_SECONDS", "value": "5"}],
        "serviceAccount": {"annotations": {"a/b": "c"}},
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
        "podAnnotations": {"x": "y"},
        "podLabels": {"team": "ml"},
        "jobs": {"metricsNamespace": ""},
        "networkPolicy": {"enabled": True, "apiServerPorts": [8443]},
        "metrics": {
            "serviceMonitor": {"enabled": True, "labels": {"l": "m"}},
            "jobsPodMonitor": {"enabled": True, "labels": {"l": "m"}},
            "prometheusRule": {"enabled": True, "labels": {"l": "m"}},
            "dashboard": {"enabled": True, "labels": {"l": "m"}},
        },
    },
}


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [each for each in objects if each["kind"] == kind]


def only(objects: list[Object], kind: str) -> Object:
    (found,) = of_kind(objects, kind)
    return found


def identity(each: Object) -> tuple[str, str, str]:
    return each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]


def operator_container(objects: list[Object]) -> Object:
    found: Object = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return found


def environment(container: Object, key: Path) -> dict[str, str]:
    """Variables as the kubelet would set them."""
    fields = {"metadata.name": "pod-1", "metadata.namespace": "sys"}
    found = {
        each["name"]: each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]] for each in container["env"]
    }
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "token-key"]
    assert found["RLHF_TOKEN_KEY_FILE"] == f"{mount['mountPath']}/token_key"
    return {**found, "RLHF_TOKEN_KEY_FILE": str(key)}


def rights(role: Object) -> Rights:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
