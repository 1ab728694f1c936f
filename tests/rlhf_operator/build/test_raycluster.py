from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_api.clusterplan import worker_groups
from rlhf_api.plan import plan
from rlhf_api.quantity import parse
from rlhf_api.spec import RLHFJob
from rlhf_operator.build import ray_cluster
from rlhf_operator.settings import OperatorSettings

GOLDEN = Path(__file__).parent / "golden"
MakeJob = Callable[..., RLHFJob]


def built(job: RLHFJob, settings: OperatorSettings, **more: Any) -> dict[str, Any]:
    found = ray_cluster(job, settings, **more)
    assert isinstance(found, dict), str(found)
    return found


def containers(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    spec = cluster["spec"]
    templates = [spec["headGroupSpec"]["template"], *(group["template"] for group in spec["workerGroupSpecs"])]
    return [template["spec"]["containers"][0] for template in templates]


def env_of(container: dict[str, Any]) -> dict[str, Any]:
    names = [entry["name"] for entry in container["env"]]
    assert len(names) == len(set(names))
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


@pytest.mark.parametrize("which", ["tiny", "infiniband", "separate"])
def test_whole_object(which: str, make_job: MakeJob, settings: OperatorSettings) -> None:
    """Reviewed by eye; ``UPDATE_GOLDEN=1 pytest`` writes the files anew."""
    found = built(make_job(which, name=which), settings)
    path = GOLDEN / f"raycluster-{which}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(found, sort_keys=False, width=140))
    assert found == yaml.safe_load(path.read_text())


def test_builds_the_same_object_each_time(make_job: MakeJob, settings: OperatorSettings) -> None:
    first, second = (yaml.safe_dump(built(make_job("infiniband"), settings), sort_keys=False) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("which", "changes"),
    [
        ("infiniband", {}),
        ("infiniband", {"rl.algorithm": "ppo", "models.critic": {"path": "critic"}, "rl.rollout.samplesPerPrompt": 8}),
        ("separate", {}),
        ("separate", {"placement.colocate": ["actorReference"]}),
        ("separate", {"placement.rollout": {"engines": 6, "tensorParallel": 1}}),
    ],
)
def test_rc28_cluster_has_exactly_the_gpus_of_the_plan(
    which: str, changes: dict[str, Any], make_job: MakeJob, settings: OperatorSettings
) -> None:
    job = make_job(which, changes)
    groups = built(job, settings)["spec"]["workerGroupSpecs"]
    gpus = [int(group["rayStartParams"]["num-gpus"]) * group["replicas"] for group in groups]
    resource = job.spec.cluster.gpu_resource
    limits = [group["template"]["spec"]["containers"][0]["resources"]["limits"][resource] * group["replicas"] for group in groups]
    assert sum(gpus) == sum(limits) == plan(job).devices
    assert [group["groupName"] for group in groups] == [group.name for group in worker_groups(job)]


def test_replicas_are_fixed(make_job: MakeJob, settings: OperatorSettings) -> None:
    for group in built(make_job("separate"), settings)["spec"]["workerGroupSpecs"]:
        assert group["minReplicas"] == group["maxReplicas"] == group["replicas"]


def test_head_takes_no_actors_and_no_devices(make_job: MakeJob, settings: OperatorSettings) -> None:
    head = built(make_job("infiniband"), settings)["spec"]["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == head["rayStartParams"]["num-gpus"] == "0"
    container = head["template"]["spec"]["containers"][0]
    assert not [name for name in container["resources"]["limits"] if "/" in name]
    assert not [name for name in env_of(container) if name.startswith("NCCL_")]


def test_rc13_secrets_are_references_everywhere(make_job: MakeJob, settings: OperatorSettings) -> None:
    cluster = built(make_job("infiniband"), settings)
    for container in containers(cluster):
        env = env_of(container)
        assert env["HF_TOKEN"] == {"secretKeyRef": {"name": "hf", "key": "token"}}
        assert env["RAY_AUTH_TOKEN"] == {"secretKeyRef": {"name": "example-ray-token", "key": "auth_token"}}


def test_token_is_asked_for_on_every_container(make_job: MakeJob, settings: OperatorSettings) -> None:
    for container in containers(built(make_job("separate"), settings)):
        assert env_of(container)["RAY_AUTH_MODE"] == "token"


def test_auth_options_only_where_the_schema_has_a_secret_name(make_job: MakeJob, settings: OperatorSettings) -> None:
    assert "authOptions" not in built(make_job(), settings)["spec"]
    newer = dataclasses.replace(settings, ray_auth_options=True)
    assert built(make_job(), newer)["spec"]["authOptions"] == {"mode": "token", "secretName": "example-ray-token"}


def test_stopping_waits_as_long_as_the_pod_does(make_job: MakeJob, settings: OperatorSettings) -> None:
    cluster = built(make_job("infiniband"), settings)
    assert [env_of(container)["RAY_JOB_STOP_WAIT_TIME_S"] for container in containers(cluster)] == ["300", "300"]
    assert cluster["spec"]["headGroupSpec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 300


def test_network_env_overrides_what_the_fabric_sets(make_job: MakeJob, settings: OperatorSettings) -> None:
    changes = {"cluster.network.env": {"NCCL_SOCKET_IFNAME": "eth1", "UCX_TLS": "rc"}}
    env = env_of(containers(built(make_job("infiniband", changes), settings))[1])
    assert (env["NCCL_SOCKET_IFNAME"], env["GLOO_SOCKET_IFNAME"], env["UCX_TLS"]) == ("eth1", "ib0", "rc")
    assert env["NCCL_IB_HCA"] == "mlx5_0,mlx5_1"


def test_adapters_are_never_guessed(make_job: MakeJob, settings: OperatorSettings) -> None:
    job = make_job("infiniband", {"cluster.network": {"infiniband": {"resource": {"rdma/ib": 1}}}})
    env = env_of(containers(built(job, settings))[1])
    assert {name for name in env if name.startswith(("NCCL_", "GLOO_"))} == {"NCCL_DEBUG", "NCCL_IB_DISABLE"}


def test_own_volumes_of_the_job_become_the_hugging_face_home(make_job: MakeJob, settings: OperatorSettings) -> None:
    assert env_of(containers(built(make_job("infiniband"), settings))[0])["HF_HOME"] == "/cache"
    assert "HF_HOME" not in env_of(containers(built(make_job("tiny"), settings))[0])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"cluster.shmSize": "64Gi"}, str(32 * 2**30)),
        ({"cluster.shmSize": "100Mi"}, str(75 * 2**20)),
        ({"cluster.shmSize": None, "cluster.workers.resources": {"limits": {"memory": "100Gi"}}}, str(30 * 2**30)),
        ({"cluster.shmSize": None, "cluster.workers.resources": {}}, None),
    ],
)
def test_object_store_fits_into_shared_memory(
    changes: dict[str, Any], expected: str | None, make_job: MakeJob, settings: OperatorSettings
) -> None:
    group = built(make_job("infiniband", changes), settings)["spec"]["workerGroupSpecs"][0]
    assert group["rayStartParams"].get("object-store-memory") == expected


