"""Which images of the node's store can go: each is gigabytes, and a store outlives the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def tag_link(storage: Path, repository: str, tag: str) -> Path:
    """The file below a registry's storage that says which image a tag is; its time is that of the last use."""
    return storage / "docker/registry/v2/repositories" / repository / "_manifests/tags" / tag / "current" / "link"


def last_use(storage: Path, repository: str, tag: str) -> float:
    """Seconds since the epoch; 0 when the registry has no such tag."""
    link = tag_link(storage, repository, tag)
    return link.stat().st_mtime if link.exists() else 0.0


def read_listing(text: str) -> dict[str, str]:
    """Reference -> digest, from what ``ctr images ls`` prints. Several references can name one image."""
    rows = [line.split() for line in text.splitlines()[1:]]
    return {row[0]: row[2] for row in rows if len(row) > 2}


def outdated(listing: Mapping[str, str], storage: Path, registry: str) -> list[str]:
    """References, by tag and by digest, of every image of ``registry`` but the one of its name that was used last."""
    newest: dict[str, tuple[float, str, str]] = {}
    ours: set[str] = set()
    for reference, digest in listing.items():
        if not reference.startswith(f"{registry}/"):
            continue
        ours.add(digest)
        repository, separator, tag = reference.removeprefix(f"{registry}/").partition(":")
        if separator and "@" not in repository:
            newest[repository] = max(newest.get(repository, (0.0, "", "")), (last_use(storage, repository, tag), tag, digest))
    kept = {digest for _, _, digest in newest.values()}
    return [reference for reference, digest in listing.items() if digest in ours - kept]
