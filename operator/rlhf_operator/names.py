"""Names, labels, ports and paths that several objects must agree on.

Children are the job's name plus a fixed suffix. A job's name has at most 40 characters, so nothing is ever cut: the longest
child is a pod, ``<job>-<group>-worker-<random>``, whose prefix KubeRay bounds itself.
"""

from __future__ import annotations

from rlhf_api import owned

JOB_LABEL = "rlhf.dev/job"
JOB_UID_LABEL = "rlhf.dev/job-uid"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "rlhf-operator"
QUEUE_LABEL = owned.QUEUE_LABEL
NODE_TYPE_LABEL = "ray.io/node-type"
CLUSTER_LABEL = "ray.io/cluster"
HEAD_NODE = "head"
"""KubeRay puts them on each pod."""
NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"
"""Set on every namespace by the API server."""

JOB_UID_METADATA = JOB_UID_LABEL
ATTEMPT_METADATA = "rlhf.dev/attempt"
"""Keys of a submission's metadata in the Ray Jobs API: whose it is, and which attempt."""

RAY_CONTAINER = "ray"
"""Container 0 of every pod: KubeRay 1.6 takes the first for Ray's."""

CONFIG_KEY = owned.JOB_FILE.removeprefix(f"{owned.CONFIG_DIR}/")
TOKEN_KEY = "auth_token"
"""KubeRay 1.6, utils.RAY_AUTH_TOKEN_SECRET_KEY."""

CONFIG_DIR = owned.CONFIG_DIR
CONFIG_PATH = owned.JOB_FILE
FILES_DIR = owned.FILES_DIR
CHECKPOINTS_DIR = owned.CHECKPOINT_DIR
SHM_DIR = owned.SHM_DIR
HOME_DIR = owned.HOME_DIR

GCS_PORT = 6379
DASHBOARD_PORT = 8265
CLIENT_PORT = 10001
RAY_METRICS_PORT = 8080
AGENT_PORT = 52365
"""Defaults of Ray 2.60 and KubeRay 1.6."""
PROGRESS_PORT = 8290
METRICS_PORT = 8291
"""Where the trainer serves /progress, and /metrics with /healthz."""


def ray_cluster(job: str) -> str:
    return job


def head_service(job: str) -> str:
    """KubeRay's name for it; what a running job uses is read from the RayCluster's status."""
    return f"{job}-head-svc"


def config_map(job: str) -> str:
    return f"{job}-config"


def token_secret(job: str) -> str:
    return f"{job}-ray-token"


def checkpoint_claim(job: str) -> str:
    return f"{job}-ckpt"


def network_policy(job: str) -> str:
    return job


def disruption_budget(job: str) -> str:
    return f"{job}-head"


def submission_id(job: str, attempt: int) -> str:
    """Id of one attempt in the Ray Jobs API; ``attempt`` counts from 1."""
    return f"{job}-a{attempt}"


def entrypoint(attempt: int) -> str:
    """Command line of one attempt, run by Ray on the head. Without secrets: the Jobs API shows it to everybody.

    `exec`: Ray 2.60 starts it by a shell and signals that too. The shell would end first and leave the trainer to the container's first
    process, which collects nobody, and Ray would wait its whole stop time for a process that has long ended.
    """
    return f"exec python -m rlhf_trainer --job {CONFIG_PATH} --attempt {attempt} --files {FILES_DIR}"