def test_object_store_of_the_head_fits_into_its_memory_limit(make_job: MakeJob, settings: OperatorSettings) -> None:
    job = make_job("infiniband", {"cluster.shmSize": "64Gi", "cluster.head.resources": {"limits": {"memory": "20Gi"}}})
    params = built(job, settings)["spec"]["headGroupSpec"]["rayStartParams"]
    assert int(params["object-store-memory"]) == 6 * 2**30


def test_defaults_leave_alone_what_the_job_names(make_job: MakeJob, settings: OperatorSettings) -> None:
    job = make_job("tiny", {"cluster.workers.resources": {"limits": {"memory": "2Gi"}}})
    head, worker = containers(built(job, settings))
    assert worker["resources"] == {"requests": {"cpu": "250m", "ephemeral-storage": "1Gi"}, "limits": {"memory": "2Gi"}}
    assert head["resources"]["limits"] == {"memory": "8Gi"}


def test_two_cores_hold_a_head_and_two_workers(make_job: MakeJob, settings: OperatorSettings) -> None:
    job = make_job("tiny", {"placement.actor": {"nodes": 2}, "placement.rollout": {"engines": 2}})
    cluster = built(job, settings)
    pods = [1, *(group["replicas"] for group in cluster["spec"]["workerGroupSpecs"])]
    asked = [parse(container["resources"]["requests"]["cpu"]) for container in containers(cluster)]
    assert sum(count * cpus for count, cpus in zip(pods, asked, strict=True)) < 1


