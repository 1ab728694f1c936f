"""``spec.cluster``: the pods a job runs in. Has no effect in ``rlhf run``, so that one manifest serves both places."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from rlhf_api.base import CRD_MARK, Strict

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
KEY_NAME = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
_HOST = r"[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?"
_REPOSITORY = r"[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*"
FOLDER = r"^(/(\.{0,2}[^/:.][^/:]*|\.{3}[^/:]*))+$"
"""An absolute path as the kernel would print it: no part is empty, ``.`` or ``..``."""
IMAGE = (
    rf"^(({_HOST}(\.{_HOST})+|{_HOST}(\.{_HOST})*:[0-9]{{1,5}}|\[[0-9a-fA-F:]+\](:[0-9]{{1,5}})?)/)?"
    rf"{_REPOSITORY}(/{_REPOSITORY})*(:[A-Za-z0-9_][-A-Za-z0-9_.]{{0,127}})?(@sha256:[0-9a-f]{{64}}|@sha512:[0-9a-f]{{128}})?$"
)
"""An image reference as container runtimes read it; a host in capitals that has neither dot nor port is a repository in capitals."""
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?$"

HF_CACHE = "hf-cache"
"""Name of the volume that becomes HF_HOME."""

_QUANTITY_CRD: dict[str, JsonValue] = {CRD_MARK: {"x-kubernetes-int-or-string": True, "maxLength": 32, "pattern": QUANTITY}}
_FREE_MAP_CRD: dict[str, JsonValue] = {CRD_MARK: {"type": "object", "maxProperties": 64, "x-kubernetes-preserve-unknown-fields": True}}

Quantity = Annotated[
    Annotated[str, Field(max_length=32, pattern=QUANTITY)] | Annotated[int, Field(ge=0, le=2**53)],
    Field(json_schema_extra=_QUANTITY_CRD),
]
"""A Kubernetes quantity: a whole number, or text such as `500m`, `64Gi`."""

Name = Annotated[str, Field(min_length=1, max_length=253, pattern=DNS_NAME)]
Key = Annotated[str, Field(min_length=1, max_length=317, pattern=KEY_NAME)]
"""Key of a label, an annotation, or an extended resource: an optional domain, a slash, a name."""
LabelValue = Annotated[str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")]
EnvName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
FreeMap = Annotated[dict[str, JsonValue], Field(max_length=64, json_schema_extra=_FREE_MAP_CRD)]


class NameRef(Strict):
    name: Name
    """Name of an object in the job's namespace."""


class SecretKeyRef(Strict):
    name: Name
    """Name of a Secret in the job's namespace."""

    key: str = Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")
    """Key in the Secret."""


class EnvVar(Strict):
    name: EnvName
    """Name of the variable; those that the operator sets itself are refused."""

    value: str = Field(max_length=4096)
    """Its value. Secrets belong in secretEnv."""


class SecretEnvVar(Strict):
    name: EnvName
    """Name of the variable; those that the operator sets itself are refused."""

    secret_key_ref: SecretKeyRef
    """Where its value comes from."""


class PodSecuritySpec(Strict):
    run_as_user: int = Field(1000, ge=1, le=2**31 - 1)
    """User id of every container; never root."""

    run_as_group: int | None = Field(None, ge=1, le=2**31 - 1)
    """Group id of every container. Absent = that of the user in the image."""

    fs_group: int = Field(1000, ge=1, le=2**31 - 1)
    """Group id that owns the files of volumes, so that runAsUser can write them."""

    supplemental_groups: list[Annotated[int, Field(ge=1, le=2**31 - 1)]] = Field(default_factory=list, max_length=16)
    """Further group ids, such as the owner of a shared file system."""


class VolumeSpec(Strict):
    name: str = Field(min_length=1, max_length=63, pattern=DNS_LABEL)
    """Name of the volume in the pods. One that is called `hf-cache` becomes HF_HOME."""

    mount_path: str = Field(min_length=1, max_length=512, pattern=FOLDER)
    """Folder in every pod, beside those of the system and of other volumes."""

    read_only: bool = False
    """Mount without the right to write."""

    existing_claim: Name
    """Name of a PersistentVolumeClaim in the job's namespace."""


class ResourcesSpec(Strict):
    requests: dict[Key, Quantity] = Field(default_factory=dict, max_length=16)
    """What the scheduler reserves for a pod, such as `{cpu: 16, memory: 64Gi}`. GPUs come from placement."""

    limits: dict[Key, Quantity] = Field(default_factory=dict, max_length=16)
    """What a pod may use at most, such as `{memory: 64Gi}`."""


class TolerationSpec(Strict):
    key: Key | None = None
    """Key of the taint. Absent with operator Exists = every taint."""

    operator: Literal["Equal", "Exists"] = "Equal"
    """Equal compares the value, Exists does not."""

    value: LabelValue | None = None
    """Value of the taint."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. Absent = every effect."""

    toleration_seconds: int | None = Field(None, ge=0, le=2**31 - 1)
    """Seconds a pod stays on a node after a NoExecute taint came. Absent = for ever."""


