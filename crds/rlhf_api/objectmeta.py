"""What Kubernetes asks of ``metadata`` besides the contract: a manifest that passes here is not refused by the API server for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from rlhf_api.patterns import said
from rlhf_api.spec.cluster import KEY_NAME
from rlhf_api.violations import Violation

FIELDS = (
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
)
"""ObjectMeta of Kubernetes 1.36; `kubectl apply` refuses any other."""
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
LABEL_MAX, PREFIX_MAX = 63, 253
ANNOTATIONS_BYTES = 256 * 1024


def metadata_faults(raw: Mapping[str, Any]) -> Iterator[Violation]:
    """Of a manifest's mapping; wrong types are the schema's to refuse."""
    metadata = raw.get("metadata")
    if not isinstance(metadata, Mapping):
        return
    for name in metadata:
        if name not in FIELDS:
            close = get_close_matches(str(name), FIELDS, n=1)
            yield Violation(f"metadata.{name}", None, "unknown field", close[0] if close else "metadata.annotations, for data of your own")
    labels, annotations = metadata.get("labels"), metadata.get("annotations")
    if isinstance(labels, Mapping):
        for key, value in labels.items():
            yield from _key("labels", str(key))
            if isinstance(value, str) and (not re.search(LABEL_VALUE, value, re.ASCII) or len(value) > LABEL_MAX):
                words, nearest = said(LABEL_VALUE, value[:LABEL_MAX])
                rule = f"the value of a label must be {words}, at most {LABEL_MAX} characters"
                yield Violation(f"metadata.labels.{key}", value, rule, nearest or "an annotation")
    if isinstance(annotations, Mapping):
        for key in annotations:
            yield from _key("annotations", str(key))
        size = sum(len(str(key).encode()) + len(str(value).encode()) for key, value in annotations.items())
        if size > ANNOTATIONS_BYTES:
            yield Violation("metadata.annotations", f"{size} bytes", f"annotations have at most {ANNOTATIONS_BYTES} bytes together", None)


def _key(field: str, key: str) -> Iterator[Violation]:
    prefix, _, name = key.rpartition("/")
    # Annotations may have capitals in their prefix; labels, and what kubectl writes, do not.
    text = key.lower() if field == "annotations" else key
    if not re.search(KEY_NAME, text, re.ASCII) or len(name) > LABEL_MAX or len(prefix) > PREFIX_MAX:
        words, nearest = said(KEY_NAME, key)
        rule = f"a key must be {words}, at most {LABEL_MAX} characters without the domain"
        yield Violation(f"metadata.{field}.{key}", None, rule, nearest if nearest != key else None)