def test_queue_label_is_on_the_cluster_and_never_on_pods(make_job: MakeJob, settings: OperatorSettings) -> None:
    cluster = built(make_job("infiniband"), settings)
    assert cluster["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    template = cluster["spec"]["headGroupSpec"]["template"]
    assert not [name for name in template["metadata"]["labels"] if name.startswith(("kueue.x-k8s.io/", "ray.io/"))]
    assert template["metadata"]["labels"]["volcano.sh/queue-name"] == "gpu"
    assert "suspend" not in cluster["spec"]


def test_avoided_nodes_join_every_alternative(make_job: MakeJob, settings: OperatorSettings) -> None:
    cluster = built(make_job("infiniband"), settings, avoid_nodes=("node-b", "node-a"))
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in ("node-a", "node-b")]
    rack = {"key": "rack", "operator": "In", "values": ["r1", "r2"]}
    head, worker = (
        template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        for template in (cluster["spec"]["headGroupSpec"]["template"], cluster["spec"]["workerGroupSpecs"][0]["template"])
    )
    assert head == [{"matchFields": fields}]
    assert worker == [{"matchExpressions": [rack], "matchFields": fields}]


@pytest.mark.parametrize("required", [{}, {"nodeSelectorTerms": []}])
def test_an_affinity_without_terms_stays_as_it_is(make_job: MakeJob, settings: OperatorSettings, required: dict[str, Any]) -> None:
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    template = built(make_job("tiny", {"cluster.head": {"affinity": affinity}}), settings, avoid_nodes=("bad",))["spec"]["headGroupSpec"][
        "template"
    ]
    found = template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert found == {"nodeSelectorTerms": []}


def test_avoided_nodes_survive_an_overlay_with_affinity(make_job: MakeJob, settings: OperatorSettings) -> None:
    term = {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}, term]}}}
    job = make_job("tiny", {"cluster.podOverlay": {"spec": {"affinity": affinity}}})
    template = built(job, settings, avoid_nodes=("bad",))["spec"]["headGroupSpec"]["template"]
    terms = template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{}, {**term, "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["bad"]}]}]


def test_a_volume_of_one_node_keeps_all_pods_on_it(make_job: MakeJob, settings: OperatorSettings) -> None:
    zone = {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": "topology.kubernetes.io/zone"}
    changes = {
        "checkpoint.volume": {"create": {"size": "1Gi", "accessModes": ["ReadWriteOnce"]}},
        "cluster.workers": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [zone]}}},
    }
    job = make_job("tiny", changes)
    assert job.metadata.uid is not None
    beside = {"labelSelector": {"matchLabels": {"rlhf.dev/job-uid": job.metadata.uid}}, "topologyKey": "kubernetes.io/hostname"}
    spec = built(job, settings)["spec"]
    head, worker = (
        template["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        for template in (spec["headGroupSpec"]["template"], spec["workerGroupSpecs"][0]["template"])
    )
    assert head == [beside]
    assert worker == [zone, beside]
    assert spec["workerGroupSpecs"][0]["template"]["metadata"]["labels"]["rlhf.dev/job-uid"] == job.metadata.uid


def test_a_shared_volume_leaves_placement_to_the_scheduler(make_job: MakeJob, settings: OperatorSettings) -> None:
    job = make_job("tiny", {"checkpoint.volume": {"create": {"size": "1Gi"}}})
    assert "affinity" not in built(job, settings)["spec"]["headGroupSpec"]["template"]["spec"]


def test_gpu_pods_tolerate_the_taint_of_their_resource(make_job: MakeJob, settings: OperatorSettings) -> None:
    tainted = {"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    cluster = built(make_job("separate"), settings)["spec"]
    assert all(tainted in group["template"]["spec"]["tolerations"] for group in cluster["workerGroupSpecs"])
    assert "tolerations" not in cluster["headGroupSpec"]["template"]["spec"]
