"""Helm against a real API server: install, rights, upgrade, uninstall. Pods are marked, so no operator runs here."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from e2e.kit.api import Api
from e2e.kit.helm import Helm, HelmError
from e2e.kit.waiting import eventually, ready_pods
from rlhf_operator.settings import TOKEN_KEY_MIN_BYTES

RELEASE = "rlhf-operator"
PODS = f"app.kubernetes.io/name=rlhf-operator,app.kubernetes.io/instance={RELEASE}"
OWN: dict[str, Any] = {"watch": {"scope": "release"}, "crds": {"enabled": False}}
JOB: dict[str, Any] = {
    "apiVersion": "rlhf.dev/v1alpha1",
    "kind": "RLHFJob",
    "metadata": {"name": "job"},
    "spec": {
        "rl": {"algorithm": "grpo", "reward": {"sources": [{"function": {"file": "reward.py"}}]}},
        "models": {"actor": {"path": "model"}},
        "data": {"datasets": [{"path": "train.jsonl"}]},
        "placement": {"accelerator": "cpu"},
        "checkpoint": {"volume": {"existingClaim": "ckpt"}},
    },
}

Make = Callable[..., str]


@pytest.fixture(scope="module")
def make_namespace(admin: Api) -> Iterator[Make]:
    """Namespaces that take restricted pods only; gone after the module."""
    made: list[str] = []

    def make(**labels: str) -> str:
        name = f"chart-{secrets.token_hex(4)}"
        enforced = {"pod-security.kubernetes.io/enforce": "restricted", **labels}
        admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": enforced}})
        eventually(f"service account of {name}", lambda: admin.get("ServiceAccount", "default", namespace=name), seconds=30, every=0.05)
        made.append(name)
        return name

    yield make
    for name in made:
        admin.delete("Namespace", name)


@pytest.fixture(scope="module")
def cluster_release(helm: Helm, admin: Api, make_namespace: Make) -> Iterator[str]:
    """Namespace of a release with everything that needs no foreign CRD. Uninstalled at the end; the CRD stays."""
    namespace = make_namespace()
    values = {"replicas": 2, "networkPolicy": {"enabled": True}, "metrics": {"dashboard": {"enabled": True}}}
    # Another release of an earlier test may have owned the CRD.
    helm.install(RELEASE, namespace, values, "--take-ownership")
    yield namespace
    if admin.get("Deployment", RELEASE, namespace=namespace):
        helm.uninstall(RELEASE, namespace)


def token_key(admin: Api, namespace: str) -> str:
    secret = admin.get("Secret", f"{RELEASE}-token-key", namespace=namespace)
    assert secret is not None
    return str(secret["data"]["token_key"])


def allowed(admin: Api, account: str, namespace: str, group: str, resource: str, verb: str, name: str = "") -> bool:
    """Whether the API server would let the account do it."""
    kind, _, subresource = resource.partition("/")
    asked = {"namespace": namespace, "group": group, "resource": kind, "subresource": subresource, "verb": verb, "name": name}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {"user": account, "resourceAttributes": asked}}
    status, text = admin.http("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    assert status == 201, text
    return bool(json.loads(text)["status"]["allowed"])


def account(namespace: str) -> str:
    return f"system:serviceaccount:{namespace}:{RELEASE}"


NEEDED = (
    ("rlhf.dev", "rlhfjobs", "watch"),
    ("rlhf.dev", "rlhfjobs/status", "patch"),
    ("ray.io", "rayclusters", "create"),
    ("ray.io", "rayclusters", "patch"),
    ("", "pods", "list"),
    ("", "secrets", "create"),
    ("events.k8s.io", "events", "create"),
)
NEVER = (
    ("", "secrets", "get"),
    ("", "secrets", "list"),
    ("", "pods", "delete"),
    ("", "pods/exec", "create"),
    ("", "services/proxy", "get"),
    ("rlhf.dev", "rlhfjobs", "patch"),
    ("rbac.authorization.k8s.io", "roles", "create"),
    ("apps", "deployments", "get"),
)


def test_a_restricted_namespace_takes_two_replicas(cluster_release: str, admin: Api) -> None:
    api = admin.within(cluster_release)
    pods = ready_pods(api, PODS, 2)
    assert pods is not None
    (key,) = [volume["secret"] for volume in pods[0]["spec"]["volumes"] if volume["name"] == "token-key"]
    assert key["defaultMode"] == 0o440
    assert len(token_key(admin, cluster_release)) >= TOKEN_KEY_MIN_BYTES


def test_the_crd_is_served(cluster_release: str, admin: Api) -> None:
    crd = admin.get("CustomResourceDefinition", "rlhfjobs.rlhf.dev")
    assert crd is not None
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    eventually("RLHFJobs are served", lambda: admin.http("GET", "/apis/rlhf.dev/v1alpha1/rlhfjobs")[0] == 200, seconds=10)


@pytest.mark.parametrize("kind", ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"])
def test_rc61_no_webhook_stands_before_jobs(kind: str, cluster_release: str, admin: Api) -> None:
    status, text = admin.http("GET", f"/apis/admissionregistration.k8s.io/v1/{kind}")
    assert status == 200
    assert [each["metadata"]["name"] for each in json.loads(text)["items"] if "rlhf" in json.dumps(each)] == []
    crd = admin.get("CustomResourceDefinition", "rlhfjobs.rlhf.dev")
    assert crd is not None
    assert crd["spec"]["conversion"] == {"strategy": "None"}


def test_rights_of_scope_cluster(cluster_release: str, admin: Api) -> None:
    who = account(cluster_release)
    assert all(allowed(admin, who, "default", *right) for right in NEEDED)
    assert not any(allowed(admin, who, "default", *right) for right in NEVER)
    assert not allowed(admin, who, "", "apiextensions.k8s.io", "customresourcedefinitions", "watch")
    lease = ("coordination.k8s.io", "leases", "update")
    assert allowed(admin, who, cluster_release, *lease, RELEASE)
    assert not allowed(admin, who, cluster_release, *lease, "another")
    assert not allowed(admin, who, "default", *lease, RELEASE)


def test_users_with_the_clusters_edit_role_may_make_jobs(cluster_release: str, admin: Api, make_namespace: Make) -> None:
    namespace = make_namespace()
    subjects = {"edit": "ed", "view": "vi"}
    for role, user in subjects.items():
        admin.create({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": role, "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
        })  # fmt: skip
    eventually("aggregation", lambda: allowed(admin, "ed", namespace, "rlhf.dev", "rlhfjobs", "create"), seconds=30)
    eventually("aggregation", lambda: allowed(admin, "vi", namespace, "rlhf.dev", "rlhfjobs", "list"), seconds=30)
    assert not allowed(admin, "vi", namespace, "rlhf.dev", "rlhfjobs", "create")
    assert not allowed(admin, "ed", namespace, "rlhf.dev", "rlhfjobs/status", "patch")


def test_a_second_release_must_leave_the_crd_alone(cluster_release: str, helm: Helm, make_namespace: Make) -> None:
    with pytest.raises(HelmError, match=r"rlhfjobs\.rlhf\.dev.*exists and cannot be imported"):
        helm.install(RELEASE, make_namespace(), {"watch": {"scope": "release"}})


def test_releases_of_scope_release_do_not_reach_each_other(cluster_release: str, helm: Helm, admin: Api, make_namespace: Make) -> None:
    first, second = make_namespace(), make_namespace()
    for namespace in (first, second):
        helm.install(RELEASE, namespace, OWN)
    assert token_key(admin, first) != token_key(admin, second)
    for own, other in ((first, second), (second, first)):
        assert all(allowed(admin, account(own), own, *right) for right in NEEDED)
        assert not any(allowed(admin, account(own), place, *right) for right in NEEDED for place in (other, "default", ""))
    helm.uninstall(RELEASE, first)
    assert all(allowed(admin, account(second), second, *right) for right in NEEDED)
    helm.uninstall(RELEASE, second)


def test_the_token_key_outlives_upgrade_and_reinstall(cluster_release: str, helm: Helm, admin: Api, make_namespace: Make) -> None:
    namespace = make_namespace()
    api = admin.within(namespace)
    helm.install(RELEASE, namespace, OWN)
    key = token_key(admin, namespace)
    helm.upgrade(RELEASE, namespace, {**OWN, "logLevel": "debug", "replicas": 2})
    assert token_key(admin, namespace) == key
    assert api.get("Deployment", RELEASE)["spec"]["replicas"] == 2
    helm.uninstall(RELEASE, namespace)
    assert api.get("Deployment", RELEASE) is None
    helm.install(RELEASE, namespace, OWN)
    assert token_key(admin, namespace) == key
    helm.uninstall(RELEASE, namespace)


def test_helm_test_runs_and_cleans_up(cluster_release: str, helm: Helm, admin: Api) -> None:
    """The pod marker ends the pod as asked; what the pod itself does is shown where operators run."""
    rules = [{"selector": {"app.kubernetes.io/name": "rlhf-operator-test"}, "outcome": "succeeded"}]
    rules_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "e2e-pods", "namespace": cluster_release}}
    admin.create({**rules_map, "data": {"rules": yaml.safe_dump(rules)}})
    assert "Phase:          Succeeded" in helm.run("test", RELEASE, "--namespace", cluster_release, "--timeout", "60s")
    eventually("test pod is gone", lambda: admin.get("Pod", f"{RELEASE}-ready", namespace=cluster_release) is None, seconds=10)


def test_rc17_uninstall_keeps_jobs_and_nothing_holds_up_their_deletion(
    cluster_release: str, helm: Helm, admin: Api, make_namespace: Make
) -> None:
    """Last in this module: it takes the release away."""
    namespaces = [cluster_release, make_namespace()]
    for namespace in namespaces:
        admin.create(JOB, namespace=namespace)
    notes = helm.uninstall(RELEASE, cluster_release)
    assert "CustomResourceDefinition" in notes
    for namespace in namespaces:
        job = admin.get("RLHFJob", "job", namespace=namespace)
        assert job is not None
        assert not job["metadata"].get("finalizers")
        admin.delete("Namespace", namespace)
    for namespace in namespaces:
        eventually(f"{namespace} is gone", lambda name=namespace: admin.get("Namespace", name) is None, seconds=30)
    assert admin.get("CustomResourceDefinition", "rlhfjobs.rlhf.dev") is not None
