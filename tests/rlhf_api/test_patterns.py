"""Texts that a pattern refuses: the rule in words, and what was meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlhf_api import manifest
from rlhf_api.crd import definition
from rlhf_api.patterns import said

RawJob = Callable[..., dict[str, Any]]


def _patterns(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("pattern"), str):
            yield node["pattern"]
        for value in node.values():
            yield from _patterns(value)
    elif isinstance(node, list):
        for value in node:
            yield from _patterns(value)


def test_every_pattern_of_the_contract_has_words() -> None:
    patterns = set(_patterns(definition()))
    assert len(patterns) > 8
    assert all(said(pattern, "ü")[0] for pattern in patterns)


@pytest.mark.parametrize(
    ("field", "value", "nearest"),
    [
        ("cluster.shmSize", "64GB", "64G"),
        ("cluster.shmSize", "64 gi", "64Gi"),
        ("cluster.shmSize", "1.5GiB", "1.5Gi"),
        ("cluster.shmSize", "lots", None),
        ("cluster.shmSize", "-1", None),
        ("cluster.queueName", "Team A", "team-a"),
        ("cluster.serviceAccountName", "My_Account.x", "my-account.x"),
        ("cluster.env.0.name", "1-HF", "_1_HF"),
        ("cluster.volumes.0.mountPath", "data/", "/data"),
        ("cluster.volumes.0.mountPath", "//data", "/data"),
        ("cluster.volumes.0.mountPath", "/data/.", "/data"),
        ("cluster.volumes.0.mountPath", "/./data", "/data"),
        ("cluster.volumes.0.mountPath", "/data/../usr", "/data/usr"),
        ("cluster.volumes.0.mountPath", "/data/..", "/data"),
        ("cluster.volumes.0.mountPath", "/", None),
        ("cluster.files.items.0.path", "/a/b/", "a/b"),
        ("cluster.labels", {"team": "a b"}, "a-b"),
        ("cluster.rayVersion", "v2.60", "2.60.0"),
        ("cluster.image", "a b", "a-b"),
        ("cluster.image", "UPPER/x", "upper/x"),
        ("cluster.image", ":tag", None),
        ("cluster.image", "repo:", "repo"),
        ("cluster.image", "repo:a tag", "repo:a-tag"),
        ("cluster.image", "repo@sha256:short", "repo"),
        ("cluster.image", f"repo:1@sha256:{'A' * 64}", "repo:1"),
        ("cluster.image", "Registry.example:5000/Team/x:0.1", "Registry.example:5000/team/x:0.1"),
        ("cluster.image", "https://ghcr.io/team/x", "ghcr.io/team/x"),
        ("cluster.image", "ghcr.io/", None),
        ("cluster.image", "/team/x", "team/x"),
        ("cluster.image", "a//b", "a/b"),
        ("cluster.image", f"repo:{'t' * 129}", None),
    ],
)
def test_the_text_that_was_meant_is_named(raw_job: RawJob, field: str, value: Any, nearest: str | None) -> None:
    lists = {
        "cluster.env": [{"name": "A", "value": "b"}],
        "cluster.volumes": [{"name": "a", "mountPath": "/a", "existingClaim": "a"}],
        "cluster.files": {"configMap": "f", "items": [{"key": "a", "path": "a"}]},
    }
    within = {name: content for name, content in lists.items() if field.startswith(f"{name}.")}
    faults = [fault for fault in manifest.validate(raw_job({**within, field: value}))[1] if "must be" in fault.rule]
    assert [fault.nearest for fault in faults] == [nearest]
    assert "^" not in str(faults[0])


@pytest.mark.parametrize(
    "image",
    [
        "x",
        "x:0.1",
        "team/my_trainer.v2--cpu:0.1-CPU_x",
        "localhost/x",
        "localhost:5000/x",
        "10.200.0.1:5000/x:1",
        "[fd00::1]:5000/x",
        "Registry.Example/team/x",
        f"registry:5000/a/b:tag@sha256:{'0a' * 32}",
        f"ghcr.io/a/b@sha512:{'0a' * 64}",
    ],
)
def test_images_that_runtimes_can_pull_are_taken(raw_job: RawJob, image: str) -> None:
    assert not manifest.validate(raw_job({"cluster.image": image, "cluster.rayVersion": "2.60.0"}))[1]


@pytest.mark.parametrize(
    ("changes", "rule", "nearest"),
    [
        ({"cluster.head": {"resources": {"limits": {"cpu": -1}}}}, "the value must be at least 0", "cpu: 0"),
        ({"cluster.head": {"resources": {"limits": {"cpu": True}}}}, "the value must be text or an integer", None),
        ({"lifecycle.cleanupPolicy": "workers"}, "the value must be a mapping", "a mapping with onSuccess, onFailure"),
        ({"suspend": "no"}, "the value must be true or false", "false without quotes"),
        ({"cluster.env": {"A": "b"}}, "the value must be a list", "a list: each of its entries begins with -"),
        ({"cluster.image": True, "cluster.rayVersion": "2.60.0"}, "the value must be text", "quotes around it, since YAML reads yes"),
        ({"cluster.volumes": [{"name": "a", "mountPath": "/", "existingClaim": "a"}]}, "the text must be an absolute path below /", None),
        (
            {"cluster.volumes": [{"name": "a", "mountPath": "/a", "existingClaim": "a", "persistentVolumeClaim": {"claimName": "x"}}]},
            "unknown field",
            "existingClaim: NAME",
        ),
        ({"cluster.env": [{"name": "A", "value": "", "valueFrom": {}}]}, "unknown field", "spec.cluster.secretEnv, with a secretKeyRef"),
        ({"rl.algorithm": "GRPO"}, "the value must be one of ppo, grpo", "grpo"),
        ({"rl.algorithm": "Dr_GRPO"}, "the value must be one of ppo, grpo", "dr-grpo"),
        ({"rl.algorithm": "REINFORCE"}, "the value must be one of ppo, grpo", "reinforce++"),
        ({"rl.advantage": {"estimator": "GROUP-NORM"}}, "the value must be one of", "group_norm"),
        ({"training.precision": "FP32"}, "the value must be one of", "fp32"),
        ({"training.MAXSTEP": 5}, "unknown field", "maxSteps"),
        ({"rl.SHMSIZES": "1Gi"}, "unknown field", "spec.cluster.shmSize"),
        ({"training.maxSteps": "five"}, "the value must be an integer", "a whole number, for example 100"),
        ({"training.maxSteps": "5"}, "the value must be an integer", "5 without quotes"),
        ({"training.seed": "none"}, "the value must be an integer", "a whole number, for example 42"),
        ({"placement.actor": {"nodes": "two"}}, "the value must be an integer", "a whole number, for example 1"),
    ],
)
def test_advice_is_of_use_when_it_is_followed(raw_job: RawJob, changes: dict[str, Any], rule: str, nearest: str | None) -> None:
    (fault,) = manifest.validate(raw_job(changes))[1]
    assert fault.rule.startswith(rule)
    assert fault.nearest == nearest if nearest is None else (fault.nearest or "").startswith(nearest)
