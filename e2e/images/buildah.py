"""Builds images with buildah into a store of our own: no daemon, nothing in the machine's own image store."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.home import Home
from e2e.images.machine import MachineSettings, settings_of
from e2e.images.recipes import Recipe, copy_sources
from e2e.tools import debian
from e2e.tools.cachefolder import Report, ToolsError, report_to_stderr
from e2e.tools.process import REPOSITORY, find_uv, output_of, run_logged


def disk_refusal(recipes: Sequence[Recipe], free_bytes: int, folder: Path) -> str | None:
    """Why these images cannot be built with this much disk left, or None. Peaks are added: each build leaves its image."""
    needed = sum(recipe.free_bytes for recipe in recipes)
    if free_bytes >= needed:
        return None
    names = ", ".join(recipe.name for recipe in recipes)
    return (
        f"Building {names} takes up to {needed / 2**30:.1f} GiB of disk, and {folder} has {free_bytes / 2**30:.1f} GiB left. "
        "Free some, or set RLHF_CACHE to a folder on a larger disk."
    )


@contextmanager
def builder(recipes: Sequence[Recipe], report: Report = report_to_stderr, repository: Path = REPOSITORY) -> Iterator[Builder]:
    """A builder of these images as the repository is now; waits for another process that builds or pushes."""
    home = Home.default()
    debian.ensure(debian.IMAGES, "to build images", report)
    with home.locked("images"), tempfile.TemporaryDirectory(dir=home.folder("buildah"), prefix="sources-") as sources:
        copy_sources(repository, recipes, Path(sources))
        yield Builder(home, Path(sources), report)


def outdated(names: Sequence[str], recipe: Recipe, tag: str) -> list[str]:
    """Of the store's image names those of this recipe that have another tag."""
    return [name for name in names if re.fullmatch(f"localhost/{recipe.name}:[0-9a-f]+", name) and not name.endswith(f":{tag}")]


class Builder:
    """The build store below the cache root, for a repository that does not change. Make one with `builder`, which holds its lock."""

    def __init__(self, home: Home, repository: Path, report: Report) -> None:
        self.folder = home.folder("buildah")
        self.repository = repository
        self.report = report
        self.environment = {
            **os.environ,
            # Namespaces of its own would need rights that containers seldom have.
            "BUILDAH_ISOLATION": "chroot",
            "TMPDIR": str(home.folder("buildah", "tmp")),
        }

    def command(self, *arguments: str) -> list[str]:
        """buildah on our store."""
        store = ("--root", str(self.folder / "root"), "--runroot", str(self.folder / "run"))
        return ["buildah", "--storage-driver", "overlay", *store, *arguments]

    def reference(self, recipe: Recipe) -> str:
        """The image's name in the store."""
        return f"localhost/{recipe.name}:{recipe.tag(self.repository)}"

    def sizes(self) -> Mapping[str, str]:
        """Image name → size as buildah prints it, of all images with a name in the store."""
        listed = json.loads(output_of(self.command("images", "--json"), env=self.environment) or "[]") or []
        return {name: image["size"] for image in listed for name in image.get("names") or ()}

    def missing(self, recipe: Recipe) -> list[Recipe]:
        """What has to be built for this image, in order: nothing when it exists, whatever became of its parents."""
        have = self.sizes()
        lineage = recipe.lineage()
        for position in range(len(lineage), 0, -1):
            if self.reference(lineage[position - 1]) in have:
                return list(lineage[position:])
        return list(lineage)

    def build(self, recipes: Sequence[Recipe]) -> None:
        """Builds what is missing. Raises ToolsError: too little disk, or a step that failed, with the end of its log."""
        todo = list(dict.fromkeys(recipe for wanted in recipes for recipe in self.missing(wanted)))
        if not todo:
            return
        free_bytes = shutil.disk_usage(self.folder).free
        if (refusal := disk_refusal(todo, free_bytes, self.folder)) is not None:
            raise ToolsError(refusal)
        needed = sum(recipe.free_bytes for recipe in todo)
        names = ", ".join(recipe.name for recipe in todo)
        self.report(f"Building {names}: takes up to {needed / 2**30:.1f} GiB of disk, {free_bytes / 2**30:.0f} GiB are free.")
        # A killed build leaves its working containers, each with a copy of what it had installed.
        output_of(self.command("rm", "--all"), env=self.environment)
        for recipe in todo:
            self._build_one(recipe)
        output_of(self.command("rmi", "--prune"), env=self.environment)

    def _build_one(self, recipe: Recipe) -> None:
        started = time.monotonic()
        log = self.folder / "logs" / f"{recipe.name}.log"
        with tempfile.TemporaryDirectory(dir=self.folder, prefix="making-") as scratch_folder:
            scratch = Path(scratch_folder)
            context = self.repository
            arguments = ["bud", "--layers", "--pull-never", "--tag", self.reference(recipe)]
            if recipe.parent is None:
                context = scratch
                run_logged([self.repository / "images/base/rootfs.sh", scratch / "rootfs.tar"], log, cwd=self.repository)
            else:
                settings = self._settings()
                secret = scratch / "build_env"
                secret.write_text(settings.as_shell())
                arguments += ["--build-arg", f"BASE={self.reference(recipe.root)}", "--secret", f"id=build_env,src={secret}"]
                for outside, inside in settings.volumes.items():
                    arguments += ["--volume", f"{outside}:{inside}"]
            if recipe.target is not None:
                arguments += ["--target", recipe.target]
            command = self.command(*arguments, "--file", str(self.repository / recipe.dockerfile), str(context))
            run_logged(command, log.with_suffix(".build.log"), cwd=self.repository, env=self.environment)
        sizes, tag = self.sizes(), recipe.tag(self.repository)
        self.report(f"Built {recipe.name}:{tag}, {sizes[self.reference(recipe)]}, in {time.monotonic() - started:.0f} s.")
        old = outdated(list(sizes), recipe, tag)
        if old:
            output_of(self.command("rmi", *old), env=self.environment)

    def _settings(self) -> MachineSettings:
        return settings_of(os.environ, _uv_cache())


def _uv_cache() -> Path | None:
    """The folder from which uv on this machine takes wheels that it has already; None without uv or before its first use."""
    try:
        folder = Path(subprocess.run([find_uv(), "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip())
    except (ToolsError, subprocess.CalledProcessError):
        return None
    return folder if folder.is_dir() else None
