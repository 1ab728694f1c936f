"""Folder or hub id? And what of the hub is on this machine. Light: no torch, no network."""

from __future__ import annotations

import re
from pathlib import Path

HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*(/[\w.-]+)?$")
LOCAL_NAMES = frozenset(
    {
        "artifacts",
        "checkpoint",
        "checkpoints",
        "ckpt",
        "ckpts",
        "data",
        "dataset",
        "datasets",
        "export",
        "exports",
        "local",
        "model",
        "models",
        "out",
        "output",
        "outputs",
        "results",
        "runs",
        "tmp",
        "weights",
    }
)
"""First parts of a path that people give to folders; an owner of one of these names counts only when it is in the cache."""

NEAREST_MODEL = "a folder with config.json, or a hub id owner/name"


def folder_of(path: str, base_dir: Path) -> Path:
    """The absolute folder that ``path`` names when it is one; relative paths start at the manifest's folder.

    Links are kept: what a mounted ConfigMap's links lead to has another name in every pod, and the engines read it in theirs.
    """
    return (base_dir / Path(path).expanduser()).absolute()


def is_hub_id(path: str, base_dir: Path) -> bool:
    """Whether a model path can only be ``owner/name`` of the hub: nothing of that name is here, nor is its folder."""
    folder = folder_of(path, base_dir)
    return path.count("/") == 1 and HUB_ID.match(path) is not None and not folder.exists() and not folder.parent.is_dir()


def is_cached(hub_id: str, revision: str | None = None) -> bool:
    """Whether a model's configuration is in the hub cache."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(hub_id, "config.json", revision=revision), str)
    except HFValidationError:
        return False


def unreachable(hub_id: str, base_dir: Path, revision: str | None = None) -> str | None:
    """Why a model path that is no folder can't be meant as a hub id, or None when the hub may have it."""
    from huggingface_hub import constants

    owner = hub_id.split("/")[0]
    if not constants.HF_HUB_OFFLINE and owner.casefold() not in LOCAL_NAMES:
        return None
    if is_cached(hub_id, revision):
        return None
    offline = " (HF_HUB_OFFLINE is set)" if constants.HF_HUB_OFFLINE else ""
    return f"there is no folder {folder_of(hub_id, base_dir)}, and taken as a hub id it is not in the cache{offline}"
