"""The registry inside a cluster: Debian's docker-registry on the node's address, its storage shared by all clusters."""

from __future__ import annotations

import time
from pathlib import Path

import yaml

from e2e.cluster.home import Home
from e2e.cluster.network import REGISTRY
from e2e.cluster.parts import Part
from e2e.cluster.sandbox import Sandbox, log_tail
from e2e.images.build import Builder
from e2e.images.recipes import Recipe
from e2e.tools.cachefolder import Report, ToolsError
from e2e.tools.process import output_of

PART = "registry"
START_LIMIT_SECONDS = 20.0
PUSH_LIMIT_SECONDS = 1200.0
# A cluster that still runs may pull the tag before the newest.
KEPT_TAGS = 2


def registry_config(storage: Path, address: str) -> str:
    """docker-registry's configuration file. No cache of blob descriptors: another cluster's registry may change the same storage."""
    config = {
        "version": 0.1,
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {
            "filesystem": {"rootdirectory": str(storage)},
            "delete": {"enabled": True},
        },
        # The secret only signs upload sessions; a fixed one lets an upload survive a restart.
        "http": {"addr": address, "secret": "rlhf-e2e"},
    }
    return yaml.safe_dump(config, sort_keys=False)


def registry_part(config: Path) -> Part:
    """The process that serves the storage."""
    return Part(PART, ("docker-registry", "serve", str(config)))


class Registry:
    """The storage below the cache root. Callers hold `home.locked("images")`."""

    def __init__(self, home: Home, address: str = REGISTRY) -> None:
        self.storage = home.folder("registry", "storage")
        self.config = home.folder("registry") / "config.yml"
        self.address = address

    def _tags(self, repository: str) -> Path:
        return self.storage / "docker/registry/v2/repositories" / repository / "_manifests/tags"

    def has(self, repository: str, tag: str) -> bool:
        """Whether an image was pushed whole: its tag is written last."""
        return (self._tags(repository) / tag / "current" / "link").is_file()

    def serve(self, sandbox: Sandbox) -> None:
        """Starts the registry in the sandbox unless it runs, and waits until it answers."""
        self.config.write_text(registry_config(self.storage, self.address))
        part = sandbox.part(PART)
        if part is None or not part.running:
            sandbox.start_part(registry_part(self.config))
        host, port = self.address.split(":")
        limit = time.monotonic() + START_LIMIT_SECONDS
        while sandbox.probe(int(port), "/v2/", host=host) != 200:
            if time.monotonic() > limit:
                log = sandbox.log(PART)
                raise ToolsError(f"no answer of the registry on {self.address} after {START_LIMIT_SECONDS:.0f} s; {log}:\n{log_tail(log)}")
            time.sleep(0.05)

    def push(self, builder: Builder, recipe: Recipe, sandbox: Sandbox, report: Report) -> str:
        """The image's name for pods; moves only layers that the registry lacks."""
        tag = recipe.tag(builder.repository)
        reference = f"{self.address}/{recipe.name}:{tag}"
        if not self.has(recipe.name, tag):
            started = time.monotonic()
            sandbox.run(push_command(builder, recipe, reference), timeout_seconds=PUSH_LIMIT_SECONDS, env=builder.environment)
            report(f"Pushed {recipe.name}:{tag} in {time.monotonic() - started:.0f} s.")
            self._drop_old(recipe.name)
        return reference

    def _drop_old(self, repository: str) -> None:
        """Removes all but the newest tags, and the layers that no image uses any more."""
        tags = sorted(self._tags(repository).iterdir(), key=lambda folder: (folder / "current" / "link").stat().st_mtime)
        old = tags[:-KEPT_TAGS]
        for folder in old:
            (folder / "current" / "link").unlink()
            for path in sorted(folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            folder.rmdir()
        if old:
            output_of(["docker-registry", "garbage-collect", "--delete-untagged", self.config])


def push_command(builder: Builder, recipe: Recipe, reference: str) -> list[str]:
    """zstd at its lowest level: three times as fast as gzip here, and no larger."""
    compression = ("--compression-format", "zstd", "--compression-level", "1")
    return builder.command(
        "push", "--tls-verify=false", "--format", "oci", *compression, builder.reference(recipe), f"docker://{reference}"
    )
