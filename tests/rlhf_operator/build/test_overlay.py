from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.clusterplan import worker_groups
from rlhf_api.spec import RLHFJob
from rlhf_operator.build import Refused, precheck, ray_cluster
from rlhf_operator.build.overlay import merge
from rlhf_operator.build.ownership import fights
from rlhf_operator.build.pods import head_template, worker_template
from rlhf_operator.settings import OperatorSettings

MakeJob = Callable[..., RLHFJob]

BASE: dict[str, Any] = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "containers": [{"name": "ray", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}],
        "tolerations": [{"key": "x", "operator": "Exists"}],
        "terminationGracePeriodSeconds": 120,
    },
}


def merged(overlay: dict[str, Any]) -> dict[str, Any]:
    found, faults = merge(BASE, overlay)
    assert not faults
    return found


def test_mappings_are_merged_and_null_removes() -> None:
    found = merged({"metadata": {"labels": {"b": "2"}}, "spec": {"terminationGracePeriodSeconds": None, "priority": 3}})
    assert found["metadata"]["labels"] == {"a": "1", "b": "2"}
    assert "terminationGracePeriodSeconds" not in found["spec"]
    assert found["spec"]["priority"] == 3


def test_containers_are_matched_by_name_and_new_ones_follow() -> None:
    sidecar = {"name": "logs", "image": "busybox"}
    found = merged({"spec": {"containers": [sidecar, {"name": "ray", "workingDir": "/w"}]}})
    assert [container["name"] for container in found["spec"]["containers"]] == ["ray", "logs"]
    assert found["spec"]["containers"][0] == {**BASE["spec"]["containers"][0], "workingDir": "/w"}


def test_a_variable_is_replaced_as_a_whole_in_its_place() -> None:
    from_secret = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    found = merged({"spec": {"containers": [{"name": "ray", "env": [{"name": "C", "value": "3"}, from_secret]}]}})
    assert found["spec"]["containers"][0]["env"] == [from_secret, {"name": "B", "value": "2"}, {"name": "C", "value": "3"}]


def test_tolerations_are_added_once() -> None:
    more = {"key": "y", "operator": "Exists"}
    found = merged({"spec": {"tolerations": [more, {"key": "x", "operator": "Exists"}]}})
    assert found["spec"]["tolerations"] == [{"key": "x", "operator": "Exists"}, more]


@pytest.mark.parametrize(
    ("overlay", "field", "rule"),
    [
        ({"spec": {"containers": {"name": "x"}}}, "spec.containers", "a list stands here"),
        ({"spec": {"tolerations": {"key": "x"}}}, "spec.tolerations", "a list stands here"),
        ({"metadata": {"labels": "x"}}, "metadata.labels", "a mapping stands here"),
        ({"spec": {"containers": [{"image": "x"}]}}, "spec.containers[0]", "an item here has a name"),
        ({"spec": {"volumes": ["x"]}}, "spec.volumes[0]", "an item here has a name"),
        ({"spec": {"volumes": [{"name": 3}]}}, "spec.volumes[0]", "an item here has a name"),
        ({"spec": {"containers": [{"name": "x", "ports": {"a": 1}}]}}, "spec.containers[0].ports", "a list stands here"),
        ({"spec": {"volumes": [{"name": "x"}, {"name": "x"}]}}, "spec.volumes[1].name", "each name stands once"),
        ({"spec": {"$patch": "replace"}}, "spec.$patch", "directives"),
    ],
)
def test_overlay_that_means_nothing(overlay: dict[str, Any], field: str, rule: str) -> None:
    _, faults = merge(BASE, overlay)
    assert [fault.field for fault in faults] == [f"spec.cluster.podOverlay.{field}"]
    assert rule in faults[0].rule


def test_labels_may_be_called_like_lists() -> None:
    found = merged({"metadata": {"labels": {"env": "prod"}}, "spec": {"nodeSelector": {"volumes": "fast"}}})
    assert found["metadata"]["labels"]["env"] == "prod"
    assert found["spec"]["nodeSelector"] == {"volumes": "fast"}


def ray(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "ray", **fields}]}}


