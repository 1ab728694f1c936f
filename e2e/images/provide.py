"""Images by name: built if their sources changed, pushed if the registry lacks them."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable

from e2e.cluster.cluster import Cluster
from e2e.images.buildah import builder
from e2e.images.recipes import IMAGES, Recipe
from e2e.images.registry import Registry
from e2e.tools.cachefolder import Report, ToolsError, report_to_stderr


def recipes_of(names: Iterable[str]) -> dict[str, Recipe]:
    """Name → recipe; an unknown name is an error that tells the nearest."""
    chosen = {}
    for name in names:
        if name not in IMAGES:
            near = difflib.get_close_matches(name, IMAGES, 1) or list(IMAGES)
            raise ToolsError(f"no image {name!r}; did you mean {' or '.join(near)}?")
        chosen[name] = IMAGES[name]
    return chosen


def build(names: Iterable[str], report: Report = report_to_stderr) -> dict[str, str]:
    """Builds what is missing and returns name → name in the build store."""
    recipes = recipes_of(names)
    with builder(list(recipes.values()), report) as images:
        images.build(list(recipes.values()))
        return {name: images.reference(recipe) for name, recipe in recipes.items()}


def ensure(names: Iterable[str], cluster: Cluster, report: Report = report_to_stderr) -> dict[str, str]:
    """Name → reference that pods of this cluster can pull.

    A second when nothing changed, some ten when only our code did, minutes when a lock did.
    """
    recipes = recipes_of(names)
    registry = Registry(cluster.home.folder("registry"))
    part = cluster.sandbox.part("registry")
    if part is None or not part.running:
        state = "none" if part is None else part.describe()
        raise ToolsError(f"cluster {cluster.name}, shape {cluster.shape}: its registry is: {state}. Only the full shape pulls images.")
    with builder(list(recipes.values()), report) as images:
        images.build([recipe for recipe in recipes.values() if not registry.has(recipe.name, recipe.tag(images.repository))])
        references = {name: registry.push(images, recipe, cluster.sandbox, report) for name, recipe in recipes.items()}
        removed = [tag for recipe in recipes.values() for tag in registry.remove_old(recipe.name, time.time())]
        if removed:
            registry.collect(cluster.folder / "node" / "registry.json")
    return references
