"""Pods of a job on a cluster: image, resources, environment, labels, overlay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import get_close_matches

from rlhf_api.owned import (
    ENV_NAMES,
    ENV_PREFIXES,
    FABRIC_PREFIXES,
    FREE_KEYS,
    KEY_PREFIXES,
    NETWORKS_ANNOTATION,
    QUEUE_LABEL,
    is_owned_env,
    is_owned_key,
)
from rlhf_api.quantity import parse
from rlhf_api.rules.registry import Cel, Finding, rule
from rlhf_api.spec import JobSpec, PodsSpec
from rlhf_api.spec.cluster import HF_CACHE

SETTINGS_MAX_BYTES = 65_536
"""Every pod template of the RayCluster repeats these settings, and the API server takes 1.5 MiB an object."""


def _cel_prefix(name: str, prefixes: tuple[str, ...]) -> str:
    return "(" + " || ".join(f"{name}.startsWith('{prefix}')" for prefix in prefixes) + ")"


def _cel_all(path: str, variable: str, condition: str) -> str:
    """``condition`` for every entry of a list or map that may be absent."""
    return f"(!has(self.{path}) || self.{path}.all({variable}, {condition}))"


def _pods(spec: JobSpec) -> tuple[tuple[str, PodsSpec], ...]:
    return (("head", spec.cluster.head), ("workers", spec.cluster.workers))


def _env(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Field and name of every variable."""
    for index, variable in enumerate(spec.cluster.env):
        yield f"cluster.env[{index}].name", variable.name
    for index, secret in enumerate(spec.cluster.secret_env):
        yield f"cluster.secretEnv[{index}].name", secret.name


@rule(
    "image-needs-ray-version",
    "cluster.image and cluster.rayVersion stand together: KubeRay probes pods by the version of Ray in the image",
    cel=Cel("has(self.cluster.image) == has(self.cluster.rayVersion)", "cluster.rayVersion"),
)
def image_needs_ray_version(spec: JobSpec) -> Iterator[Finding]:
    cluster = spec.cluster
    if cluster.image is not None and cluster.ray_version is None:
        yield Finding("cluster.rayVersion", None, "rayVersion: the version that `ray --version` prints in the image")
    if cluster.image is None and cluster.ray_version is not None:
        yield Finding("cluster.rayVersion", cluster.ray_version, "no rayVersion, or the image that has it")


_RESOURCES = ("cpu", "memory", "ephemeral-storage")


@rule(
    "resources-are-of-kubernetes",
    f"a resource is {', '.join(_RESOURCES)}, hugepages-SIZE, or an extended one with a domain such as nvidia.com/gpu",
)
def resources_are_of_kubernetes(spec: JobSpec) -> Iterator[Finding]:
    if "/" not in spec.cluster.gpu_resource:
        yield Finding("cluster.gpuResource", spec.cluster.gpu_resource, "gpuResource: nvidia.com/gpu")
    for name, pods in _pods(spec):
        for kind, amounts in (("requests", pods.resources.requests), ("limits", pods.resources.limits)):
            for key, value in amounts.items():
                if "/" not in key and key not in _RESOURCES and not key.startswith("hugepages-"):
                    close = get_close_matches(key.lower(), _RESOURCES, n=1, cutoff=0.3)
                    yield Finding(f"cluster.{name}.resources.{kind}.{key}", value, close[0] if close else f"example.com/{key}")


@rule(
    "tolerations-are-whole",
    "a toleration with operator Exists has no value, one without key has operator Exists, and tolerationSeconds goes with effect NoExecute",
)
def tolerations_are_whole(spec: JobSpec) -> Iterator[Finding]:
    for name, pods in _pods(spec):
        for index, each in enumerate(pods.tolerations):
            field = f"cluster.{name}.tolerations[{index}]"
            if each.operator == "Exists" and each.value:
                yield Finding(f"{field}.value", each.value, "operator: Equal, or no value")
            if each.operator == "Equal" and each.key is None:
                yield Finding(f"{field}.key", None, "operator: Exists, or the key of a taint")
            if each.toleration_seconds is not None and each.effect != "NoExecute":
                yield Finding(f"{field}.tolerationSeconds", each.toleration_seconds, "effect: NoExecute, or no tolerationSeconds")


@rule("sizes-are-above-zero", "the size of a volume, of /dev/shm and every limit of a pod is above zero")
def sizes_are_above_zero(spec: JobSpec) -> Iterator[Finding]:
    volume = spec.checkpoint.volume
    sizes: list[tuple[str, str | int | None, str]] = [("cluster.shmSize", spec.cluster.shm_size, "shmSize: 1Gi, or no shmSize")]
    if volume is not None and volume.create is not None:
        sizes.append(("checkpoint.volume.create.size", volume.create.size, "size: 100Gi"))
    for name, pods in _pods(spec):
        sizes += [(f"cluster.{name}.resources.limits.{key}", size, f"no limit of {key}") for key, size in pods.resources.limits.items()]
    for field, size, nearest in sizes:
        if size is not None and parse(size) == 0:
            yield Finding(field, size, nearest)


