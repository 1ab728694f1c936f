"""The token that guards a job's Ray cluster and its progress.

Derived, so that the operator can always name it and needs no right to read Secrets: whoever may read those of a namespace
may read all of them.
"""

from __future__ import annotations

import hashlib
import hmac

from rlhf_api.spec import RLHFJob
from rlhf_operator import names
from rlhf_operator.build.metadata import Object, metadata, uid_of


def token(job: RLHFJob, key: bytes) -> str:
    """A job of the same name made anew has another."""
    return token_of(uid_of(job), key)


def token_of(uid: str, key: bytes) -> str:
    """HMAC-SHA256 of the job's UID, hexadecimal."""
    return hmac.new(key, uid.encode(), hashlib.sha256).hexdigest()


def token_secret(job: RLHFJob, key: bytes) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, names.token_secret(job.metadata.name)),
        "type": "Opaque",
        "immutable": True,
        "stringData": {names.TOKEN_KEY: token(job, key)},
    }
