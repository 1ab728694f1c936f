"""The RayCluster of a job, for KubeRay 1.5 to 1.7: whatever those differ in is written out here."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from rlhf_api.clusterplan import WorkerGroup, worker_groups
from rlhf_api.spec import RLHFJob
from rlhf_api.violations import Violation
from rlhf_operator import names
from rlhf_operator.build import overlay, ownership
from rlhf_operator.build.metadata import Object, metadata, uid_of
from rlhf_operator.build.pods import head_template, object_labels, worker_template
from rlhf_operator.build.refusal import Refused
from rlhf_operator.build.resources import object_store_bytes
from rlhf_operator.settings import OperatorSettings


def ray_cluster(job: RLHFJob, settings: OperatorSettings, avoid_nodes: Sequence[str] = ()) -> Object | Refused:
    """``avoid_nodes``: names of nodes that no pod may run on, because pods of this job kept dying there.

    Refused where the job's pod overlay fights a field that the operator or KubeRay owns. Replicas are fixed (no autoscaling),
    and `suspend` is left out: Kueue writes it.
    """
    groups = worker_groups(job)
    templates = [head_template(job, settings), *(worker_template(job, settings, group) for group in groups)]
    merged: list[Object] = []
    violations: dict[str, Violation] = {}
    for template in templates:
        found, faults = overlay.merge(template, job.spec.cluster.pod_overlay)
        violations |= {each.field: each for each in faults or ownership.fights(template, found)}
        placed = on_one_node(found, job) if _one_node_volume(job) else found
        merged.append(avoiding(placed, avoid_nodes))
    if violations:
        return Refused(tuple(violations.values()))
    head, *workers = merged
    spec: Object = {
        "rayVersion": job.spec.cluster.ray_version or settings.default_ray_version,
        "enableInTreeAutoscaling": False,
        "headGroupSpec": {"rayStartParams": _head_params(job, head), "template": head},
        "workerGroupSpecs": [_group(job, group, template) for group, template in zip(groups, workers, strict=True)],
    }
    if settings.ray_auth_options:
        spec["authOptions"] = {"mode": "token", "secretName": names.token_secret(job.metadata.name)}
    described = metadata(job, names.ray_cluster(job.metadata.name))
    described["labels"] = object_labels(job)
    if job.spec.cluster.annotations:
        described["annotations"] = dict(job.spec.cluster.annotations)
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": described, "spec": spec}


def _one_node_volume(job: RLHFJob) -> bool:
    """Whether the checkpoint volume that the job asks for can be mounted on one node only."""
    volume = job.spec.checkpoint.volume
    return volume is not None and volume.create is not None and "ReadWriteMany" not in volume.create.access_modes


def on_one_node(template: Object, job: RLHFJob) -> Object:
    """``template`` with a required affinity to the job's other pods: the first pod goes anywhere, a later one to its node.

    Without it the scheduler may spread head and worker over two nodes, and a ReadWriteOnce volume reaches only one of them.
    """
    found = copy.deepcopy(template)
    term = {"labelSelector": {"matchLabels": {names.JOB_UID_LABEL: uid_of(job)}}, "topologyKey": "kubernetes.io/hostname"}
    pod_affinity = found["spec"].setdefault("affinity", {}).setdefault("podAffinity", {})
    pod_affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", []).append(term)
    return found


def avoiding(template: Object, nodes: Sequence[str]) -> Object:
    """``template`` with a required anti-affinity to ``nodes``, added to every alternative that it already has."""
    if not nodes:
        return template
    found = copy.deepcopy(template)
    # By name, not by the host name label, which some clouds set to something else.
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in sorted(nodes)]
    node_affinity = found["spec"].setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = node_affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {"nodeSelectorTerms": [{}]})
    # An empty term matches no node; with fields it would match nearly all.
    terms = required.get("nodeSelectorTerms") or []
    required["nodeSelectorTerms"] = [
        {**term, "matchFields": [*term.get("matchFields", []), *fields]} if term or terms == [{}] else term for term in terms
    ]
    return found


def _group(job: RLHFJob, group: WorkerGroup, template: Object) -> Object:
    gpus = group.gpus_per_pod
    params = {"num-cpus": str(group.cpus_per_pod), "num-gpus": str(gpus)}
    return {
        "groupName": group.name,
        "replicas": group.pods,
        "minReplicas": group.pods,
        "maxReplicas": group.pods,
        "rayStartParams": {**params, **_object_store(job, template, gpus > 0)},
        "template": template,
    }


def _head_params(job: RLHFJob, template: Object) -> dict[str, str]:
    """No CPUs and no GPUs for Ray: actors stay off the head, the driver is not counted."""
    params = {"num-cpus": "0", "num-gpus": "0", "dashboard-host": "0.0.0.0"}
    return {**params, **_object_store(job, template, job.spec.placement.accelerator != "cpu")}


def _object_store(job: RLHFJob, template: Object, gpus: bool) -> dict[str, str]:
    resources = template["spec"]["containers"][0]["resources"]
    size = object_store_bytes(resources, job.spec.cluster.shm_size, gpus)
    return {"object-store-memory": str(size)} if size is not None else {}