class PodsSpec(Strict):
    resources: ResourcesSpec = Field(default_factory=lambda: ResourcesSpec())
    """Resources of the Ray container."""

    node_selector: dict[Key, LabelValue] = Field(default_factory=dict, max_length=32)
    """Labels that a node must have."""

    tolerations: list[TolerationSpec] = Field(default_factory=list, max_length=32)
    """Taints that the pods accept."""

    affinity: FreeMap = Field(default_factory=dict)
    """`affinity` of a pod, as Kubernetes has it."""

    priority_class_name: Name | None = None
    """Priority class. Absent = the namespace's default."""


class InfinibandSpec(Strict):
    hca: str | None = Field(None, min_length=1, max_length=512)
    """Adapters, as NCCL_IB_HCA takes them, such as `mlx5_0` or `^mlx5_2`. Absent = NCCL's choice."""

    socket_interface: str | None = Field(None, min_length=1, max_length=256)
    """Interface of the handshake, as NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME take it. Absent = their choice."""

    resource: dict[Key, Annotated[int, Field(ge=1, le=64)]] = Field(default_factory=dict, max_length=4)
    """Extended resource of the adapters and its count a pod, such as `{rdma/hca_shared_devices_a: 1}`."""

    gid_index: int | None = Field(None, ge=0, le=255)
    """NCCL_IB_GID_INDEX (RoCE). Absent = NCCL's choice."""

    traffic_class: int | None = Field(None, ge=0, le=255)
    """NCCL_IB_TC. Absent = NCCL's default."""

    service_level: int | None = Field(None, ge=0, le=15)
    """NCCL_IB_SL. Absent = NCCL's default."""

    networks: str | None = Field(None, min_length=1, max_length=2048)
    """Secondary networks: value of the annotation `k8s.v1.cni.cncf.io/networks`. Absent = none."""


class NetworkSpec(Strict):
    infiniband: InfinibandSpec | None = None
    """InfiniBand or RoCE adapters of the worker pods. Absent = TCP."""

    require_rdma: bool = False
    """End the job when NCCL would use TCP instead of the adapters."""

    env: dict[EnvName, Annotated[str, Field(max_length=1024)]] = Field(default_factory=dict, max_length=64)
    """Variables NCCL_*, GLOO_* and UCX_* that take the place of what the operator sets."""

    isolate: bool = True
    """A NetworkPolicy lets only the job's own pods and the operator reach its pods."""


class FileItem(Strict):
    key: str = Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")
    """Key in the ConfigMap."""

    path: str = Field(min_length=1, max_length=256, pattern=r"^[^/:]+(/[^/:]+)*$")
    """Path of the file below the folder that relative paths refer to."""


class FilesSpec(Strict):
    config_map: Name
    """Name of a ConfigMap in the job's namespace; each key is a file that relative paths of the spec can name."""

    items: list[FileItem] = Field(default_factory=list, max_length=64)
    """Keys that become files in subfolders. Empty = every key is a file of that name; else only the listed keys are files."""


class ClusterSpec(Strict):
    image: str | None = Field(None, min_length=1, max_length=512, pattern=IMAGE)
    """Trainer image. Absent = the operator's."""

    ray_version: str | None = Field(None, max_length=32, pattern=r"^\d+\.\d+\.\d+$")
    """Version of Ray in the image; needed with image. Absent = the operator's."""

    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """When nodes ask the registry for the image."""

    image_pull_secrets: list[NameRef] = Field(default_factory=list, max_length=16)
    """Secrets with registry logins."""

    service_account_name: Name = "default"
    """Service account of the pods; its token is not mounted."""

    security_context: PodSecuritySpec = Field(default_factory=lambda: PodSecuritySpec())
    """User and groups of the pods."""

    gpu_resource: Key = "nvidia.com/gpu"
    """Extended resource that placement's GPUs are."""

    volumes: list[VolumeSpec] = Field(default_factory=list, max_length=16)
    """Claims to mount in every pod, for models and data."""

    head: PodsSpec = Field(default_factory=lambda: PodsSpec())
    """The head pod: Ray's head and the driver, no GPU."""

    workers: PodsSpec = Field(default_factory=lambda: PodsSpec())
    """The worker pods."""

    network: NetworkSpec = Field(default_factory=lambda: NetworkSpec())
    """Adapters, NCCL settings, isolation."""

    shm_size: Quantity | None = None
    """Size of /dev/shm, counted against the memory limit of a worker pod. Absent = bounded by the memory limit alone."""

    env: list[EnvVar] = Field(default_factory=list, max_length=64)
    """Variables of every Ray container."""

    secret_env: list[SecretEnvVar] = Field(default_factory=list, max_length=64)
    """Variables of every Ray container that come from Secrets."""

    files: FilesSpec | None = None
    """Reward code, agents, small data. Absent = the job refers to no relative path."""

    queue_name: str | None = Field(None, min_length=1, max_length=63, pattern=DNS_LABEL)
    """Kueue LocalQueue. Absent = no queue."""

    labels: dict[Key, LabelValue] = Field(default_factory=dict, max_length=32)
    """Labels of the RayCluster and its pods, for gang schedulers and cost reports."""

    annotations: dict[Key, Annotated[str, Field(max_length=4096)]] = Field(default_factory=dict, max_length=32)
    """Annotations of the RayCluster and its pods."""

    termination_grace_period_seconds: int = Field(120, ge=10, le=3600)
    """Seconds a job gets to write a checkpoint when it is stopped."""

    pod_overlay: FreeMap = Field(default_factory=dict)
    """`{metadata: …, spec: …}`, merged into every pod template; refused where it fights a field that the operator owns."""
