"""What the chart renders, under many values: names, security, the operator's settings, monitoring. No cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.kit.helm import CHART, Helm, HelmError
from rlhf_api import crd
from rlhf_operator import names
from rlhf_operator.runtime.health import Vitals, Watches, application
from rlhf_operator.settings import OperatorSettings, from_environment, variable
from tests.integration.chart.rendering import (
    KEY,
    REPOSITORY,
    VALUES,
    Object,
    Render,
    environment,
    identity,
    of_kind,
    only,
    operator_container,
    rights,
)


@pytest.fixture(autouse=True)
def log_scan() -> None:
    """In place of the lane's own, which starts a cluster."""


def test_helm_finds_nothing_to_complain_about(renderer: Helm) -> None:
    assert "0 chart(s) failed" in renderer.run("lint", "--strict", str(CHART))


@pytest.mark.parametrize("name", VALUES)
def test_objects_are_complete_and_lie_where_they_belong(name: str, render: Render) -> None:
    objects = render(name)
    assert len({identity(each) for each in objects}) == len(objects)
    watched = VALUES[name].get("watch", {}).get("namespaces", [])
    for each in objects:
        assert each["apiVersion"]
        kind, namespace, label = identity(each)
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", label)
        assert len(label) <= 63
        if kind.startswith("ClusterRole") or kind == "CustomResourceDefinition":
            assert namespace == ""
        else:
            assert namespace == "sys" or (kind in ("Role", "RoleBinding") and namespace in watched)


LONGEST = "r" * 38


def test_names_are_short_enough_for_the_longest_release(renderer: Helm) -> None:
    for each in renderer.render(VALUES["everything"], release=LONGEST, namespace="n" * 63):
        kind, _, name = identity(each)
        assert len(name) <= (253 if kind.startswith("ClusterRole") else 63)


@pytest.mark.parametrize(
    ("release", "words"),
    [
        (f"{LONGEST}r", [f"{LONGEST}r-rlhf-operator, 53 characters", "at most 52", f"Nearest: {LONGEST}."]),
        (f"{LONGEST}-and-more", [f"Nearest: {LONGEST}."]),
        ("rlhf-operator-" + "x" * 39, ["53 characters"]),
        ("team.rl", ["release name team.rl", "letters, digits and -", "Nearest: r-team-rl."]),
        ("9lives", ["release name 9lives", "first a letter", "Nearest: r-9lives."]),
    ],
)
def test_a_release_whose_objects_cannot_be_called_so_is_refused(release: str, words: list[str], renderer: Helm) -> None:
    with pytest.raises(HelmError) as refused:
        renderer.render({}, release=release)
    assert [word for word in words if word not in str(refused.value)] == []


def pods(objects: list[Object]) -> Iterator[Object]:
    for each in objects:
        if each["kind"] == "Pod":
            yield each["spec"]
        elif each["kind"] == "Deployment":
            yield each["spec"]["template"]["spec"]


@pytest.mark.parametrize("name", VALUES)
def test_pods_meet_the_restricted_pod_security_standard(name: str, render: Render) -> None:
    found = list(pods(render(name)))
    assert len(found) == 2
    for spec in found:
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & spec.keys()
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] >= 10_000
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert all(volume.keys() - {"name"} <= {"secret", "emptyDir"} for volume in spec.get("volumes", []))
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip
            assert container["resources"].keys() == {"requests", "limits"}
            assert not any("hostPort" in port for port in container.get("ports", []))


SELECTOR = {"app.kubernetes.io/name": "rlhf-operator", "app.kubernetes.io/instance": "rel"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("defaults", {"watch_scope": "cluster", "watch_namespaces": (), "release": "rel-rlhf-operator", "operator_labels": SELECTOR}),
        ("defaults", {"metrics_from": {"kubernetes.io/metadata.name": "monitoring"}, "head_access": "direct", "kueue": False}),
        ("release", {"watch_scope": "release", "watch_namespaces": ("sys",)}),
        ("namespaces", {"watch_scope": "namespaces", "watch_namespaces": ("team-a", "team-b")}),
        ("proxy", {"head_access": "proxy", "kueue": True, "head_disruption_budget": False}),
        ("budgets", {"head_disruption_budget": True}),
        ("own", {"default_image": "r.example:5000/trainer:2", "default_ray_version": "2.61.1"}),
        ("everything", {"workers": 16, "poll_seconds": 5.0, "cluster_domain": "k8s.example", "log_level": "debug", "log_format": "text"}),
        ("everything", {"metrics_from": {}}),
    ],
)
def test_the_operator_reads_its_variables(name: str, expected: dict[str, Any], render: Render, key: Path) -> None:
    given = environment(operator_container(render(name)), key)
    assert given.keys() <= {variable(field) for field in OperatorSettings.__dataclass_fields__}
    settings = from_environment(given)
    assert {field: getattr(settings, field) for field in expected} == expected
    assert (settings.namespace, settings.pod_name, settings.leader_election) == ("sys", "pod-1", True)


