"""The CustomResourceDefinition on a real API server: what it takes, what it refuses and with which words, how kubectl shows it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e.kit.api import Api
from e2e.kit.waiting import eventually
from e2e.tools import prepare
from rlhf_api import crd, manifest
from rlhf_api.rules import RULES, Rule
from tests.rlhf_api.jobs import ON_CLUSTER, changed
from tests.rlhf_api.rules.test_cluster_rules import CASES as CLUSTER_CASES
from tests.rlhf_api.rules.test_rules import CASES as OTHER_CASES

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*/*.yaml"))
CASES = [*OTHER_CASES, *CLUSTER_CASES]
IN_SERVER = [rule for rule in RULES if rule.cel is not None]

Kubectl = Callable[..., subprocess.CompletedProcess[str]]
Changes = Mapping[str, Any]


@pytest.fixture(scope="module")
def run_kubectl(kubeconfig: Path) -> Kubectl:
    binary = prepare(("kubectl",)).binary("kubectl")

    def run(*arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        return subprocess.run([str(binary), *arguments], input=given, env=environment, capture_output=True, text=True, timeout=60)

    return run


@pytest.fixture(scope="module", autouse=True)
def definition(run_kubectl: Kubectl, admin: Api) -> None:
    """The file of this repository, applied as a user would."""
    applied = run_kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds" / crd.FILE_NAME))
    assert applied.returncode == 0, applied.stderr

    def served() -> bool:
        # A changed schema takes a moment until it is the one that checks.
        status, text = post(admin, changed({**ON_CLUSTER, "suspend": "no"}))
        return status == 422 and "spec.suspend" in text

    eventually("the definition to be served", served, seconds=30, every=0.2)


@pytest.fixture
def kubectl(run_kubectl: Kubectl, namespace: str) -> Kubectl:
    return lambda *arguments, given=None: run_kubectl("-n", namespace, *arguments, given=given)


def post(api: Api, job: Mapping[str, Any], **options: str) -> tuple[int, str]:
    """A strict create that stores nothing, as text of what the server says."""
    query = "&".join(f"{key}={value}" for key, value in {"dryRun": "All", "fieldValidation": "Strict", **options}.items())
    status, text = api.http("POST", f"/apis/rlhf.dev/v1alpha1/namespaces/{api.namespace}/rlhfjobs?{query}", body=job)
    return status, str(json.loads(text).get("message", "")) if text.startswith("{") else text


def on_cluster(changes: Changes) -> dict[str, Any]:
    return changed({**ON_CLUSTER, **changes})


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_examples_are_accepted(kubectl: Kubectl, path: Path) -> None:
    done = kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", str(path))
    assert done.returncode == 0, done.stderr
    assert "rlhfjob.rlhf.dev/" in done.stdout


@pytest.mark.parametrize("rule", IN_SERVER, ids=lambda rule: rule.id)
def test_broken_rule_is_refused_with_its_message_and_the_neighbour_accepted(admin: Api, rule: Rule) -> None:
    refused = []
    for case in (case for case in CASES if case.rule == rule.id):
        status, text = post(admin, on_cluster({**case.context, **case.fault}))
        refused.append(status == 422 and f"{rule.text} [{rule.id}]" in text)
        status, text = post(admin, on_cluster({**case.context, **case.neighbour}))
        assert status == 201, (case, text)
    assert any(refused)


@pytest.mark.parametrize("length", [20, 40])
def test_rc14_name_that_fits_is_accepted(admin: Api, length: int) -> None:
    assert post(admin, on_cluster({"metadata.name": "n" * length}))[0] == 201


@pytest.mark.parametrize("length", [41, 42, 47, 48, 53, 63, 64, 253])
def test_rc14_long_name_is_refused_with_the_limit(admin: Api, length: int) -> None:
    status, text = post(admin, on_cluster({"metadata.name": "n" * length}))
    assert (status, "metadata.name has at most 40 characters" in text) == (422, True), text


@pytest.mark.parametrize("name", ["a.b", "1st", "0"])
def test_rc14_name_that_no_service_can_have_is_refused_with_the_form(admin: Api, name: str) -> None:
    status, text = post(admin, on_cluster({"metadata.name": name}))
    assert (status, "first a letter" in text) == (422, True), text


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"rl.rollout.promptsPerStp": 4}, 400, 'unknown field "spec.rl.rollout.promptsPerStp"'),
        ({"rl.temperature": 1.0}, 400, 'unknown field "spec.rl.temperature"'),
        ({"cluster.head": {"resource": {}}}, 400, 'unknown field "spec.cluster.head.resource"'),
        ({"rl.rollout.promptsPerStep": "4"}, 422, "spec.rl.rollout.promptsPerStep"),
        ({"training.learningRate.actor": "1e-6"}, 422, "spec.training.learningRate.actor"),
        ({"rl.kl.coef": -1}, 422, "spec.rl.kl.coef"),
        ({"rl.algorithm": "gpro"}, 422, 'supported values: "ppo", "grpo"'),
        ({"training.packing": "true"}, 422, "spec.training.packing"),
        ({"cluster.shmSize": "64 GB"}, 422, "spec.cluster.shmSize"),
        ({"cluster.image": "Team/x:", "cluster.rayVersion": "2.60.0"}, 422, "spec.cluster.image"),
        (
            {"cluster.volumes": [{"name": "a", "mountPath": "/a/../usr", "existingClaim": "a"}]},
            422,
            "spec.cluster.volumes[0].mountPath",
        ),
        ({"cluster.securityContext": {"runAsUser": 0}}, 422, "spec.cluster.securityContext.runAsUser"),
        ({"cluster.workers": {"resources": {"limits": {"cpu": True}}}}, 422, "spec.cluster.workers.resources.limits.cpu"),
    ],
)
def test_rc31_field_that_is_not_in_the_api_or_of_another_type_is_refused(admin: Api, changes: Changes, status: int, words: str) -> None:
    found, text = post(admin, on_cluster(changes))
    assert (found, words in text) == (status, True), text


@pytest.mark.parametrize("quantity", [4, "4", "500m", "1.5Gi"])
def test_quantity_is_a_number_or_a_text(admin: Api, quantity: int | str) -> None:
    assert post(admin, on_cluster({"cluster.workers": {"resources": {"requests": {"cpu": quantity}}}}))[0] == 201


FREE_MAPS = on_cluster(
    {
        "cluster.podOverlay": {"spec": {"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["store"]}]}},
        "placement.rollout.engineArgs": {"max_num_seqs": 8},
    }
)


@pytest.fixture
def stored(api: Api) -> dict[str, Any]:
    """A job that exists."""
    return api.create(FREE_MAPS)


def test_defaults_are_filled_in_but_for_what_a_preset_sets(stored: dict[str, Any]) -> None:
    spec = stored["spec"]
    assert (spec["suspend"], spec["lifecycle"]["maxInfraRestarts"], spec["cluster"]["gpuResource"]) == (False, 10, "nvidia.com/gpu")
    assert spec["cluster"]["securityContext"] == {"runAsUser": 1000, "fsGroup": 1000}
    assert spec["rl"]["rollout"]["promptsPerStep"] == 16
    assert "samplesPerPrompt" not in spec["rl"]["rollout"]
    assert spec["checkpoint"]["volume"]["create"] == {"size": "10Gi", "accessModes": ["ReadWriteMany"], "retain": True}
    assert spec["cluster"]["podOverlay"]["spec"]["hostAliases"][0]["ip"] == "10.0.0.1"


def merge(api: Api, patch: Changes) -> tuple[int, str]:
    path = f"/apis/rlhf.dev/v1alpha1/namespaces/{api.namespace}/rlhfjobs/example"
    status, text = api.http("PATCH", path, body=patch, headers={"Content-Type": "application/merge-patch+json"})
    return status, text


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ({"training": {"seed": 7}}, "training"),
        ({"rl": {"kl": {"coef": 0.5}}}, "rl"),
        ({"models": {"actor": {"path": "other"}}}, "models"),
        ({"evaluation": {"datasets": [{"path": "test.jsonl"}]}}, "evaluation"),
        ({"cluster": {"shmSize": "1Gi"}}, "cluster"),
        ({"checkpoint": {"volume": {"create": {"size": "20Gi"}}}}, "checkpoint"),
        ({"placement": {"actor": {"nodes": 2}, "rollout": {"engines": 2}}}, "placement"),
    ],
)
def test_edit_of_a_fixed_field_is_refused_by_name(api: Api, stored: dict[str, Any], patch: Changes, field: str) -> None:
    status, text = merge(api, {"spec": patch})
    message = f"spec.{field} cannot be changed after creation, only suspend and lifecycle can; create a job with another name"
    assert (status, message in text) == (422, True), text


@pytest.mark.parametrize("patch", [{"suspend": True}, {"lifecycle": {"backoffLimit": 2, "activeDeadlineSeconds": 600}}])
def test_suspend_and_lifecycle_can_be_edited(api: Api, stored: dict[str, Any], patch: Changes) -> None:
    status, text = merge(api, {"spec": patch})
    assert status == 200, text
    edited = json.loads(text)
    assert edited["metadata"]["generation"] == 2
    for key, value in patch.items():
        assert edited["spec"][key] == value if not isinstance(value, dict) else value.items() <= edited["spec"][key].items()


@pytest.mark.parametrize(
    "patch",
    [
        {"cluster": {"podOverlay": {"spec": {"hostAliases": []}}}},
        {"cluster": {"podOverlay": {"metadata": {"labels": {"a": "b"}}}}},
        {"cluster": {"head": {"affinity": {"podAffinity": {}}}}},
        {"placement": {"rollout": {"engineArgs": {"max_num_seqs": 16}}}},
        {"placement": {"colocate": "none"}},
    ],
)
def test_edit_inside_a_free_map_is_refused_though_no_rule_can_read_in_it(api: Api, stored: dict[str, Any], patch: Changes) -> None:
    status, text = merge(api, {"spec": patch})
    assert (status, "cannot be changed after creation" in text) == (422, True), text


STATUS: dict[str, Any] = {
    "phase": "Running",
    "algorithm": "grpo",
    "attempt": 2,
    "gpus": 8,
    "reason": "Training",
    "progress": {"step": 140, "totalSteps": 500, "reward": "0.612", "kl": "0.0041", "tokensPerSecond": "18200", "eta": "2h11m"},
    "checkpoint": {"step": 140, "path": "/checkpoints/default/example/step-000140", "committedAt": "2026-01-01T00:00:00Z"},
}


def test_columns_read_as_the_status_says(api: Api, kubectl: Kubectl, stored: dict[str, Any]) -> None:
    api.patch("RLHFJob", "example", {"status": STATUS}, status=True)
    for name in ("rlhfjobs", "rlhfjob", "rlhf", "all"):
        header, row = kubectl("get", name).stdout.splitlines()[:2]
        assert header.split() == ["NAME", "PHASE", "ALGORITHM", "STEP", "REWARD", "KL", "ATTEMPT", "GPUS", "AGE"], name
        assert row.removeprefix("rlhfjob.rlhf.dev/").split()[:-1] == ["example", "Running", "grpo", "140", "0.612", "0.0041", "2", "8"]
    header, row = kubectl("get", "rlhf", "-o", "wide").stdout.splitlines()
    assert header.split()[-4:] == ["TOK/S", "ETA", "CHECKPOINT", "REASON"]
    assert row.split()[-4:] == ["18200", "2h11m", "140", "Training"]


def test_describe_tells_where_the_model_is_and_which_evaluation_was_best(api: Api, kubectl: Kubectl, stored: dict[str, Any]) -> None:
    best = {"step": 120, "metric": "eval/test/pass@1", "value": "0.710"}
    model = {"step": 500, "path": "/checkpoints/default/example/final"}
    status = {**STATUS, "phase": "Succeeded", "model": model, "checkpoint": {**STATUS["checkpoint"], "best": best}}
    api.patch("RLHFJob", "example", {"status": status}, status=True)
    printed = [line.split() for line in kubectl("describe", "rlhfjob", "example").stdout.splitlines()]
    at = printed.index(["Model:"])
    assert printed[at + 1 : at + 3] == [["Path:", "/checkpoints/default/example/final"], ["Step:", "500"]]
    assert ["Metric:", "eval/test/pass@1"] in printed
    assert kubectl("get", "rlhfjob", "example", "-o", "jsonpath={.status.model.path}").stdout == "/checkpoints/default/example/final"


def test_status_is_written_only_by_its_own_door(api: Api, stored: dict[str, Any]) -> None:
    api.patch("RLHFJob", "example", {"status": STATUS})
    assert "status" not in (api.get("RLHFJob", "example") or {})
    api.patch("RLHFJob", "example", {"status": STATUS, "spec": {"suspend": True}}, status=True)
    found = api.get("RLHFJob", "example") or {}
    assert (found["status"]["phase"], found["spec"]["suspend"]) == ("Running", False)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("rlhfjob.spec", "suspend\t<boolean>"),
        ("rlhfjob.spec.cluster.shmSize", "Size of /dev/shm"),
        ("rlhfjob.spec.cluster.network.infiniband", "NCCL_IB_HCA"),
        ("rlhfjob.spec.lifecycle.cleanupPolicy.onFailure", "the head stays"),
        ("rlhfjob.status.progress.kl", "nats a token"),
    ],
)
def test_explain_tells_what_a_field_is(kubectl: Kubectl, field: str, words: str) -> None:
    # kubectl asks for the published schema, which follows the definition by seconds.
    text = eventually(f"explain {field}", lambda: kubectl("explain", field).stdout or None, seconds=30, every=0.5)
    assert words in " ".join(text.split(" ")).replace("\n  ", " ") or words in " ".join(text.split())


def test_describe_shows_progress_and_spec(api: Api, kubectl: Kubectl, stored: dict[str, Any]) -> None:
    api.patch("RLHFJob", "example", {"status": STATUS}, status=True)
    text = " ".join(kubectl("describe", "rlhfjob", "example").stdout.split())
    for part in ("Phase: Running", "Total Steps: 500", "Max Infra Restarts: 10", "Create: Access Modes: ReadWriteMany"):
        assert part in text


def test_file_can_be_applied_the_old_way_as_well(run_kubectl: Kubectl) -> None:
    """Client-side apply keeps the whole object in an annotation of at most 256 KiB."""
    done = run_kubectl("apply", "--dry-run=server", "-f", str(ROOT / "crds" / crd.FILE_NAME))
    assert done.returncode == 0, done.stderr


def test_stored_job_is_the_job_of_the_manifest(stored: dict[str, Any]) -> None:
    job, faults = manifest.validate(stored)
    given, _ = manifest.validate(FREE_MAPS)
    assert faults == []
    assert job is not None
    assert given is not None
    assert job.spec == given.spec
