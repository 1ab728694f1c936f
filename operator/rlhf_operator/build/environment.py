"""Environment variables of the Ray container."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.spec import RLHFJob
from rlhf_operator import names
from rlhf_operator.build.metadata import Object, uid_of
from rlhf_operator.build.volumes import hugging_face_home

JOB_START_TIMEOUT_SECONDS = 900
"""Ray 2.60's default, written down since deadlines are set against it."""


def environment(job: RLHFJob, network: Mapping[str, str]) -> list[Object]:
    """One entry a name, the later source winning: defaults, ``network``, the job's env and secretEnv, what the operator owns.

    Secrets appear as references only. Order is that of first mention, so equal jobs give equal lists.
    """
    cluster = job.spec.cluster
    found: dict[str, Object] = {}
    for name, value in {**_defaults(job), **network}.items():
        found[name] = {"name": name, "value": value}
    for plain in cluster.env:
        found[plain.name] = {"name": plain.name, "value": plain.value}
    for secret in cluster.secret_env:
        found[secret.name] = _from_secret(secret.name, secret.secret_key_ref.name, secret.secret_key_ref.key)
    owned = _owned(job)
    return [*(entry for name, entry in found.items() if name not in owned), *owned.values()]


def _defaults(job: RLHFJob) -> dict[str, str]:
    env = {
        # The user id has no entry in the image's passwd file, where getpass and torch look for these.
        "HOME": names.HOME_DIR,
        "USER": "rlhf",
        "LOGNAME": "rlhf",
        "TMPDIR": "/tmp",
        "XDG_CACHE_HOME": f"{names.HOME_DIR}/.cache",
        "MPLCONFIGDIR": f"{names.HOME_DIR}/.cache/matplotlib",
        "PYTHONUNBUFFERED": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_JOB_START_TIMEOUT_SECONDS": str(JOB_START_TIMEOUT_SECONDS),
    }
    hub = hugging_face_home(job)
    return {**env, "HF_HOME": hub} if hub is not None else env


def _owned(job: RLHFJob) -> dict[str, Object]:
    """Without these the operator can't reach, stop or recognise the job."""
    values = {
        "RAY_AUTH_MODE": "token",
        # Ray 2.60 kills a stopped driver after 3 seconds by default, in the middle of its checkpoint.
        "RAY_JOB_STOP_WAIT_TIME_S": str(job.spec.cluster.termination_grace_period_seconds),
        "RLHF_JOB_NAME": job.metadata.name,
        "RLHF_JOB_NAMESPACE": job.metadata.namespace,
        "RLHF_JOB_UID": uid_of(job),
    }
    token = _from_secret("RAY_AUTH_TOKEN", names.token_secret(job.metadata.name), names.TOKEN_KEY)
    node = {"name": "RLHF_NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    plain = {name: {"name": name, "value": value} for name, value in values.items()}
    return {**plain, "RAY_AUTH_TOKEN": token, "RLHF_NODE_NAME": node}


def _from_secret(name: str, secret: str, key: str) -> Object:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
