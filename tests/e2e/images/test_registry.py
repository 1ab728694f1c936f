"""The registry's storage as the build side reads and tidies it."""

import os
from pathlib import Path

from e2e.images.registry import KEPT_TAGS, Registry


def add_tag(registry: Registry, repository: str, tag: str, age_seconds: int = 0) -> Path:
    link = registry.storage / "docker/registry/v2/repositories" / repository / "_manifests/tags" / tag / "current/link"
    link.parent.mkdir(parents=True)
    link.write_text("sha256:0")
    os.utime(link, (10**9 - age_seconds,) * 2)
    return link


def test_an_image_is_there_once_its_tag_is_written(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    link = add_tag(registry, "rlhf-trainer", "abc")
    assert registry.has("rlhf-trainer", "abc")
    assert not registry.has("rlhf-trainer", "abd")
    link.unlink()
    assert not registry.has("rlhf-trainer", "abc")


def test_the_newest_tags_stay_and_other_images_are_left_alone(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    for age in range(KEPT_TAGS + 2):
        add_tag(registry, "rlhf-trainer", f"age{age}", age)
    add_tag(registry, "rlhf-operator", "only", 99)
    assert registry.remove_old("rlhf-trainer") == [f"age{age}" for age in (KEPT_TAGS + 1, KEPT_TAGS)]
    assert [registry.has("rlhf-trainer", f"age{age}") for age in range(KEPT_TAGS + 2)] == [True] * KEPT_TAGS + [False] * 2
    assert registry.has("rlhf-operator", "only")
    assert registry.remove_old("rlhf-trainer") == []


def test_a_registry_that_holds_nothing_yet_has_nothing_to_remove(tmp_path: Path) -> None:
    assert Registry(tmp_path).remove_old("rlhf-trainer") == []
