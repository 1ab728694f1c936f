"""The tag of an image follows from its sources and its parents' sources, and from nothing else."""

import os
from pathlib import Path

import pytest

from e2e.images.recipes import IMAGES, OPERATOR, OPERATOR_PACKAGES, TRAINER, TRAINER_STACK, Recipe, copy_sources, files

REPOSITORY = Path(__file__).parents[3]
STEPS = list(dict.fromkeys(step for image in IMAGES.values() for step in image.lineage()))
PARENT = Recipe("parent", ("ground",), "ground/Dockerfile", free_bytes=1)
CHILD = Recipe("child", ("code", "setup.toml"), "ground/Dockerfile", free_bytes=2, parent=PARENT)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in {"ground/Dockerfile": "FROM scratch", "code/main.py": "1", "setup.toml": "", "other.txt": "x"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def rename(path: Path) -> None:
    path.rename(path.with_name("renamed.py"))


CHANGES = {
    "content": ("code/main.py", lambda path: path.write_text("2"), {"child"}),
    "name": ("code/main.py", rename, {"child"}),
    "execute permission": ("code/main.py", lambda path: path.chmod(0o755), {"child"}),
    "a parent's content": ("ground/Dockerfile", lambda path: path.write_text("FROM other"), {"parent", "child"}),
    "a new file": ("code/new.py", lambda path: path.write_text(""), {"child"}),
    "time": ("code/main.py", lambda path: os.utime(path, (0, 0)), set()),
    "a file of no image": ("other.txt", lambda path: path.write_text("y"), set()),
    "bytecode": ("code/__pycache__/main.pyc", lambda path: (path.parent.mkdir(), path.write_text("")), set()),
    "an editable installation": ("code/x.egg-info/PKG-INFO", lambda path: (path.parent.mkdir(), path.write_text("")), set()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_tag_changes_with_the_sources_alone(tree: Path, change: str) -> None:
    name, act, expected = CHANGES[change]
    before = {recipe.name: recipe.tag(tree) for recipe in (PARENT, CHILD)}
    act(tree / name)
    after = {recipe.name: recipe.tag(tree) for recipe in (PARENT, CHILD)}
    assert {recipe for recipe in before if before[recipe] != after[recipe]} == expected


def test_a_missing_source_is_named(tree: Path) -> None:
    (tree / "setup.toml").unlink()
    with pytest.raises(FileNotFoundError, match=r"setup\.toml"):
        CHILD.tag(tree)


def test_a_copy_of_the_sources_has_the_same_tags_and_nothing_else(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    copy = tmp_path_factory.mktemp("copy")
    copy_sources(tree, [CHILD], copy)
    assert CHILD.tag(copy) == CHILD.tag(tree)
    assert sorted(path.name for path in copy.rglob("*") if path.is_file()) == ["Dockerfile", "main.py", "setup.toml"]


def test_a_copy_has_the_permissions_that_git_keeps_so_that_layers_of_another_checkout_are_found(
    tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy = tmp_path_factory.mktemp("copy")
    (tree / "ground/Dockerfile").chmod(0o400)
    (tree / "setup.toml").chmod(0o700)
    copy_sources(tree, [CHILD], copy)
    assert {path.name: path.stat().st_mode & 0o777 for path in copy.rglob("*") if path.is_file()} == {
        "Dockerfile": 0o644, "setup.toml": 0o755, "main.py": 0o644,
    }  # fmt: skip


@pytest.mark.parametrize("recipe", [OPERATOR_PACKAGES, TRAINER_STACK], ids=lambda recipe: recipe.name)
def test_our_code_is_no_part_of_the_heavy_layers(recipe: Recipe) -> None:
    roots = {path.relative_to(REPOSITORY).parts[0] for path in files(REPOSITORY, recipe.sources)}
    assert roots <= {"images", "scripts"}


@pytest.mark.parametrize(("recipe", "absent"), [(OPERATOR, "trainer"), (TRAINER, "operator")], ids=["operator", "trainer"])
def test_neither_image_holds_the_other_half(recipe: Recipe, absent: str) -> None:
    assert absent not in {path.relative_to(REPOSITORY).parts[0] for path in files(REPOSITORY, recipe.sources)}


@pytest.mark.parametrize(
    "recipe", dict.fromkeys(step for image in IMAGES.values() for step in image.lineage()), ids=lambda recipe: recipe.name
)
def test_every_file_a_dockerfile_copies_is_a_source_of_an_image_built_from_it(recipe: Recipe) -> None:
    lines = (REPOSITORY / recipe.dockerfile).read_text().splitlines()
    words = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from=" not in line]
    copied = [word.replace("${STACK}", "cpu") for line in words for word in line if not word.startswith("--")]
    sources = [Path(source) for other in STEPS if other.dockerfile == recipe.dockerfile for source in other.sources]
    assert [path for path in copied if not any(Path(path).is_relative_to(source) for source in sources)] == []