REFUSED: list[tuple[dict[str, Any], str, str | None]] = [
    (ray(image="other"), "spec.containers[ray].image", "spec.cluster.image"),
    (ray(command=["sh"]), "spec.containers[ray].command", None),
    (ray(args=["sh"]), "spec.containers[ray].args", None),
    (ray(resources={"limits": {"nvidia.com/gpu": 1}}), "spec.containers[ray].resources.limits", "spec.cluster.head.resources"),
    (ray(env=[{"name": "RAY_AUTH_MODE", "value": "disabled"}]), "spec.containers[ray].env[RAY_AUTH_MODE]", "spec.cluster.env"),
    (ray(env=[{"name": "RAY_AUTH_TOKEN_PATH", "value": "/t"}]), "spec.containers[ray].env[RAY_AUTH_TOKEN_PATH]", "another name"),
    (ray(env=[{"name": "RAY_ADDRESS", "value": "x:1"}]), "spec.containers[ray].env[RAY_ADDRESS]", "another name"),
    (ray(ports=[{"containerPort": 8265, "name": "ui"}]), "spec.containers[ray].ports[8265]", None),
    (ray(ports=[{"containerPort": 52365}]), "spec.containers[ray].ports[52365]", "leave free"),
    (
        ray(volumeMounts=[{"mountPath": "/checkpoints", "name": "x"}]),
        "spec.containers[ray].volumeMounts[/checkpoints]",
        "spec.cluster.volumes",
    ),
    (ray(volumeMounts=[{"mountPath": "/etc", "name": "x"}]), "spec.containers[ray].volumeMounts[/etc]", "beside"),
    (ray(volumeMounts=[{"mountPath": "//usr/.", "name": "x"}]), "spec.containers[ray].volumeMounts[//usr/.]", "beside"),
    (ray(volumeMounts=[{"mountPath": "/mnt/../dev/shm", "name": "x"}]), "spec.containers[ray].volumeMounts[/mnt/../dev/shm]", "beside"),
    (ray(volumeMounts=[{"mountPath": "/opt/rlhf/venv", "name": "x"}]), "spec.containers[ray].volumeMounts[/opt/rlhf/venv]", "beside"),
    (ray(volumeMounts=[{"mountPath": "/etc/rlhf/more", "name": "x"}]), "spec.containers[ray].volumeMounts[/etc/rlhf/more]", "beside"),
    ({"spec": {"containers": None}}, "spec.containers", "further containers"),
    (
        {"spec": {"containers": [{"name": "x", "ports": [{"containerPort": 6379}]}]}},
        "spec.containers[x].ports[6379]",
        "leave free",
    ),
    ({"spec": {"initContainers": [{"name": "wait-gcs-ready"}]}}, "spec.initContainers[wait-gcs-ready]", "another name"),
    ({"spec": {"volumes": [{"name": "rlhf-shm", "emptyDir": {}}]}}, "spec.volumes[rlhf-shm]", "spec.cluster.volumes"),
    ({"spec": {"volumes": [{"name": "shared-mem", "emptyDir": {}}]}}, "spec.volumes[shared-mem]", "another name"),
    (
        {"spec": {"volumes": [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}},
        "spec.volumes[t]",
        None,
    ),
    ({"spec": {"automountServiceAccountToken": True}}, "spec.automountServiceAccountToken", None),
    ({"spec": {"automountServiceAccountToken": None}}, "spec.automountServiceAccountToken", None),
    ({"spec": {"serviceAccountName": "admin"}}, "spec.serviceAccountName", "spec.cluster.serviceAccountName"),
    ({"spec": {"restartPolicy": "Never"}}, "spec.restartPolicy", "spec.lifecycle.maxInfraRestarts"),
    (
        {"spec": {"terminationGracePeriodSeconds": 5}},
        "spec.terminationGracePeriodSeconds",
        "spec.cluster.terminationGracePeriodSeconds",
    ),
    ({"spec": {"securityContext": {"runAsUser": 0}}}, "spec.securityContext.runAsUser", "spec.cluster.securityContext"),
    ({"metadata": {"labels": {"rlhf.dev/job": "other"}}}, "metadata.labels.rlhf.dev/job", "spec.cluster.labels"),
    ({"metadata": {"labels": {"ray.io/cluster": "other"}}}, "metadata.labels.ray.io/cluster", "spec.cluster.labels"),
    ({"metadata": {"labels": {"app.kubernetes.io/name": "x"}}}, "metadata.labels.app.kubernetes.io/name", "spec.cluster.labels"),
    ({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "x"}}}, "metadata.labels.kueue.x-k8s.io/queue-name", "another name"),
    (
        {"metadata": {"annotations": {"ray.io/overwrite-container-cmd": "true"}}},
        "metadata.annotations.ray.io/overwrite-container-cmd",
        "another name",
    ),
    (
        {"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "x"}}},
        "metadata.annotations.k8s.v1.cni.cncf.io/networks",
        "spec.cluster.network.infiniband.networks",
    ),
]


