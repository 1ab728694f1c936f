"""Builders of the objects that tests put into a cluster. Each returns a plain dict; change it as the test needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

RAY_VERSION = "2.60.0"

RESTRICTED = {
    "runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"},
}
LOCKED_DOWN = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def pod(name: str, image: str, command: Sequence[str], *, labels: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod of one container that any Pod Security level accepts. Further keyword arguments go into its spec."""
    container: dict[str, Any] = {
        "name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": list(command), "securityContext": LOCKED_DOWN,
        "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}},
    }
    container.update(spec.pop("container", {}))
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {"terminationGracePeriodSeconds": 2, "securityContext": RESTRICTED, "containers": [container], **spec},
    }


def service(name: str, selector: Mapping[str, str], port: int, *, headless: bool = False) -> dict[str, Any]:
    spec: dict[str, Any] = {"selector": dict(selector), "ports": [{"port": port}]}
    if headless:
        spec["clusterIP"] = "None"
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def claim(name: str, size: str = "1Gi", *, storage_class: str | None = None, modes: Sequence[str] = ("ReadWriteOnce",)) -> dict[str, Any]:
    spec: dict[str, Any] = {"accessModes": list(modes), "resources": {"requests": {"storage": size}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def config_map(name: str, data: Mapping[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": dict(data)}


def secret(name: str, data: Mapping[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": dict(data)}


def ray_cluster(name: str, image: str, *, workers: int = 1, token_secret: str | None = None, memory: str = "3Gi") -> dict[str, Any]:
    """Head without CPUs for actors and one group of workers. ``token_secret``: Ray's token mode, key ``auth_token``."""
    env: list[dict[str, Any]] = []
    if token_secret:
        env = [
            {"name": "RAY_AUTH_MODE", "value": "token"},
            {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": {"name": token_secret, "key": "auth_token"}}},
        ]

    def template(container: str) -> dict[str, Any]:
        return {
            "spec": {
                "terminationGracePeriodSeconds": 5, "securityContext": RESTRICTED,
                "containers": [{
                    "name": container, "image": image, "imagePullPolicy": "IfNotPresent", "env": env, "securityContext": LOCKED_DOWN,
                    "resources": {"requests": {"cpu": "200m", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": memory}},
                }],
            },
        }

    common = {"object-store-memory": "200000000"}
    return {
        "apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": name},
        "spec": {
            "rayVersion": RAY_VERSION,
            "headGroupSpec": {"rayStartParams": {"num-cpus": "0", **common}, "template": template("ray-head")},
            "workerGroupSpecs": [{
                "groupName": "workers", "replicas": workers, "minReplicas": workers, "maxReplicas": workers,
                "rayStartParams": {"num-cpus": "4", **common}, "template": template("ray-worker"),
            }],
        },
    }
