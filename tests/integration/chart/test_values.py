"""Values that the chart refuses, and that it does so in words about the value. No cluster."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import pytest
import yaml

from e2e.kit.helm import CHART, Helm, HelmError

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
Path = tuple[str, ...]

WITHOUT_CRD = {"crds": {"enabled": False}}
"""It is most of what is rendered, and no value but `crds` reaches it."""


@pytest.fixture(autouse=True)
def log_scan() -> None:
    """In place of the lane's own, which starts a cluster."""


def paths(values: dict[str, Any], above: Path = ()) -> Iterator[Path]:
    for name, value in values.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from paths(value, (*above, name))


PATHS = tuple(paths(VALUES))
MAPS = tuple(path for path in PATHS if path != ("affinity",) and isinstance(reduce(lambda found, name: found[name], path, VALUES), dict))
ENTRIES_OF_USERS = {("resources", "requests"), ("resources", "limits"), ("metrics", "dashboard", "labels")}
"""Maps whose keys are the user's, so that each of them may go."""


def default(path: Path) -> Any:
    return reduce(lambda found, name: found[name], path, VALUES)


def at(path: Path, value: Any) -> dict[str, Any]:
    found: Any = value
    for name in reversed(path):
        found = {name: found}
    return dict(found)


def refusal(renderer: Helm, values: dict[str, Any]) -> str:
    with pytest.raises(HelmError) as refused:
        renderer.render(values)
    # The first line is the command, with a path of the tests' own.
    return str(refused.value).partition("\n")[2]


def is_optional(path: Path) -> bool:
    return default(path) in ("", [], {}) or path in ENTRIES_OF_USERS - {("metrics", "dashboard", "labels")} or path[:-1] in ENTRIES_OF_USERS


@pytest.mark.parametrize("path", PATHS, ids=".".join)
def test_null_means_empty_where_the_default_is_empty_and_is_refused_elsewhere(path: Path, renderer: Helm) -> None:
    if is_optional(path):
        given, empty = renderer.render({**WITHOUT_CRD, **at(path, None)}), renderer.render(WITHOUT_CRD)
        if path[:-1] in ENTRIES_OF_USERS or path in ENTRIES_OF_USERS:
            assert {each["kind"] for each in given} == {each["kind"] for each in empty}
        else:
            # The key of tokens is made anew by each rendering.
            assert [each for each in given if each["kind"] != "Secret"] == [each for each in empty if each["kind"] != "Secret"]
        return
    said = refusal(renderer, at(path, None))
    assert f"missing property '{path[-1]}'" in said
    assert f"at '{''.join(f'/{name}' for name in path[:-1])}'" in said
    assert "nil pointer" not in said


@pytest.mark.parametrize("path", PATHS, ids=".".join)
def test_a_value_of_another_type_is_refused_by_its_path(path: Path, renderer: Helm) -> None:
    # No value of the chart may be a list of lists.
    said = refusal(renderer, at(path, [["x"]]))
    assert f"at '{''.join('/' + name.replace('/', '~1') for name in path)}" in said
    assert "nil pointer" not in said


@pytest.mark.parametrize("path", [(), *MAPS], ids=".".join)
def test_an_unknown_key_is_refused_by_its_path(path: Path, renderer: Helm) -> None:
    said = refusal(renderer, at((*path, "an unknown key"), "x"))
    assert f"at '{''.join(f'/{name}' for name in path)}': additional properties 'an unknown key' not allowed" in said


