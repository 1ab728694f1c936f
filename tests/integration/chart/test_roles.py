"""The rights that the chart gives, under many values: to the operator, and to people. No cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlhf_operator.settings import from_environment
from tests.integration.chart.rendering import (
    REPOSITORY,
    VALUES,
    Object,
    Render,
    Rights,
    environment,
    identity,
    of_kind,
    only,
    operator_container,
    rights,
)

JOB_RIGHTS: Rights = {
    *(("rlhf.dev", "rlhfjobs", verb) for verb in ("get", "list", "watch", "delete")),
    ("rlhf.dev", "rlhfjobs/status", "patch"),
    ("rlhf.dev", "rlhfjobs/finalizers", "update"),
    *(("ray.io", "rayclusters", verb) for verb in ("get", "list", "watch", "create", "patch", "delete")),
    ("", "pods", "list"),
    ("", "pods", "watch"),
    ("", "events", "list"),
    ("events.k8s.io", "events", "create"),
    ("", "configmaps", "get"),
    ("", "configmaps", "create"),
    ("", "persistentvolumeclaims", "get"),
    ("", "persistentvolumeclaims", "create"),
    ("", "secrets", "create"),
    ("networking.k8s.io", "networkpolicies", "get"),
    ("networking.k8s.io", "networkpolicies", "create"),
}
PROXY: Rights = {("", "services/proxy", "get"), ("", "services/proxy", "create")}
KUEUE: Rights = {("kueue.x-k8s.io", "workloads", "list")}
BUDGETS: Rights = {("policy", "poddisruptionbudgets", verb) for verb in ("get", "create", "delete")}
LEASE: Rights = {("coordination.k8s.io", "leases", verb) for verb in ("get", "create", "update")}


@pytest.fixture(autouse=True)
def log_scan() -> None:
    """In place of the lane's own, which starts a cluster."""


def granted(objects: list[Object]) -> dict[str, Rights]:
    """Namespace -> what the operator's account may do there; `*` = everywhere."""
    roles = {identity(each): rights(each) for each in objects if each["kind"] in ("Role", "ClusterRole")}
    account = only(objects, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"]
    found: dict[str, Rights] = {}
    for binding in (each for each in objects if each["kind"] in ("RoleBinding", "ClusterRoleBinding")):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "sys"}]
        namespace = binding["metadata"].get("namespace", "")
        role = (binding["roleRef"]["kind"], namespace, binding["roleRef"]["name"])
        found.setdefault(namespace or "*", set()).update(roles[role])
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("defaults", {"*": JOB_RIGHTS, "sys": LEASE}),
        ("release", {"sys": JOB_RIGHTS | LEASE}),
        ("namespaces", {"team-a": JOB_RIGHTS, "team-b": JOB_RIGHTS, "sys": LEASE}),
        ("proxy", {"*": JOB_RIGHTS | PROXY | KUEUE, "sys": LEASE}),
        ("budgets", {"*": JOB_RIGHTS | BUDGETS, "sys": LEASE}),
    ],
)
def test_rights_of_each_scope(name: str, expected: dict[str, Rights], render: Render) -> None:
    assert granted(render(name)) == expected


@pytest.mark.parametrize("name", VALUES)
def test_no_wildcard_and_no_role_beyond_the_scope(name: str, render: Render) -> None:
    objects = render(name)
    for role in (each for each in objects if each["kind"] in ("Role", "ClusterRole")):
        assert not any("*" in part for right in rights(role) for part in right)
    if VALUES[name].get("watch", {}).get("scope", "cluster") != "cluster":
        assert not [each for each in objects if each["kind"].startswith("ClusterRole")]


def test_the_lease_is_the_only_one_that_may_be_written(render: Render, key: Path) -> None:
    (role,) = [each for each in of_kind(render("defaults"), "Role") if each["metadata"]["name"].endswith("-leader")]
    release = from_environment(environment(operator_container(render("defaults")), key)).release
    for rule in role["rules"]:
        assert rule["verbs"] == ["create"] or rule["resourceNames"] == [release]


def test_every_right_is_explained_in_the_docs(render: Render) -> None:
    explained: Rights = set()
    page = (REPOSITORY / "docs" / "security.md").read_text()
    for group, resource, verbs in re.findall(r"^\| (\S+) \| ([a-z/]+) \| ([a-z ]+) \|", page, re.MULTILINE):
        explained |= {("" if group == "core" else group, resource, verb) for verb in verbs.split()}
    assert explained == JOB_RIGHTS | PROXY | KUEUE | BUDGETS | LEASE


def test_users_get_jobs_with_the_clusters_own_roles(render: Render) -> None:
    roles = {each["metadata"]["name"]: each for each in of_kind(render("defaults"), "ClusterRole")}
    view, edit = roles["sys.rel-rlhf-operator-view"], roles["sys.rel-rlhf-operator-edit"]
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert {verb for _, _, verb in rights(view)} == {"get", "list", "watch"}
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert {resource for _, resource, _ in rights(edit)} == {"rlhfjobs"}
    assert len(of_kind(render("proxy"), "ClusterRole")) == 1
