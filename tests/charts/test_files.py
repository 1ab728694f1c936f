"""What the chart carries besides templates: the CRD, alerts, a dashboard, and values with their schema."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from rlhf_api import __version__, crd
from rlhf_api.progress import CommittedCheckpoint, Progress
from rlhf_operator.runtime.metrics import Metrics
from rlhf_trainer.telemetry.phases import Phases
from rlhf_trainer.telemetry.progress_server import ProgressServer, metric_name

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "rlhf-operator"
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
ALERTS: dict[str, Any] = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD: dict[str, Any] = json.loads((CHART / "files" / "dashboard.json").read_text())


def test_crd_is_the_generated_one() -> None:
    stale = f"stale: cp crds/{crd.FILE_NAME} charts/rlhf-operator/files/"
    assert (CHART / "files" / crd.FILE_NAME).read_text() == (REPOSITORY / "crds" / crd.FILE_NAME).read_text(), stale


def test_chart_has_the_version_of_the_code() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    assert VALUES["trainer"]["image"].endswith(f":{__version__}")


def test_default_ray_version_is_the_trainer_images() -> None:
    lock = (REPOSITORY / "images" / "trainer" / "cpu.lock").read_text()
    assert f"ray=={VALUES['trainer']['rayVersion']}\n" in lock


def operator_samples() -> list[Sample]:
    """As Prometheus stores them."""
    metrics = Metrics()
    metrics.job_step.labels("ns", "job").set(1)
    for gauge in metrics.job_gauges.values():
        gauge.labels("ns", "job").set(1)
    metrics.status_writes.labels("urgent").inc()
    metrics.api_errors.labels("Submit").inc()
    metrics.collect_phases()
    return [sample for family in metrics.registry.collect() for sample in family.samples]


def trainer_samples() -> list[Sample]:
    """What a driver serves whose last step had every metric that docs/metrics.md names."""
    documented = re.findall(r"`([a-z_]+/[a-z0-9_]+)`", (REPOSITORY / "docs" / "metrics.md").read_text())
    phases = re.search(r"`timing_s/<phase>` \| seconds of (.*) \|", (REPOSITORY / "docs" / "metrics.md").read_text())
    assert phases is not None
    named = [f"timing_s/{phase}" for phase in phases[1].split(", ")]
    checkpoint = CommittedCheckpoint(step=1, path="/c", committed_at="2026-01-01T00:00:00Z")
    progress = Progress(job_uid="u", eta=1.0, checkpoint=checkpoint, metrics=dict.fromkeys([*documented, *named], 1.0))
    server = ProgressServer(None, Phases(), progress, progress_port=0, metrics_port=0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.start().metrics}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    finally:
        server.stop()
    assert metric_name("rollout/reward_mean") in text
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return operator_samples() + trainer_samples()


@pytest.fixture(scope="module")
def known(samples: list[Sample]) -> set[str]:
    return {sample.name for sample in samples}


def expressions() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_alerts_and_panels_ask_for_metrics_that_exist(where: str, expression: str, known: set[str]) -> None:
    plain = re.sub(r'"[^"]*"', '""', expression)
    names = re.findall(r"\b(?:rlhf|process)_\w+", plain)
    patterns = re.findall(r'__name__=~"([^"]+)"', expression)
    assert names or patterns, where
    assert set(names) <= known, where
    for pattern in patterns:
        assert any(re.fullmatch(pattern, name) for name in known), where


def test_no_label_is_one_that_prometheus_gives_to_what_it_scrapes(samples: list[Sample]) -> None:
    labels = {name for sample in samples for name in sample.labels}
    assert "rlhfjob" in labels
    # namespace: a job's own, kept by honorLabels.
    assert not labels & {"job", "instance", "pod", "container", "endpoint", "service", "node"}


def test_alerts_say_what_is_wrong_and_what_it_means() -> None:
    for rule in RULES:
        assert {"alert", "expr", "labels", "annotations"} <= rule.keys()
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_every_alert_is_in_the_docs() -> None:
    page = (REPOSITORY / "docs" / "operations.md").read_text()
    assert [rule["alert"] for rule in RULES] == re.findall(r"^\| `(RLHF\w+)` \|", page, re.MULTILINE)


def test_every_operator_metric_is_in_the_docs() -> None:
    page = (REPOSITORY / "docs" / "operations.md").read_text()
    documented = set(re.findall(r"`(rlhf_\w+)`", page))
    bases = {
        re.sub(r"_(bucket|count|sum|created)$", "", name)
        for name in {sample.name for sample in operator_samples()}
        if name.startswith("rlhf_")
    }
    bases = {name for name in bases if f"{name}_total" not in bases}
    assert bases <= documented


def closed(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if schema.get("type") == "object" and "properties" in schema:
        yield path, schema
        for name, child in schema["properties"].items():
            yield from closed(child, f"{path}.{name}")
    elif schema.get("type") == "array":
        yield from closed(schema["items"], f"{path}[]")


def test_schema_knows_exactly_the_values_and_nothing_else() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.Draft7Validator(SCHEMA).validate(VALUES)
    for path, node in closed(SCHEMA):
        assert node["additionalProperties"] is False, path
    assert set(SCHEMA["properties"]) == {*VALUES, "global"}


def test_values_and_schema_have_the_same_leaves() -> None:
    def leaves(values: dict[str, Any], schema: dict[str, Any], path: str) -> Iterator[tuple[str, set[str], set[str]]]:
        yield path, set(values), set(schema["properties"])
        for name, value in values.items():
            if isinstance(value, dict) and "properties" in schema["properties"][name]:
                yield from leaves(value, schema["properties"][name], f"{path}.{name}")

    free = {".resources", ".affinity"}  # Kubernetes' own fields: present where a user sets them
    for path, given, described in leaves(VALUES, SCHEMA, ""):
        assert given == described - {"global"} or path in free, path


@pytest.mark.parametrize(
    "values",
    [
        {"replica": 2},
        {"image": {"name": "x"}},
        {"image": {"digest": "sha256:12"}},
        {"watch": {"scope": "all"}},
        {"watch": {"scope": "namespaces"}},
        {"watch": {"scope": "release", "namespaces": ["a"]}},
        {"watch": {"scope": "namespaces", "namespaces": ["A"]}},
        {"trainer": {"rayVersion": "2.60"}},
        {"replicas": 0},
        {"resources": {"limit": {}}},
        {"networkPolicy": {"apiServerPorts": []}},
        {"metrics": {"serviceMonitor": {"interval": "30"}}},
        {"env": [{"name": "A-B", "value": "1"}]},
    ],
)
def test_schema_refuses(values: dict[str, Any]) -> None:
    def over(below: Any, above: Any) -> Any:
        """As Helm lays a user's values over the chart's."""
        if not isinstance(below, dict) or not isinstance(above, dict):
            return above
        return {**below, **{name: over(below.get(name), value) for name, value in above.items()}}

    assert list(jsonschema.Draft7Validator(SCHEMA).iter_errors(over(VALUES, values)))


def test_schema_wants_what_is_not_empty_in_the_values() -> None:
    def required(schema: dict[str, Any], values: dict[str, Any], path: str) -> Iterator[tuple[str, list[str], list[str]]]:
        yield path, schema.get("required", []), [name for name, value in values.items() if value not in ("", [], {})]
        for name, value in values.items():
            if isinstance(value, dict) and "properties" in schema["properties"][name] and name != "resources":
                yield from required(schema["properties"][name], value, f"{path}.{name}")

    for path, named, filled in required(SCHEMA, VALUES, ""):
        assert named == filled, path
