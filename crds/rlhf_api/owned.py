"""What the operator sets in every pod, so that a spec which wants the same for itself is refused. The builders use these names."""

from __future__ import annotations

import posixpath

CONFIG_DIR = "/etc/rlhf"
JOB_FILE = f"{CONFIG_DIR}/job.yaml"
FILES_DIR = "/etc/rlhf/files"
CHECKPOINT_DIR = "/checkpoints"
SHM_DIR = "/dev/shm"
HOME_DIR = "/home/rlhf"

PROGRAM_DIR = "/opt/rlhf"
"""Where the images have Python and the trainer."""

MOUNT_PATHS = (
    CONFIG_DIR,
    CHECKPOINT_DIR,
    SHM_DIR,
    HOME_DIR,
    PROGRAM_DIR,
    "/dev",
    "/proc",
    "/sys",
    "/tmp",
    "/var/run/secrets/kubernetes.io",
)
"""Folders in which nothing else may be mounted, and which no mount may hide."""
SYSTEM_PATHS = ("/bin", "/etc", "/lib", "/lib64", "/run", "/sbin", "/usr", "/var/run")
"""Folders of the image without which no program starts. A claim stays out of them; a pod overlay may mount a driver within."""

VOLUME_PREFIX = "rlhf-"
"""Names of the operator's own volumes begin so."""
VOLUME_NAMES = frozenset({"shared-mem", "ray-logs", "log-volume"})
"""Names that KubeRay gives volumes."""

ENV_PREFIXES = ("RLHF_", "RAY_", "KUBERAY_", "KUBERNETES_")
FABRIC_PREFIXES = ("NCCL_", "GLOO_", "UCX_")
"""Variables of the network libraries: they belong in ``cluster.network.env``."""
ENV_NAMES = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "FQ_RAY_IP",
        "HOSTNAME",
        "LD_PRELOAD",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NVIDIA_VISIBLE_DEVICES",
        "PATH",
        "PYTHONPATH",
        "RANK",
        "REDIS_PASSWORD",
        "WORLD_SIZE",
    }
)

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
NETWORKS_ANNOTATION = "k8s.v1.cni.cncf.io/networks"
KEY_PREFIXES = ("rlhf.dev/", "app.kubernetes.io/managed-by", "app.kubernetes.io/name", "app.kubernetes.io/created-by", "ray.io/")
"""Labels and annotations that the operator and KubeRay select by; the head service of KubeRay 1.6 uses app.kubernetes.io/name."""
FREE_KEYS = frozenset({"ray.io/gang-scheduling-enabled", "ray.io/priority-class-name", "ray.io/scheduler-name"})
"""Keys below ``ray.io/`` that KubeRay reads for gang schedulers: passed through."""


def is_owned_env(name: str) -> bool:
    return name in ENV_NAMES or name.startswith(ENV_PREFIXES)


def is_owned_key(key: str) -> bool:
    """Of a label or annotation."""
    return key not in FREE_KEYS and key.startswith(KEY_PREFIXES)


def is_owned_volume(name: str) -> bool:
    return name in VOLUME_NAMES or name.startswith(VOLUME_PREFIX)


def owned_path(path: str) -> str | None:
    """The folder that a mount at ``path`` would take from us or from the system: one it hides, or one of ours that it lies in."""
    return next((owned for owned in MOUNT_PATHS if is_within(owned, path) or is_within(path, owned)), None) or next(
        (owned for owned in SYSTEM_PATHS if is_within(owned, path)), None
    )


def taken_path(path: str) -> str | None:
    """The same for a claim, which has no business within the system either."""
    return owned_path(path) or next((owned for owned in SYSTEM_PATHS if is_within(path, owned)), None)


def is_within(path: str, folder: str) -> bool:
    """Whether ``path`` is ``folder`` or lies in it, however they are written."""
    return f"{_plain(path)}/".startswith(f"{_plain(folder)}/")


def _plain(path: str) -> str:
    # Two slashes at the start are one to Linux, and a mount path without any begins at the root.
    return posixpath.normpath(f"/{path.lstrip('/')}").rstrip("/")