@pytest.mark.parametrize(("overlay", "field", "nearest"), REFUSED, ids=[field for _, field, _ in REFUSED])
def test_overlay_that_fights_an_owned_field(
    overlay: dict[str, Any], field: str, nearest: str | None, make_job: MakeJob, settings: OperatorSettings
) -> None:
    job = make_job("tiny", {"cluster.podOverlay": overlay})
    found = ray_cluster(job, settings)
    assert isinstance(found, Refused)
    assert precheck.refusals(job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": None})})) == list(found.violations)
    assert [violation.field for violation in found.violations] == [f"spec.cluster.podOverlay.{field}"]
    assert found.violations[0].rule
    if nearest is not None:
        assert nearest in str(found)


def test_locked_memory_cannot_be_taken_away(make_job: MakeJob, settings: OperatorSettings) -> None:
    overlay = ray(securityContext={"capabilities": {"add": ["SYS_PTRACE"]}})
    assert isinstance(ray_cluster(make_job("tiny", {"cluster.podOverlay": overlay}), settings), dict)
    found = ray_cluster(make_job("infiniband", {"cluster.podOverlay": overlay}), settings)
    assert isinstance(found, Refused)
    assert "IPC_LOCK among them" in str(found)


def test_overlay_may_do_the_rest(make_job: MakeJob, settings: OperatorSettings) -> None:
    overlay = {
        "metadata": {"labels": {"cost": "42"}, "annotations": {"sidecar.istio.io/inject": "false"}},
        "spec": {
            "hostNetwork": True,
            "dnsPolicy": "ClusterFirstWithHostNet",
            "schedulerName": "volcano",
            "runtimeClassName": "nvidia",
            "nodeSelector": {"zone": "a"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "nic"}],
            "volumes": [{"name": "scratch", "hostPath": {"path": "/mnt/nvme"}}],
            "initContainers": [{"name": "warm", "image": "busybox"}],
            "containers": [
                {
                    "name": "ray",
                    "env": [{"name": "RAY_memory_monitor_refresh_ms", "value": "0"}],
                    "volumeMounts": [
                        {"name": "scratch", "mountPath": "/scratch"},
                        {"name": "scratch", "mountPath": "/usr/local/driver", "readOnly": True},
                    ],
                    "resources": {"claims": [{"name": "nic"}]},
                    "livenessProbe": {"failureThreshold": 240},
                    "ports": [{"containerPort": 9000}],
                },
                {"name": "logs", "image": "busybox"},
            ],
        },
    }
    job = make_job("infiniband", {"cluster.podOverlay": overlay})
    assert precheck.refusals(job) == []
    found = ray_cluster(job, settings)
    assert isinstance(found, dict), str(found)
    spec = found["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    assert spec["containers"][0]["livenessProbe"]["failureThreshold"] == 240
    assert spec["containers"][0]["livenessProbe"]["httpGet"]["port"] == 52365
    assert spec["containers"][1]["name"] == "logs"
    assert (spec["hostNetwork"], spec["schedulerName"], spec["nodeSelector"]["zone"]) == (True, "volcano", "a")


# Overlays that look like pods, with the names that matter among their keys and values.
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(0, 9000), st.sampled_from(["ray", "rlhf-shm", "/checkpoints", "RAY_AUTH_TOKEN", "x"])
)
POD_KEYS = st.sampled_from(
    [
        "metadata", "spec", "labels", "annotations", "containers", "initContainers", "volumes", "env", "name", "value", "image", "command",
        "args", "ports", "containerPort", "volumeMounts", "mountPath", "resources", "limits", "requests", "securityContext", "runAsUser",
        "rlhf.dev/job", "tolerations", "affinity", "serviceAccountName", "restartPolicy", "projected", "sources", "serviceAccountToken",
    ]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(POD_KEYS, inner, max_size=4)), max_leaves=20
)
FREE = st.dictionaries(POD_KEYS, VALUES, max_size=4)
VARIABLE = st.fixed_dictionaries({"name": st.sampled_from(["RAY_AUTH_TOKEN", "HOME", "MINE"]), "value": SCALARS})
PORT = st.fixed_dictionaries({"containerPort": st.sampled_from([6379, 8265, 9000])})
MOUNT = st.fixed_dictionaries({"mountPath": st.sampled_from(["/", "/dev/shm", "/mine"]), "name": SCALARS})
VOLUME = st.fixed_dictionaries({"name": st.sampled_from(["rlhf-shm", "mine"]), "emptyDir": st.just({})})
CONTAINER = st.fixed_dictionaries(
    {"name": st.sampled_from(["ray", "x"])},
    optional={
        "image": SCALARS,
        "command": VALUES,
        "args": VALUES,
        "resources": FREE,
        "securityContext": FREE,
        "env": st.lists(VARIABLE, max_size=3),
        "ports": st.lists(PORT, max_size=2),
        "volumeMounts": st.lists(MOUNT, max_size=2),
    },
)
LABELS = st.dictionaries(st.sampled_from(["rlhf.dev/job", "ray.io/group", "x"]), st.sampled_from(["a", "b"]))
PODS = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries({}, optional={"labels": LABELS}),
        "spec": st.fixed_dictionaries(
            {}, optional={"containers": st.lists(CONTAINER, max_size=3), "volumes": st.lists(VOLUME, max_size=2)}
        ),
    },
)
OVERLAYS = st.one_of(FREE, PODS)


