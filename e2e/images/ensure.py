"""Images by name: built if their sources changed, pushed if the registry lacks them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from e2e.cluster.home import Home
from e2e.cluster.sandbox import Sandbox
from e2e.images.build import builder
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


def ensure(names: Iterable[str], sandbox: Sandbox, report: Report = report_to_stderr) -> Mapping[str, str]:
    """Name → reference that pods of this cluster can pull. Starts the cluster's registry if it does not run.

    Takes a second when nothing changed, about ten when only our code did, minutes when a lock did.
    """
    recipes = recipes_of(names)
    registry = Registry(Home.default())
    with builder(list(recipes.values()), report) as images:
        images.build([recipe for recipe in recipes.values() if not registry.has(recipe.name, recipe.tag(images.repository))])
        registry.serve(sandbox)
        return {name: registry.push(images, recipe, sandbox, report) for name, recipe in recipes.items()}
