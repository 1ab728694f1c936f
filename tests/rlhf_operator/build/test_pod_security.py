"""Pod templates against the Pod Security Standards (Kubernetes 1.36), each control as the standard's page states it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlhf_api.spec import RLHFJob
from rlhf_operator.build import ray_cluster
from rlhf_operator.settings import OperatorSettings

MakeJob = Callable[..., RLHFJob]

RESTRICTED_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
SAFE_PROFILES = {"RuntimeDefault", "Localhost"}


def restricted_violations(template: dict[str, Any]) -> Iterator[str]:
    """What the admission plug-in would say at level restricted, which contains baseline."""
    spec = template["spec"]
    pod = spec.get("securityContext", {})
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield field
    if pod.get("sysctls"):
        yield "sysctls"
    for volume in spec.get("volumes", []):
        if not set(volume) - {"name"} <= RESTRICTED_VOLUMES:
            yield f"volume {volume['name']}"
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        security = container.get("securityContext", {})
        capabilities = security.get("capabilities", {})
        if security.get("privileged"):
            yield "privileged"
        if security.get("allowPrivilegeEscalation") is not False:
            yield "allowPrivilegeEscalation"
        if "ALL" not in capabilities.get("drop", []):
            yield "capabilities.drop"
        if not set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"}:
            yield "capabilities.add"
        if not security.get("runAsNonRoot", pod.get("runAsNonRoot")):
            yield "runAsNonRoot"
        if security.get("runAsUser", pod.get("runAsUser")) == 0:
            yield "runAsUser"
        profile = security.get("seccompProfile", pod.get("seccompProfile", {}))
        if profile.get("type") not in SAFE_PROFILES:
            yield "seccompProfile"
        if security.get("procMount", "Default") != "Default":
            yield "procMount"
        if any(port.get("hostPort") for port in container.get("ports", [])):
            yield "hostPort"


def templates(job: RLHFJob, settings: OperatorSettings) -> list[dict[str, Any]]:
    cluster = ray_cluster(job, settings)
    assert isinstance(cluster, dict)
    spec = cluster["spec"]
    return [spec["headGroupSpec"]["template"], *(group["template"] for group in spec["workerGroupSpecs"])]


@pytest.mark.parametrize("which", ["tiny", "separate"])
def test_pods_without_adapters_meet_the_restricted_standard(which: str, make_job: MakeJob, settings: OperatorSettings) -> None:
    for template in templates(make_job(which), settings):
        assert list(restricted_violations(template)) == []


def test_adapters_cost_one_capability_on_workers_alone(make_job: MakeJob, settings: OperatorSettings) -> None:
    head, worker = templates(make_job("infiniband"), settings)
    assert list(restricted_violations(head)) == []
    assert list(restricted_violations(worker)) == ["capabilities.add"]
    assert worker["spec"]["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}


def test_pods_carry_no_kubernetes_credentials(make_job: MakeJob, settings: OperatorSettings) -> None:
    for template in templates(make_job("infiniband"), settings):
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert not [volume for volume in spec["volumes"] if "projected" in volume or "secret" in volume]


def test_the_check_itself_sees_a_violation(make_job: MakeJob, settings: OperatorSettings) -> None:
    template = templates(make_job(), settings)[0]
    template["spec"] |= {"hostNetwork": True, "volumes": [{"name": "x", "hostPath": {"path": "/"}}]}
    template["spec"]["securityContext"] = {"runAsUser": 0}
    assert set(restricted_violations(template)) == {"hostNetwork", "volume x", "runAsNonRoot", "runAsUser", "seccompProfile"}