def test_the_charts_defaults_are_the_operators(render: Render, key: Path) -> None:
    settings = from_environment(environment(operator_container(render("defaults")), key))
    defaults = OperatorSettings(namespace="n", pod_name="p", default_image="i", default_ray_version="1.1.1", token_key=KEY.encode())
    of_the_release = {
        "namespace", "pod_name", "default_image", "default_ray_version", "token_key", "release", "operator_labels", "metrics_from",
    }  # fmt: skip
    for field in OperatorSettings.__dataclass_fields__.keys() - of_the_release:
        assert getattr(settings, field) == getattr(defaults, field), field


def test_ports_and_probes_are_the_operators(render: Render, key: Path) -> None:
    objects = render("defaults")
    container = operator_container(objects)
    settings = from_environment(environment(container, key))
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"health": settings.health_port, "metrics": settings.metrics_port}
    assert {port["name"]: port["port"] for port in only(objects, "Service")["spec"]["ports"]} == ports
    routes = {route.resource.canonical for route in application(Vitals(Watches(), lambda: 0.0, lambda: False)).router.routes()}
    probes = [container["livenessProbe"]["httpGet"], container["readinessProbe"]["httpGet"]]
    assert {probe["path"] for probe in probes} == {"/livez", "/readyz"} <= routes
    assert {probe["port"] for probe in probes} == {"health"}
    assert f":{settings.health_port}/readyz" in only(objects, "Pod")["spec"]["containers"][0]["command"][-1]


def test_two_releases_share_nothing(renderer: Helm) -> None:
    first = renderer.render({"watch": {"scope": "release"}}, release="rlhf-operator", namespace="one")
    second = renderer.render({"watch": {"scope": "release"}, "crds": {"enabled": False}}, release="rlhf-operator", namespace="two")
    assert not {identity(each) for each in first} & {identity(each) for each in second}
    for objects, namespace in ((first, "one"), (second, "two")):
        spaces = {each["metadata"].get("namespace") for each in objects if each["kind"] != "CustomResourceDefinition"}
        assert spaces == {namespace}


def test_names_that_yaml_takes_for_something_else_stay_names(renderer: Helm) -> None:
    values = {
        "watch": {"scope": "namespaces", "namespaces": ["on", "123"]},
        "serviceAccount": {"name": "42"},
        "tokenKey": {"existingSecret": "007"},
        "priorityClassName": "1e3",
        "imagePullSecrets": [{"name": "null"}],
        "crds": {"enabled": False},
    }
    objects = renderer.render(values, release="true", namespace="1234")
    for each in objects:
        assert each["metadata"].get("namespace") in ("1234", "on", "123")
        assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == "true"
    assert {each["metadata"]["namespace"] for each in of_kind(objects, "Role")} == {"1234", "on", "123"}
    spec = only(objects, "Deployment")["spec"]["template"]["spec"]
    assert (spec["serviceAccountName"], spec["priorityClassName"], spec["imagePullSecrets"]) == ("42", "1e3", [{"name": "null"}])
    assert (only(objects, "ServiceAccount")["metadata"]["name"], spec["volumes"][0]["secret"]["secretName"]) == ("42", "007")
    for binding in of_kind(objects, "RoleBinding"):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "42", "namespace": "1234"}]


def test_releases_that_share_a_namespace_of_jobs_share_nothing(renderer: Helm) -> None:
    values = {"watch": {"scope": "namespaces", "namespaces": ["jobs"]}, "crds": {"enabled": False}}
    first, second = (renderer.render(values, release="rlhf-operator", namespace=each) for each in ("one", "two"))
    assert not {identity(each) for each in first} & {identity(each) for each in second}


def test_releases_whose_names_join_to_the_same_text_share_nothing(renderer: Helm) -> None:
    first = renderer.render({}, release="b-rlhf-operator", namespace="a")
    second = renderer.render({"crds": {"enabled": False}}, release="rlhf-operator", namespace="a-b")
    assert not {identity(each) for each in first} & {identity(each) for each in second}