@rule("shm-within-memory", "cluster.shmSize counts against the memory limit of a worker pod, so it is at most that limit")
def shm_within_memory(spec: JobSpec) -> Iterator[Finding]:
    size, limit = spec.cluster.shm_size, spec.cluster.workers.resources.limits.get("memory")
    if size is not None and limit is not None and parse(size) > parse(limit):
        yield Finding("cluster.shmSize", size, f"shmSize: {limit}", f"cluster.workers.resources.limits.memory is {limit}")


@rule("requests-within-limits", "what a pod requests is at most its limit")
def requests_within_limits(spec: JobSpec) -> Iterator[Finding]:
    for name, pods in _pods(spec):
        limits = pods.resources.limits
        for key, request in pods.resources.requests.items():
            if key in limits and parse(request) > parse(limits[key]):
                nearest = f"{key}: {limits[key]}"
                yield Finding(f"cluster.{name}.resources.requests.{key}", request, nearest, f"the limit is {limits[key]}")


@rule(
    "devices-come-from-their-fields",
    "resources hold neither GPUs, which placement counts, nor adapters, which cluster.network.infiniband.resource counts",
)
def devices_come_from_their_fields(spec: JobSpec) -> Iterator[Finding]:
    infiniband = spec.cluster.network.infiniband
    adapters = set(infiniband.resource) if infiniband is not None else set()
    for name, pods in _pods(spec):
        for kind, amounts in (("requests", pods.resources.requests), ("limits", pods.resources.limits)):
            for key, value in amounts.items():
                if key == spec.cluster.gpu_resource or key in adapters:
                    yield Finding(f"cluster.{name}.resources.{kind}.{key}", value, f"no {key} here")


@rule(
    "rdma-needs-resource",
    "cluster.network.requireRdma needs the adapters' resource in cluster.network.infiniband.resource",
    cel=Cel(
        "!self.cluster.network.requireRdma || (has(self.cluster.network.infiniband) && has(self.cluster.network.infiniband.resource) "
        "&& size(self.cluster.network.infiniband.resource) > 0)",
        "cluster.network.requireRdma",
    ),
)
def rdma_needs_resource(spec: JobSpec) -> Iterator[Finding]:
    network = spec.cluster.network
    if network.require_rdma and (network.infiniband is None or not network.infiniband.resource):
        yield Finding("cluster.network.requireRdma", True, "infiniband: {resource: {rdma/hca_shared_devices_a: 1}}, or requireRdma: false")


_OWNED_ENV = f"!{_cel_prefix('e.name', ENV_PREFIXES)} && !(e.name in {sorted(ENV_NAMES)})"


@rule(
    "env-is-free",
    f"variables that the operator, Ray or the trainer set are not the user's ({', '.join(f'{prefix}*' for prefix in ENV_PREFIXES)}, "
    f"{', '.join(sorted(ENV_NAMES))})",
    cel=Cel(_cel_all("cluster.env", "e", _OWNED_ENV) + " && " + _cel_all("cluster.secretEnv", "e", _OWNED_ENV), "cluster.env"),
)
def env_is_free(spec: JobSpec) -> Iterator[Finding]:
    for field, name in _env(spec):
        if is_owned_env(name):
            yield Finding(field, name, "another name")


@rule(
    "env-names-differ",
    "a variable stands once in cluster.env and cluster.secretEnv",
    cel=Cel(
        _cel_all("cluster.env", "e", "self.cluster.env.exists_one(f, f.name == e.name)")
        + " && "
        + _cel_all("cluster.secretEnv", "e", "self.cluster.secretEnv.exists_one(f, f.name == e.name)")
        + " && (!has(self.cluster.env) || "
        + _cel_all("cluster.secretEnv", "e", "!self.cluster.env.exists(f, f.name == e.name)")
        + ")",
        "cluster.env",
    ),
)
def env_names_differ(spec: JobSpec) -> Iterator[Finding]:
    seen: set[str] = set()
    for field, name in _env(spec):
        if name in seen:
            yield Finding(field, name, "one of the two")
        seen.add(name)


