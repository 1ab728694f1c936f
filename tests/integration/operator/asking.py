"""What tests ask the API server about a job."""

from __future__ import annotations

from typing import Any

from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from e2e.kit.api import Api
from e2e.kit.waiting import eventually


def status(api: Api, name: str = "tiny") -> dict[str, Any]:
    found = api.get("RLHFJob", name)
    return (found or {}).get("status") or {}


def phase(api: Api, name: str = "tiny") -> str:
    return str(status(api, name).get("phase", ""))


def reaches(api: Api, wanted: str, name: str = "tiny", seconds: float = 60) -> dict[str, Any]:
    eventually(f"{name} to be {wanted}", lambda: phase(api, name) == wanted, seconds=seconds, every=0.1)
    return status(api, name)


def children(api: Api, name: str = "tiny") -> list[str]:
    kinds = {"RayCluster": "", "ConfigMap": "-config", "Secret": "-ray-token", "PersistentVolumeClaim": "-ckpt", "NetworkPolicy": ""}
    return [kind for kind, suffix in kinds.items() if api.get(kind, f"{name}{suffix}") is not None]


def answers(api: Api) -> bool:
    try:
        api.get("RLHFJob", "tiny")
    except (ApiException, HTTPError):
        return False
    return True
