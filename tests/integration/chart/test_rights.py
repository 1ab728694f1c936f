"""The operator with the chart's own account and variables: what it asks the API server for, and what the chart lets it."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.kit.api import Api
from e2e.kit.helm import Helm
from e2e.kit.objects import config_map
from e2e.kit.waiting import eventually
from tests.integration.chart.recorder import Call, Recorder
from tests.integration.operator.conftest import OperatorProcess, job
from tests.integration.operator.standin import StandIn

RELEASE = "rlhf-operator"
Rights = set[tuple[str, str, str]]

UNSEEN: Rights = {
    # Asked for by an admission plug-in (OwnerReferencesPermissionEnforcement), not by a call.
    ("rlhf.dev", "rlhfjobs/finalizers", "update"),
}


@pytest.fixture
def recorder(kubeconfig: Path) -> Iterator[Recorder]:
    cluster = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    with Recorder(cluster["server"], authority) as found:
        yield found


@pytest.fixture
def volume(admin: Api, namespace: str) -> Iterator[None]:
    """Nothing provisions volumes here."""
    spec = {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "", "hostPath": {"path": "/tmp"},
        "claimRef": {"namespace": namespace, "name": "tiny-ckpt"},
    }  # fmt: skip
    admin.create({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": namespace}, "spec": spec})
    yield
    admin.delete("PersistentVolume", namespace)


def account_kubeconfig(admin: Api, namespace: str, server: str, folder: Path) -> Path:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    status, text = admin.http("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{RELEASE}/token", body)
    assert status == 201, text
    path = folder / "kubeconfig"
    context = {"cluster": "c", "user": "u", "namespace": namespace}
    path.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": json.loads(text)["status"]["token"]}}],
        "contexts": [{"name": "c", "context": context}],
    }))  # fmt: skip
    return path


def chart_variables(api: Api) -> dict[str, str]:
    deployment = api.get("Deployment", RELEASE)
    assert deployment is not None
    env = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    # The API server drops an empty value.
    return {each["name"]: each.get("value", "") for each in env if "valueFrom" not in each and each["name"] != "RLHF_TOKEN_KEY_FILE"}


def granted(admin: Api, namespace: str, kinds: tuple[tuple[str, str, str], ...]) -> Rights:
    """All rights of the roles, as the API server stores them: (kind, namespace, name)."""
    roles = [admin.get(kind, name, namespace=place) for kind, place, name in kinds]
    return {
        (group, resource, verb)
        for role in roles
        if role is not None
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def phase(api: Api, name: str) -> str:
    return str(((api.get("RLHFJob", name) or {}).get("status") or {}).get("phase", ""))


def reaches(api: Api, name: str, wanted: str) -> None:
    eventually(f"{name} to be {wanted}", lambda: phase(api, name) == wanted, seconds=45, every=0.1, last=lambda: api.get("RLHFJob", name))


def live_a_life(api: Api, standin: StandIn, recorder: Recorder) -> None:
    """A job through all that makes the operator call: creation, suspension, success, expiry; and one that finds its name taken."""
    namespace = api.namespace
    api.create(config_map("reward", {"reward.py": "def reward(sample): return 1.0"}))
    head = standin.head(namespace, "tiny")
    head.hold = True
    api.create(job())
    reaches(api, "tiny", "Running")
    collide_with_status(api, "tiny", recorder)
    for suspend, wanted in ((True, "Suspended"), (False, "Running")):
        api.patch("RLHFJob", "tiny", {"spec": {"suspend": suspend}})
        reaches(api, "tiny", wanted)
    head.end(head.posts[-1], "SUCCEEDED", 0)
    reaches(api, "tiny", "Succeeded")
    eventually("the RayCluster to go", lambda: api.get("RayCluster", "tiny") is None, seconds=30)
    api.patch("RLHFJob", "tiny", {"spec": {"lifecycle": {"ttlSecondsAfterFinished": 0}}})
    eventually("the job to expire", lambda: api.get("RLHFJob", "tiny") is None, seconds=30)

    template = {"spec": {"containers": [{"name": "ray", "image": "i"}]}}
    group = {"rayStartParams": {}, "template": template}
    api.create({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "taken"}, "spec": {"headGroupSpec": group}})
    api.create(job("taken", checkpoint={"volume": {"existingClaim": "tiny-ckpt"}}))
    eventually("the clash to be told", lambda: "belongs to somebody else" in json.dumps(api.get("RLHFJob", "taken")), seconds=60)
    api.delete("RLHFJob", "taken")
    api.delete("RayCluster", "taken")


def collide_with_status(api: Api, name: str, recorder: Recorder) -> None:
    """Edits until a write of the status meets a newer object, which the operator then reads again."""
    reread = ("rlhf.dev", "rlhfjobs", "get")
    edits = itertools.count()

    def met() -> bool:
        api.patch("RLHFJob", name, {"metadata": {"annotations": {"edited": str(next(edits))}}})
        return any(call.right == reread for call in list(recorder.calls))

    eventually("a status write to meet an edit", met, seconds=60, every=0.0)


@pytest.mark.parametrize(("scope", "budgets"), [("release", True), ("cluster", False)])
def test_the_operator_uses_the_rights_it_has_and_no_others(
    scope: str, budgets: bool, helm: Helm, admin: Api, api: Api, namespace: str, recorder: Recorder, volume: None, tmp_path: Path
) -> None:
    helm.install(RELEASE, namespace, {"watch": {"scope": scope}, "jobs": {"podDisruptionBudget": budgets}}, "--take-ownership")
    try:
        secret: dict[str, Any] = api.get("Secret", f"{RELEASE}-token-key") or {}
        with StandIn(base64.b64decode(secret["data"]["token_key"])) as standin:
            account = account_kubeconfig(admin, namespace, recorder.url, tmp_path)
            operator = OperatorProcess(account, namespace, standin, tmp_path, **chart_variables(api))
            operator.start().wait()
            try:
                live_a_life(api, standin, recorder)
                assert (operator.probe("/livez"), operator.probe("/readyz")) == (200, 200)
            finally:
                operator.stop()
                print(operator.log.read_text()[-20000:])
        job_role = ("ClusterRole", "", f"{namespace}.{RELEASE}") if scope == "cluster" else ("Role", namespace, f"{namespace}.{RELEASE}")
        allowed = granted(admin, namespace, (job_role, ("Role", namespace, f"{RELEASE}-leader")))
    finally:
        helm.uninstall(RELEASE, namespace)
    # With scope cluster the operator also looks at namespaces that other tests leave, where creation ends as 403 NamespaceTerminating.
    refused: list[Call] = [call for call in recorder.calls if call.status in (401, 403) and call.namespace in ("", namespace)]
    assert refused == []
    used = {call.right for call in recorder.calls}
    print(f"{len(recorder.calls)} calls, {len(used)} rights used")
    assert used <= allowed
    assert allowed - used == UNSEEN
    if scope == "release":
        assert {call.namespace for call in recorder.calls} == {namespace}
