"""Builds the project's images, and pushes them where a cluster finds them.

python -m e2e.images build [base|operator|trainer ...] [--cluster NAME | --push HOST:PORT]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from e2e.cluster.cluster import Cluster
from e2e.cluster.sandbox import SandboxError
from e2e.images.buildah import builder
from e2e.images.provide import build, ensure, recipes_of
from e2e.images.recipes import IMAGES
from e2e.images.registry import push_command
from e2e.tools.cachefolder import ToolsError


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.images", description="Build the project's container images with buildah.")
    commands = parser.add_subparsers(dest="command", required=True)
    sub = commands.add_parser("build", help="build what is missing; print one reference a line")
    sub.add_argument("names", nargs="*", metavar="IMAGE", help=f"of {', '.join(IMAGES)} (default: operator and trainer)")
    where = sub.add_mutually_exclusive_group()
    where.add_argument("--cluster", metavar="NAME", help="push into this running test cluster; print the names for its pods")
    where.add_argument("--push", metavar="HOST:PORT", help="push to this registry, without TLS")
    arguments = parser.parse_args(argv)
    names = arguments.names or ["operator", "trainer"]
    try:
        references = _build(names, arguments.cluster, arguments.push)
    except (ToolsError, SandboxError) as error:
        print(error, file=sys.stderr)
        return 1
    print(*references, sep="\n")
    return 0


def _build(names: list[str], cluster: str | None, registry: str | None) -> list[str]:
    if cluster is not None:
        return list(ensure(names, Cluster.attach(cluster)).values())
    if registry is None:
        return list(build(names).values())
    pushed = []
    recipes = list(recipes_of(names).values())
    with builder(recipes) as images:
        images.build(recipes)
        for recipe in recipes:
            reference = f"{registry}/{recipe.name}:{recipe.tag(images.repository)}"
            done = subprocess.run(push_command(images, recipe, reference), env=images.environment, stdin=subprocess.DEVNULL, check=False)
            if done.returncode != 0:
                raise ToolsError(f"push to {reference} failed (above)")
            pushed.append(reference)
    return pushed


if __name__ == "__main__":
    sys.exit(main())