def test_crd_is_the_generated_one_and_is_kept(render: Render) -> None:
    generated = yaml.safe_load((REPOSITORY / "crds" / crd.FILE_NAME).read_text())
    kept = only(render("defaults"), "CustomResourceDefinition")
    assert kept["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert kept == generated
    assert only(render("own"), "CustomResourceDefinition") == generated
    assert not of_kind(render("release"), "CustomResourceDefinition")


@pytest.mark.parametrize("name", VALUES)
def test_rc61_no_webhook_and_so_no_certificate_that_could_expire(name: str, render: Render) -> None:
    """The schema and its rules check jobs; nothing stands between the API server and a create, an update or a delete."""
    objects = render(name)
    kinds = {each["kind"] for each in objects}
    assert not {kind for kind in kinds if "Webhook" in kind or "AdmissionPolicy" in kind or kind in ("APIService", "Certificate", "Issuer")}
    for definition in of_kind(objects, "CustomResourceDefinition"):
        assert definition["spec"].get("conversion", {"strategy": "None"}) == {"strategy": "None"}
    # None among those that the cluster's administrator applies either.
    for path in (REPOSITORY / "crds").glob("*.yaml"):
        for each in yaml.safe_load_all(path.read_text()):
            assert each["kind"] == "CustomResourceDefinition"
            assert "webhook" not in each["spec"].get("conversion", {})
    for role in (each for each in objects if each["kind"] in ("Role", "ClusterRole")):
        assert not [
            right for right in rights(role) if right[0] in ("admissionregistration.k8s.io", "apiextensions.k8s.io", "cert-manager.io")
        ]


def test_disruption_budget_only_where_a_replica_can_go(render: Render) -> None:
    assert not of_kind(render("defaults"), "PodDisruptionBudget")
    budget, deployment = only(render("everything"), "PodDisruptionBudget"), only(render("everything"), "Deployment")
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    assert (budget["spec"]["maxUnavailable"], deployment["spec"]["replicas"]) == (1, 3)


@pytest.mark.parametrize("name", VALUES)
def test_the_service_finds_the_operator_and_not_the_test_pod(name: str, render: Render) -> None:
    objects = render(name)
    selector = only(objects, "Service")["spec"]["selector"].items()
    assert selector <= only(objects, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    assert not selector <= only(objects, "Pod")["metadata"]["labels"].items()


def test_images_by_digest_or_tag(render: Render, renderer: Helm) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert operator_container(render("defaults"))["image"] == f"ghcr.io/rlhf-kube/rlhf-operator:{version}"
    assert operator_container(render("own"))["image"] == "r.example:5000/op@sha256:" + "a" * 64
    assert operator_container(renderer.render({"image": {"tag": "x"}}))["image"].endswith("/rlhf-operator:x")
    for spec in pods(render("own")):
        assert spec["imagePullSecrets"] == [{"name": "registry"}]


def test_token_key_is_made_or_given(render: Render) -> None:
    secret = only(render("defaults"), "Secret")
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert not of_kind(render("own"), "Secret")
    volumes = only(render("own"), "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert volumes[0]["secret"]["secretName"] == "ours"


def test_only_the_operators_pod_gets_a_token_of_its_account(render: Render) -> None:
    objects = render("defaults")
    assert only(objects, "ServiceAccount")["automountServiceAccountToken"] is False
    assert only(objects, "Deployment")["spec"]["template"]["spec"]["automountServiceAccountToken"] is True
    assert only(objects, "Pod")["spec"]["automountServiceAccountToken"] is False


def test_monitoring_is_off_by_default_and_names_the_release(render: Render) -> None:
    optional = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ConfigMap", "NetworkPolicy"}
    assert not optional & {each["kind"] for each in render("defaults")}
    objects = render("everything")
    assert optional <= {each["kind"] for each in objects}
    for kind in optional - {"NetworkPolicy"}:
        assert only(objects, kind)["metadata"]["labels"]["l"] == "m"
    rule = yaml.safe_dump(only(objects, "PrometheusRule"))
    assert "RELEASE_N" not in rule
    assert 'job="sys/rel-rlhf-operator-jobs"' in rule
    assert only(objects, "PodMonitor")["metadata"]["name"] == "rel-rlhf-operator-jobs"
    assert only(objects, "ConfigMap")["data"]["rlhf-jobs.json"].startswith("{")


def test_operators_network_policy(render: Render) -> None:
    direct = only(render("everything"), "NetworkPolicy")["spec"]["egress"]
    (heads,) = [rule for rule in direct if "to" in rule]
    assert [port["port"] for port in heads["ports"]] == [names.DASHBOARD_PORT, names.PROGRESS_PORT]
    assert heads["to"][0]["podSelector"]["matchExpressions"] == [{"key": names.JOB_LABEL, "operator": "Exists"}]
    assert {"port": 8443} in direct[1]["ports"]
    assert {(port["port"], port["protocol"]) for port in direct[0]["ports"]} == {(53, "UDP"), (53, "TCP"), (5353, "UDP"), (5353, "TCP")}
    proxied = only(render("proxy"), "NetworkPolicy")["spec"]["egress"]
    assert not [rule for rule in proxied if "to" in rule]
