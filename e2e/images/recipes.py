"""What each image is made of, and the tag that follows: the same sources give the same tag, so a tag that exists is never built again."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TAG_DIGITS = 12
IGNORED_NAMES = ("__pycache__",)
IGNORED_SUFFIXES = (".pyc", ".egg-info")


@dataclass(frozen=True)
class Recipe:
    """One image. `sources`: files and folders of the repository that reach it, beside those of `parent`, the image that it is built from.

    `dockerfile` is relative to the repository and its folder's `Dockerfile.dockerignore` says what the build sees; `target` names the stage
    that is this image, if not the last. `free_bytes`: disk that building it takes at its peak, measured and rounded up.
    """

    name: str
    sources: tuple[str, ...]
    dockerfile: str
    free_bytes: int
    parent: Recipe | None = None
    target: str | None = None

    @property
    def root(self) -> Recipe:
        """The first of its parents."""
        return self if self.parent is None else self.parent.root

    def lineage(self) -> tuple[Recipe, ...]:
        """Every image to be built for this one, in order, itself last."""
        return (*(self.parent.lineage() if self.parent else ()), self)

    def tag(self, repository: Path) -> str:
        """Hexadecimal digits that change with any source of this image or of its parents."""
        parent = self.parent.tag(repository) if self.parent else ""
        return hashlib.sha256(f"{parent} {self.name} {digest(repository, self.sources)}".encode()).hexdigest()[:TAG_DIGITS]


BASE = Recipe("rlhf-base", ("images/base",), "images/base/Dockerfile", free_bytes=600 << 20)
OPERATOR_PACKAGES = Recipe(
    "rlhf-operator-packages",
    ("images/operator",),
    "images/operator/Dockerfile",
    free_bytes=1 << 30,
    parent=BASE,
    target="packages",
)
OPERATOR = Recipe(
    "rlhf-operator",
    ("pyproject.toml", "LICENSE", "crds", "operator"),
    "images/operator/Dockerfile",
    free_bytes=1 << 30,
    parent=OPERATOR_PACKAGES,
)
TRAINER_STACK = Recipe(
    "rlhf-trainer-stack",
    (
        *("images/trainer/Dockerfile", "images/trainer/Dockerfile.dockerignore", "images/trainer/selftest.py"),
        *("images/trainer/cpu.lock", "images/trainer/overrides.txt", "scripts/install_stack.sh", "scripts/warm_imports.py"),
    ),
    "images/trainer/Dockerfile",
    free_bytes=20 << 30,
    parent=BASE,
    target="stack",
)
TRAINER = Recipe(
    "rlhf-trainer",
    ("pyproject.toml", "LICENSE", "crds", "trainer"),
    "images/trainer/Dockerfile",
    free_bytes=200 << 20,
    parent=TRAINER_STACK,
)
IMAGES: Mapping[str, Recipe] = {"base": BASE, "operator": OPERATOR, "trainer": TRAINER}


def files(repository: Path, sources: Sequence[str]) -> Iterator[Path]:
    """The files of the sources in a fixed order, without what an import or an installation leaves; a missing source is an error."""
    for source in sources:
        path = repository / source
        if path.is_file():
            yield path
        elif path.is_dir():
            yield from sorted(inner for inner in path.rglob("*") if inner.is_file() and not _ignored(inner.relative_to(path)))
        else:
            raise FileNotFoundError(f"{path}: an image is made of it, and it is not there")


def _ignored(path: Path) -> bool:
    return any(part in IGNORED_NAMES or part.endswith(IGNORED_SUFFIXES) for part in path.parts)


def copy_sources(repository: Path, recipes: Sequence[Recipe], target: Path) -> None:
    """Copies all that these images are made of, so that what is built is what the tag says even while somebody edits the repository.

    Permissions are those that git keeps: to buildah a file with others is another file, and it would build all that follows again.
    """
    for source in dict.fromkeys(source for recipe in recipes for ancestor in recipe.lineage() for source in ancestor.sources):
        for file in files(repository, [source]):
            copy = target / file.relative_to(repository)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy)
            copy.chmod(0o755 if executable(file) else 0o644)


def executable(file: Path) -> bool:
    return bool(file.stat().st_mode & 0o100)


def digest(repository: Path, sources: Sequence[str]) -> str:
    """SHA-256 over names, execute permission and content; times and owners don't count."""
    total = hashlib.sha256()
    for file in files(repository, sources):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        total.update(f"{file.relative_to(repository)}\0{executable(file)}\0{content}\n".encode())
    return total.hexdigest()