@rule(
    "hf-home-is-the-cache",
    f"a volume called {HF_CACHE} becomes HF_HOME, so the variable is not set by hand as well",
    cel=Cel(
        f"!has(self.cluster.env) || !has(self.cluster.volumes) || !self.cluster.volumes.exists(v, v.name == '{HF_CACHE}') "
        "|| !self.cluster.env.exists(e, e.name == 'HF_HOME')",
        "cluster.env",
    ),
)
def hf_home_is_the_cache(spec: JobSpec) -> Iterator[Finding]:
    if HF_CACHE not in [volume.name for volume in spec.cluster.volumes]:
        return
    for field, name in _env(spec):
        if name == "HF_HOME":
            yield Finding(field, name, f"another name for the volume {HF_CACHE}, or no HF_HOME")


@rule(
    "fabric-env-has-its-place",
    f"variables of NCCL, Gloo and UCX ({', '.join(f'{prefix}*' for prefix in FABRIC_PREFIXES)}) stand in cluster.network.env, and "
    "no others do",
    cel=Cel(
        _cel_all("cluster.env", "e", f"!{_cel_prefix('e.name', FABRIC_PREFIXES)}")
        + " && "
        + _cel_all("cluster.network.env", "name", _cel_prefix("name", FABRIC_PREFIXES)),
        "cluster.network.env",
    ),
)
def fabric_env_has_its_place(spec: JobSpec) -> Iterator[Finding]:
    for field, name in _env(spec):
        if name.startswith(FABRIC_PREFIXES):
            yield Finding(field, name, "cluster.network.env")
    for name, value in spec.cluster.network.env.items():
        if not name.startswith(FABRIC_PREFIXES):
            yield Finding(f"cluster.network.env.{name}", value, "cluster.env")


_OWNED_KEY = f"!{_cel_prefix('k', KEY_PREFIXES)} || k in {sorted(FREE_KEYS)}"


@rule(
    "keys-are-free",
    f"labels and annotations that the operator and KubeRay select by are theirs ({', '.join(f'{prefix}*' for prefix in KEY_PREFIXES)}); "
    f"the queue stands in cluster.queueName, networks in cluster.network.infiniband.networks",
    cel=Cel(
        _cel_all("cluster.labels", "k", f"({_OWNED_KEY}) && k != '{QUEUE_LABEL}'")
        + " && "
        + _cel_all("cluster.annotations", "k", f"({_OWNED_KEY}) && k != '{NETWORKS_ANNOTATION}'"),
        "cluster.labels",
    ),
)
def keys_are_free(spec: JobSpec) -> Iterator[Finding]:
    cluster = spec.cluster
    own_field = {QUEUE_LABEL: "cluster.queueName", NETWORKS_ANNOTATION: "cluster.network.infiniband.networks"}
    for kind, entries in (("labels", cluster.labels), ("annotations", cluster.annotations)):
        for key, value in entries.items():
            if key in own_field or is_owned_key(key):
                yield Finding(f"cluster.{kind}.{key}", value, own_field.get(key, "another key"))


@rule("overlay-is-a-pod-template", "cluster.podOverlay is a part of a pod template: metadata with labels and annotations, and spec")
def overlay_is_a_pod_template(spec: JobSpec) -> Iterator[Finding]:
    overlay = spec.cluster.pod_overlay
    for key, value in overlay.items():
        if key not in ("metadata", "spec"):
            yield Finding(
                f"cluster.podOverlay.{key}", "a mapping" if isinstance(value, dict) else value, f"podOverlay: {{spec: {{{key}: …}}}}"
            )
        elif not isinstance(value, dict):
            yield Finding(f"cluster.podOverlay.{key}", value, f"{key}: a mapping")
    metadata = overlay.get("metadata")
    for key in metadata if isinstance(metadata, dict) else ():
        if key not in ("labels", "annotations"):
            yield Finding(f"cluster.podOverlay.metadata.{key}", None, "labels and annotations only")


@rule(
    "pod-settings-are-small",
    f"cluster.env, annotations, network.env, affinity and podOverlay have at most {SETTINGS_MAX_BYTES} bytes together: every pod "
    "repeats them",
)
def pod_settings_are_small(spec: JobSpec) -> Iterator[Finding]:
    cluster = spec.cluster
    parts = {
        "env": [variable.value for variable in cluster.env],
        "annotations": cluster.annotations,
        "network.env": cluster.network.env,
        "head.affinity": cluster.head.affinity,
        "workers.affinity": cluster.workers.affinity,
        "podOverlay": cluster.pod_overlay,
    }
    sizes = {name: len(json.dumps(value, ensure_ascii=False).encode()) for name, value in parts.items()}
    if sum(sizes.values()) > SETTINGS_MAX_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        detail = f"{sum(sizes.values())} bytes, {sizes[largest]} of them here"
        yield Finding(f"cluster.{largest}", None, "a ConfigMap as cluster.files, or a volume", detail)