ENV = {"name": "RLHF_POLL_SECONDS", "value": "5"}
NAME, INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"watch": {"scope": "all"}}, ["/watch/scope", "'cluster', 'namespaces', 'release'"]),
        ({"watch": {"scope": "namespaces"}}, ["/watch/namespaces", "minItems: got 0, want 1"]),
        ({"watch": {"scope": "release", "namespaces": ["a"]}}, ["/watch/namespaces", "maxItems: got 1, want 0"]),
        ({"watch": {"scope": "namespaces", "namespaces": ["a", "a"]}}, ["/watch/namespaces", "are equal"]),
        ({"replicas": 0}, ["/replicas", "minimum: got 0, want 1"]),
        ({"replicas": 1.5}, ["/replicas", "got number, want integer"]),
        ({"headAccess": "tunnel"}, ["/headAccess", "'direct', 'proxy'"]),
        ({"clusterDomain": "cluster.local."}, ["/clusterDomain", "does not match pattern"]),
        ({"image": {"repository": "r.example/op:1"}}, ["/image/repository", "does not match pattern"]),
        ({"image": {"repository": "https://r.example/op"}}, ["/image/repository", "does not match pattern"]),
        ({"image": {"repository": "r.example/Op"}}, ["/image/repository", "does not match pattern"]),
        ({"image": {"repository": ""}}, ["/image/repository", "does not match pattern"]),
        ({"image": {"tag": "v1+build"}}, ["/image/tag", "does not match pattern"]),
        ({"image": {"tag": 0.1}}, ["/image/tag", "got number, want string"]),
        ({"image": {"digest": "sha256:12"}}, ["/image/digest", "does not match pattern"]),
        ({"trainer": {"image": "r.example/trainer: 1"}}, ["/trainer/image", "does not match pattern"]),
        ({"trainer": {"rayVersion": "2.60"}}, ["/trainer/rayVersion", "does not match pattern"]),
        ({"resources": {"limits": {"memory": "2GB"}}}, ["/resources/limits/memory", "does not match pattern"]),
        ({"resources": {"requests": {"cpu": "-1"}}}, ["/resources/requests/cpu", "does not match pattern"]),
        ({"resources": {"requests": {"cpu": -1}}}, ["/resources/requests/cpu", "minimum"]),
        ({"metrics": {"serviceMonitor": {"interval": "30"}}}, ["/metrics/serviceMonitor/interval", "does not match pattern"]),
        ({"metrics": {"jobsPodMonitor": {"interval": "0s"}}}, ["/metrics/jobsPodMonitor/interval", "does not match pattern"]),
        ({"metrics": {"jobsPodMonitor": {"interval": "1s1m"}}}, ["/metrics/jobsPodMonitor/interval", "does not match pattern"]),
        ({"tokenKey": {"existingSecret": "a..b"}}, ["/tokenKey/existingSecret", "does not match pattern"]),
        ({"podLabels": {"team": "a b"}}, ["/podLabels/team", "does not match pattern"]),
        ({"podLabels": {"team": True}}, ["/podLabels/team", "got boolean, want string"]),
        ({"podLabels": {NAME: "mine"}}, [f"podLabels: {NAME}=mine", "the chart sets this label itself"]),
        ({"podLabels": {INSTANCE: "mine"}}, [f"podLabels: {INSTANCE}=mine", "the chart sets this label itself"]),
        ({"podLabels": {"helm.sh/chart": "mine"}}, ["podLabels: helm.sh/chart=mine"]),
        ({"metrics": {"serviceMonitor": {"labels": {NAME: "mine"}}}}, [f"metrics.serviceMonitor.labels: {NAME}=mine"]),
        ({"metrics": {"dashboard": {"labels": {INSTANCE: "mine"}}}}, [f"metrics.dashboard.labels: {INSTANCE}=mine"]),
        ({"env": [{"name": "A-B", "value": "1"}]}, ["/env/0/name", "does not match pattern"]),
        ({"env": [{"name": "A", "value": 1}]}, ["/env/0/value", "got number, want string"]),
        ({"env": [ENV, {**ENV, "value": "6"}]}, ["env: RLHF_POLL_SECONDS=6", "each variable once"]),
        ({"env": [{"name": "RLHF_KUEUE", "value": "true"}]}, ["env: RLHF_KUEUE=true", "the chart sets this variable itself"]),
        ({"env": [{"name": "POD_NAME", "value": "x"}]}, ["env: POD_NAME=x", "the chart sets this variable itself"]),
        ({"env": [{"name": "RLHF_METRICS_FROM", "value": "a=b"}]}, ["env: RLHF_METRICS_FROM=a=b", "the chart sets this variable itself"]),
        ({"serviceAccount": {"create": False}}, ["serviceAccount.create: false", "Nearest: name: default"]),
        ({"networkPolicy": {"apiServerPorts": [443, 443]}}, ["/networkPolicy/apiServerPorts", "are equal"]),
        ({"global": "x"}, ["/global", "got string, want object"]),
    ],
)
def test_bad_values_are_refused_by_name(values: dict[str, Any], words: list[str], renderer: Helm) -> None:
    said = refusal(renderer, values)
    assert [word for word in words if word not in said] == []


@pytest.mark.parametrize(
    "values",
    [
        {"image": {"repository": "localhost:5000/team/rlhf_operator", "tag": "0.1.0-rc.1_a"}},
        {"image": {"repository": "rlhf-operator"}},
        {"trainer": {"image": "registry.example:5000/a/b:v1@sha256:" + "0" * 64}},
        {"resources": {"requests": {"cpu": 0.5, "memory": "1.5Gi"}, "limits": {"cpu": 2, "memory": "1e9", "example.com/thing": "1"}}},
        {"resources": {"limits": {"cpu": "250m", "ephemeral-storage": "1G"}}},
        {"metrics": {"serviceMonitor": {"interval": "1m30s"}}},
        {"podLabels": {"team": "", "example.com/cost-centre": "A_1.b"}, "nodeSelector": {"kubernetes.io/os": "linux"}},
        {"env": [ENV, {"name": "HTTPS_PROXY", "value": "http://p:1"}]},
        {"jobs": {"metricsNamespace": ""}, "env": [{"name": "RLHF_METRICS_FROM", "value": "team=observability"}]},
        {"global": {"imageRegistry": "r.example"}},
    ],
)
def test_good_values_are_taken(values: dict[str, Any], renderer: Helm) -> None:
    assert renderer.render({**WITHOUT_CRD, **values})
