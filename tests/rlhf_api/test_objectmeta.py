"""``metadata`` as the API server takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlhf_api import manifest
from rlhf_api.objectmeta import FIELDS, metadata_faults

GOOD: Mapping[str, Any] = {
    "name": "a",
    "labels": {"team.example/x": "A.b-c_1", "empty": "", "x": "y" * 63},
    "annotations": {"note": "any text, ü", "kubectl.kubernetes.io/last-applied-configuration": "{}", "Team.example/Y": "z"},
    "finalizers": [],
    "creationTimestamp": None,
}


def test_metadata_of_an_object_read_back_is_accepted() -> None:
    assert list(metadata_faults({"metadata": dict.fromkeys(FIELDS) | GOOD})) == []
    assert list(metadata_faults({"metadata": {"annotations": {"a": "x" * (256 * 1024 - 1)}}})) == []
    for odd in ({}, {"metadata": None}, {"metadata": []}, {"metadata": {"labels": [], "annotations": "x"}}):
        assert list(metadata_faults(odd)) == []


@pytest.mark.parametrize(
    ("metadata", "field", "words"),
    [
        ({"unknown": 1}, "metadata.unknown", "unknown field"),
        ({"label": {}}, "metadata.label", "Nearest: labels"),
        ({"labels": {"a": "b c"}}, "metadata.labels.a", "Nearest: b-c"),
        ({"labels": {"a": "x" * 64}}, "metadata.labels.a", "at most 63 characters"),
        ({"labels": {"a": "-"}}, "metadata.labels.a", "Nearest: an annotation"),
        ({"labels": {"a b": "c"}}, "metadata.labels.a b", "Nearest: a-b"),
        ({"labels": {"x" * 64: "c"}}, f"metadata.labels.{'x' * 64}", "at most 63 characters without the domain"),
        ({"annotations": {"": "c"}}, "metadata.annotations.", "a key must be"),
        ({"annotations": {"a": "x" * 200_000, "b": "ü" * 40_000}}, "metadata.annotations", "280002 bytes"),
    ],
)
def test_what_the_api_server_refuses_is_refused_before_it_is_asked(metadata: dict[str, Any], field: str, words: str) -> None:
    (fault,) = metadata_faults({"metadata": metadata})
    assert fault.field == field
    assert words in str(fault)


def test_a_manifest_says_it_with_the_line(write_manifest: Callable[[Mapping[str, Any]], Path]) -> None:
    path = write_manifest({"metadata.labels": {"a": "b c"}, "training.epochs": 0})
    with pytest.raises(manifest.ManifestError) as caught:
        manifest.load(path)
    assert {each.field for each in caught.value.violations} == {"metadata.labels.a", "spec.training.epochs"}
    assert all(each.where for each in caught.value.violations)
