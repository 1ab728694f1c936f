"""Pod templates of head and workers, as they are before the job's own overlay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_api.clusterplan import WorkerGroup
from rlhf_api.spec import PodsSpec, RLHFJob, TolerationSpec
from rlhf_operator import names
from rlhf_operator.build import network_env
from rlhf_operator.build.environment import environment
from rlhf_operator.build.metadata import Object, labels
from rlhf_operator.build.resources import HEAD_CPU, HEAD_GPU, WORKER_CPU, container_resources, worker_gpu
from rlhf_operator.build.volumes import mounts, volumes
from rlhf_operator.settings import OperatorSettings

CLUSTER_ONLY_LABELS = ("kueue.x-k8s.io/", "ray.io/")
"""Labels that speak about the RayCluster: on a pod, Kueue would queue it again, and KubeRay would lose it."""

HEAD_PORTS = {
    "gcs-server": names.GCS_PORT,
    "dashboard": names.DASHBOARD_PORT,
    "client": names.CLIENT_PORT,
    "metrics": names.RAY_METRICS_PORT,
    "rlhf-progress": names.PROGRESS_PORT,
    "rlhf-metrics": names.METRICS_PORT,
}
"""KubeRay 1.6 makes its head service of the declared ports, and drops its own defaults once one is declared."""
WORKER_PORTS = {"metrics": names.RAY_METRICS_PORT}


def head_template(job: RLHFJob, settings: OperatorSettings) -> Object:
    """CPU only, off the fabric: it runs Ray's head and the driver."""
    pods = job.spec.cluster.head
    defaults = HEAD_CPU if job.spec.placement.accelerator == "cpu" else HEAD_GPU
    container = {
        "ports": _ports(HEAD_PORTS),
        "env": environment(job, {}),
        "resources": container_resources(pods.resources, defaults, {}),
        "securityContext": _container_security(()),
    }
    return _template(job, settings, pods, container, timeout_seconds=5)


def worker_template(job: RLHFJob, settings: OperatorSettings, group: WorkerGroup) -> Object:
    cluster = job.spec.cluster
    network, pods = cluster.network, cluster.workers
    gpus = group.gpus_per_pod
    devices = {**({cluster.gpu_resource: gpus} if gpus else {}), **network_env.devices(network)}
    container = {
        "ports": _ports(WORKER_PORTS),
        "env": environment(job, network_env.network_env(network)),
        "resources": container_resources(pods.resources, worker_gpu(gpus) if gpus else WORKER_CPU, devices),
        "securityContext": _container_security(network_env.capabilities(network)),
    }
    # What the admission plug-in ExtendedResourceToleration does where it is on: GPU nodes are tainted with their resource's name.
    tainted = [{"key": cluster.gpu_resource, "operator": "Exists", "effect": "NoSchedule"}] if gpus else []
    return _template(job, settings, pods, container, annotations=network_env.network_annotations(network), tolerations=tainted)


def object_labels(job: RLHFJob) -> dict[str, str]:
    """Labels of the RayCluster."""
    cluster = job.spec.cluster
    queue = {names.QUEUE_LABEL: cluster.queue_name} if cluster.queue_name is not None else {}
    return {**cluster.labels, **queue, **labels(job)}


def pod_labels(job: RLHFJob) -> dict[str, str]:
    own = {name: value for name, value in job.spec.cluster.labels.items() if not name.startswith(CLUSTER_ONLY_LABELS)}
    return {**own, **labels(job)}


def _template(
    job: RLHFJob,
    settings: OperatorSettings,
    pods: PodsSpec,
    container: Object,
    *,
    annotations: Mapping[str, str] | None = None,
    tolerations: Sequence[Object] = (),
    timeout_seconds: int = 2,
) -> Object:
    cluster = job.spec.cluster
    metadata: Object = {"labels": pod_labels(job)}
    if cluster.annotations or annotations:
        metadata["annotations"] = {**cluster.annotations, **(annotations or {})}
    ray = {
        "name": names.RAY_CONTAINER,
        "image": cluster.image or settings.default_image,
        "imagePullPolicy": cluster.image_pull_policy,
        **container,
        "volumeMounts": mounts(job),
        "readinessProbe": _probe(10, 10, timeout_seconds),
        "livenessProbe": _probe(30, 120, timeout_seconds),
        # The end of the log explains a container that died without a message of its own.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    spec: Object = {
        "serviceAccountName": cluster.service_account_name,
        "automountServiceAccountToken": False,
        # A Service that is called `ray` would otherwise set RAY_PORT to an address.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": cluster.termination_grace_period_seconds,
        "securityContext": _pod_security(job),
        "containers": [ray],
        "volumes": volumes(job),
    }
    optional: Object = {
        "imagePullSecrets": [{"name": secret.name} for secret in cluster.image_pull_secrets],
        "nodeSelector": dict(pods.node_selector),
        "tolerations": [*(_toleration(each) for each in pods.tolerations), *tolerations],
        "affinity": dict(pods.affinity),
        "priorityClassName": pods.priority_class_name,
    }
    return {"metadata": metadata, "spec": {**spec, **{name: value for name, value in optional.items() if value}}}


def _ports(ports: Mapping[str, int]) -> list[Object]:
    return [{"name": name, "containerPort": number, "protocol": "TCP"} for name, number in ports.items()]


def _probe(delay_seconds: int, failures: int, timeout_seconds: int) -> Object:
    """KubeRay 1.6's own numbers and path. Given here, so that KubeRay 1.5 does not put in its own, which need wget."""
    return {
        "httpGet": {"path": "/api/healthz", "port": names.AGENT_PORT},
        "initialDelaySeconds": delay_seconds,
        "periodSeconds": 5,
        "timeoutSeconds": timeout_seconds,
        "failureThreshold": failures,
    }


def _pod_security(job: RLHFJob) -> Object:
    given = job.spec.cluster.security_context
    found: Object = {
        "runAsNonRoot": True,
        "runAsUser": given.run_as_user,
        "fsGroup": given.fs_group,
        # A checkpoint volume holds many files; their groups are set once, not at every start.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if given.run_as_group is not None:
        found["runAsGroup"] = given.run_as_group
    if given.supplemental_groups:
        found["supplementalGroups"] = list(given.supplemental_groups)
    return found


def _container_security(added: Sequence[str]) -> Object:
    """Ray, torch and vLLM write sockets and compiled code below /tmp, so the root file system stays writable."""
    capabilities: Object = {"drop": ["ALL"]}
    if added:
        capabilities["add"] = list(added)
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": False, "capabilities": capabilities}


def _toleration(given: TolerationSpec) -> Object:
    found: Object = {"operator": given.operator}
    optional = {"key": given.key, "value": given.value, "effect": given.effect, "tolerationSeconds": given.toleration_seconds}
    return {**found, **{name: value for name, value in optional.items() if value is not None}}
