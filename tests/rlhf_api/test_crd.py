from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rlhf_api import crd, reference
from rlhf_api.presets import PRESETS
from rlhf_api.rules import RULES

REPOSITORY = Path(__file__).resolve().parents[2]
SCHEMA: dict[str, Any] = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
SPEC: dict[str, Any] = SCHEMA["properties"]["spec"]
IN_LOGIC_FORBIDDEN = {"description", "type", "default", "additionalProperties", "nullable"}


def _nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from _nodes(child, f"{path}.{name}")
    if "items" in schema:
        yield from _nodes(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _nodes(schema["additionalProperties"], f"{path}{{}}")


def test_file_is_what_the_models_say() -> None:
    assert (REPOSITORY / "crds" / crd.FILE_NAME).read_text() == crd.text(), "stale: rlhf crd -o crds/rlhf.dev_rlhfjobs.yaml"


def test_reference_page_is_what_the_models_say() -> None:
    assert (REPOSITORY / "docs" / "reference.md").read_text() == reference.text(), "stale: rlhf reference -o docs/reference.md"


def test_file_is_small_enough_for_client_side_apply() -> None:
    assert len(crd.text().encode()) < 100_000


def test_schema_is_structural() -> None:
    for path, node in _nodes(SCHEMA):
        assert {"type", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"} & set(node), path
        assert not {"$ref", "anyOf", "oneOf", "allOf", "not", "definitions", "const", "prefixItems"} & set(node), path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert node.get("additionalProperties") is not False, path
        assert set(node.get("required", ())) <= set(node.get("properties", ())), path
        if node.get("type") == "array":
            assert isinstance(node["items"], dict), path


def test_root_restricts_no_more_of_metadata_than_kubernetes_allows() -> None:
    assert set(SCHEMA["properties"]["metadata"]["properties"]) == {"name"}


def test_unknown_fields_are_kept_nowhere_but_in_values_without_a_type() -> None:
    kept = [path for path, node in _nodes(SCHEMA) if node.get("x-kubernetes-preserve-unknown-fields")]
    assert kept == [
        ".spec.placement.colocate",
        ".spec.placement.rollout.engineArgs{}",
        ".spec.cluster.head.affinity",
        ".spec.cluster.workers.affinity",
        ".spec.cluster.podOverlay",
    ]


def test_everything_that_grows_is_bounded() -> None:
    for path, node in _nodes(SPEC):
        bound = {"string": ("maxLength", "enum"), "array": ("maxItems",)}.get(node.get("type", ""), ())
        assert not bound or set(bound) & set(node), path
        assert "additionalProperties" not in node or "maxProperties" in node, path


def test_every_field_has_a_description() -> None:
    for path, node in _nodes(SPEC, "spec"):
        assert node.get("description") or path == "spec" or path.endswith(("[]", "{}")), path


def test_preset_fields_have_no_default_and_the_others_that_the_schema_knows_do() -> None:
    rl = SPEC["properties"]["rl"]["properties"]
    for field in PRESETS["grpo"].fields:
        section, leaf = field.split(".")
        assert "default" not in rl[section]["properties"][leaf]
    assert rl["rollout"]["properties"]["promptsPerStep"]["default"] == 128
    assert rl["rollout"]["default"] == {}


def test_null_that_means_something_survives_the_api_server() -> None:
    nullable = {path for path, node in _nodes(SPEC) if node.get("nullable")}
    assert nullable == {".rl.policyLoss.entropyCoef", ".rl.valueLoss.clip", ".rl.reward.clip"}


def test_minimum_below_one_also_holds_for_a_whole_number() -> None:
    for path, node in _nodes(SPEC):
        if node.get("minimum", 0) % 1:
            assert node["x-kubernetes-validations"][0]["rule"] == f"self >= {node['minimum']}", path


def test_each_field_of_the_spec_but_suspend_and_lifecycle_is_fixed() -> None:
    fixed = [each["fieldPath"].removeprefix(".") for each in SPEC["x-kubernetes-validations"] if "oldSelf" in each["rule"]]
    assert set(SPEC["properties"]) - set(fixed) == {"suspend", "lifecycle"}


def _at(path: str) -> tuple[dict[str, Any], bool]:
    """The schema node below spec, and whether it is always there once the API server has filled in defaults."""
    node, always = SPEC, True
    for name in path.split("."):
        child = node["properties"][name]
        always = always and (name in node.get("required", ()) or "default" in child)
        node = child
    return node, always


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.cel], ids=lambda rule: rule.id)
def test_cel_reads_fields_that_exist_and_asks_for_those_that_may_not(rule: Any) -> None:
    _at(rule.cel.field)
    expression = rule.cel.expression
    for path in set(re.findall(r"self\.([A-Za-z.]+[A-Za-z])(?!\w*\()", expression)):
        path = re.sub(r"\.(all|exists|exists_one)$", "", path)
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            node, always = _at(".".join(parts[:end]))
            parent_asked = f"has(self.{'.'.join(parts[:end])})" in expression
            assert always or parent_asked or not _at(".".join(parts[: end - 1]) or parts[0])[1], path
        assert not node.get("nullable"), f"{path}: CEL sees null here"
        assert not node.get("x-kubernetes-preserve-unknown-fields"), f"{path}: CEL cannot see an untyped value"


def test_cel_messages_fit() -> None:
    for validation in SPEC["x-kubernetes-validations"]:
        assert len(validation["message"]) <= 2048
        assert "\n" not in validation["message"]


def test_printer_columns() -> None:
    columns = crd.definition()["spec"]["versions"][0]["additionalPrinterColumns"]
    assert [column["name"] for column in columns if "priority" not in column] == [
        "Phase",
        "Algorithm",
        "Step",
        "Reward",
        "KL",
        "Attempt",
        "GPUs",
        "Age",
    ]
    assert [column["name"] for column in columns if "priority" in column] == ["Tok/s", "ETA", "Checkpoint", "Reason"]
    for column in columns:
        node = SCHEMA["properties"]["status"]
        if column["jsonPath"].startswith(".status."):
            for name in column["jsonPath"].removeprefix(".status.").split("."):
                node = node["properties"][name]
            assert node["type"] == column["type"]


def test_names() -> None:
    names = crd.definition()["spec"]["names"]
    assert names["shortNames"] == ["rlhf", "rlhfjob"]
    assert names["categories"] == ["rlhf", "all"]


@pytest.mark.parametrize("path", sorted((REPOSITORY / "examples").glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_examples_fit_the_schema(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        if document and document.get("kind") == "RLHFJob":
            jsonschema.Draft4Validator(SCHEMA).validate(document)
