"""The cluster's registry seen from the build side. Its storage is shared by all clusters, so what one got the next has."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from e2e.cluster.network import REGISTRY
from e2e.cluster.node_images import tag_link
from e2e.cluster.sandbox import Sandbox
from e2e.images.buildah import Builder
from e2e.images.recipes import Recipe
from e2e.tools.cachefolder import Report
from e2e.tools.process import output_of

PUSH_LIMIT_SECONDS = 1200.0
# Another cluster, or this one's pods before an edit, may still pull a tag that is not the newest.
KEPT_SECONDS = 24 * 3600


class Registry:
    """`folder`: its storage and its configuration's place. Callers hold the lock of the build store, so that nobody pushes meanwhile."""

    def __init__(self, folder: Path, address: str = REGISTRY) -> None:
        self.storage = folder / "storage"
        self.address = address

    def has(self, repository: str, tag: str) -> bool:
        """Whether an image was pushed whole: its tag is written last."""
        return tag_link(self.storage, repository, tag).is_file()

    def push(self, images: Builder, recipe: Recipe, sandbox: Sandbox, report: Report) -> str:
        """The image's name for pods; moves only layers that the registry lacks."""
        tag = recipe.tag(images.repository)
        reference = f"{self.address}/{recipe.name}:{tag}"
        if self.has(recipe.name, tag):
            os.utime(tag_link(self.storage, recipe.name, tag))
        else:
            started = time.monotonic()
            sandbox.run(push_command(images, recipe, reference), timeout_seconds=PUSH_LIMIT_SECONDS, env=images.environment)
            report(f"Pushed {recipe.name}:{tag} in {time.monotonic() - started:.0f} s.")
        return reference

    def remove_old(self, repository: str, now: float) -> list[str]:
        """Forgets tags that nobody asked for in a day and returns them; their layers stay until `collect`. `now`: since the epoch."""
        links = sorted(tag_link(self.storage, repository, "*").parent.parent.parent.glob("*/current/link"))
        old = [link.parent.parent for link in links if link.stat().st_mtime < now - KEPT_SECONDS]
        for folder in old:
            shutil.rmtree(folder)
        return [folder.name for folder in old]

    def collect(self, config: Path) -> None:
        """Deletes the layers that no tag uses. `config`: the configuration of a registry on this storage."""
        output_of(["docker-registry", "garbage-collect", "--delete-untagged", config])


def push_command(images: Builder, recipe: Recipe, reference: str) -> list[str]:
    """zstd at its lowest level: the node unpacks it in less time than gzip, and it takes less to make."""
    compression = ("--compression-format", "zstd", "--compression-level", "1")
    return images.command("push", "--tls-verify=false", "--format", "oci", *compression, images.reference(recipe), f"docker://{reference}")
