"""A stored RLHFJob as decisions see it."""

from __future__ import annotations

import copy
from typing import Any

from rlhf_operator import build
from rlhf_operator.runtime.jobview import ignored_edits, job_view, parse

BODY: dict[str, Any] = {
    "apiVersion": "rlhf.dev/v1alpha1",
    "kind": "RLHFJob",
    "metadata": {
        "namespace": "ns",
        "name": "job",
        "uid": "u",
        "generation": 3,
        "resourceVersion": "77",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [],
    },
    "spec": {
        "rl": {"algorithm": "grpo", "reward": {"sources": [{"function": {"file": "reward.py"}}]}},
        "models": {"actor": {"path": "/models/a"}},
        "data": {"datasets": [{"path": "/models/d.jsonl"}]},
        "placement": {"actor": {"nodes": 2, "gpusPerNode": 8}, "rollout": {"engines": 16}},
        "checkpoint": {"volume": {"existingClaim": "ckpt"}},
        "cluster": {"podOverlay": {"spec": {"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}]}}, "files": {"configMap": "r"}},
    },
    "status": {"phase": "Running", "attempt": 2},
}


def changed(**spec: Any) -> dict[str, Any]:
    body = copy.deepcopy(BODY)
    body["spec"].update(spec)
    return body


def stored_text(body: dict[str, Any]) -> str:
    job, problems = parse(body)
    assert job is not None, problems
    return str(build.config_map(job)["data"]["job.yaml"])


def test_a_valid_job():
    view = job_view(BODY, None)
    assert view.problems == ()
    assert view.spec is not None
    assert view.spec.metadata.uid == "u"
    assert (view.generation, view.deleting, view.worker_pods, view.gpus) == (3, False, 2, 16)
    assert (view.status.phase, view.status.attempt) == ("Running", 2)


def test_the_spec_of_a_generation_is_parsed_once():
    view = job_view(BODY, None)
    newer = {**BODY, "metadata": {**BODY["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Failed"}}
    again = job_view(newer, view)
    assert again.spec is view.spec
    assert (again.deleting, again.status.phase, again.status.attempt) == (True, "Failed", None)


def test_a_broken_rule_is_one_problem_and_no_spec():
    view = job_view(changed(models={"actor": {"path": "/models/a"}, "critik": {}}), None)
    assert view.spec is None
    assert (view.worker_pods, view.gpus) == (0, 0)
    assert any("spec.models.critik" in each for each in view.problems)


def test_a_job_without_a_checkpoint_volume_is_refused_on_a_cluster():
    view = job_view(changed(checkpoint={}), None)
    assert view.spec is None
    assert any("spec.checkpoint.volume" in each for each in view.problems)


def test_edits_inside_free_maps_come_too_late():
    stored = stored_text(BODY)
    overlay = {"spec": {"hostAliases": [{"ip": "10.0.0.2", "hostnames": ["a"]}], "dnsPolicy": "Default"}}
    job, _ = parse(changed(cluster={"podOverlay": overlay, "files": {"configMap": "r"}}, suspend=True, lifecycle={"backoffLimit": 4}))
    assert job is not None
    assert set(ignored_edits(job, stored)) == {"spec.cluster.podOverlay.spec.hostAliases", "spec.cluster.podOverlay.spec.dnsPolicy"}


def test_fields_that_a_newer_operator_adds_are_no_edits():
    older = stored_text(BODY).replace("  terminationGracePeriodSeconds: 120\n", "")
    job, _ = parse(BODY)
    assert job is not None
    assert ignored_edits(job, older) == ()
    assert ignored_edits(job, "{not yaml") == ()
    assert ignored_edits(job, "[]") == ()