@pytest.fixture
def templates(make_job: MakeJob, settings: OperatorSettings) -> list[dict[str, Any]]:
    job = make_job("infiniband")
    return [head_template(job, settings), *(worker_template(job, settings, group) for group in worker_groups(job))]


def test_no_overlay_changes_what_is_owned(templates: list[dict[str, Any]]) -> None:
    @given(OVERLAYS)
    def holds(overlay: dict[str, Any]) -> None:
        for template in templates:
            before = copy.deepcopy(template)
            found, faults = merge(template, overlay)
            assert template == before
            if faults or fights(template, found):
                continue
            old, new = template["spec"], found["spec"]
            assert new["containers"][0]["name"] == "ray"
            for field in ("image", "imagePullPolicy", "command", "args"):
                assert new["containers"][0].get(field) == old["containers"][0].get(field)
            assert new["containers"][0]["resources"]["limits"] == old["containers"][0]["resources"]["limits"]
            for field in ("env", "ports", "volumeMounts"):
                assert _kept(old["containers"][0][field], new["containers"][0][field])
            assert _kept(old["volumes"], new["volumes"])
            assert template["metadata"]["labels"].items() <= found["metadata"]["labels"].items()
            for field in ("serviceAccountName", "automountServiceAccountToken", "restartPolicy"):
                assert new.get(field) == old.get(field)

    holds()


def test_merging_nothing_changes_nothing(templates: list[dict[str, Any]]) -> None:
    for template in templates:
        assert merge(template, {}) == (template, ())


def test_merging_twice_is_merging_once(templates: list[dict[str, Any]]) -> None:
    @given(OVERLAYS)
    def holds(overlay: dict[str, Any]) -> None:
        once, faults = merge(templates[1], overlay)
        if not faults:
            assert merge(once, overlay)[0] == once

    holds()


@given(st.lists(st.sampled_from("abcdef"), unique=True), st.lists(st.sampled_from("abcdef"), unique=True))
def test_merged_lists_keep_their_order(old: list[str], new: list[str]) -> None:
    before, overlay = ({"spec": {"volumes": [{"name": name, "new": mark} for name in found]}} for mark, found in enumerate((old, new)))
    found, _ = merge(before, overlay)
    assert [item["name"] for item in found["spec"]["volumes"]] == [*old, *(name for name in new if name not in old)]


def _kept(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> bool:
    """The former items come first, unchanged and in their order."""
    return after[: len(before)] == before
