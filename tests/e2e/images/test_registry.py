"""The registry's storage as the build side reads and tidies it."""

import os
from pathlib import Path

from e2e.images.registry import KEPT_SECONDS, Registry

NOW = 10**9


def add_tag(registry: Registry, repository: str, tag: str, age_seconds: int = 0) -> Path:
    link = registry.storage / "docker/registry/v2/repositories" / repository / "_manifests/tags" / tag / "current/link"
    link.parent.mkdir(parents=True)
    link.write_text("sha256:0")
    os.utime(link, (NOW - age_seconds,) * 2)
    return link


def test_an_image_is_there_once_its_tag_is_written(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    link = add_tag(registry, "rlhf-trainer", "abc")
    assert registry.has("rlhf-trainer", "abc")
    assert not registry.has("rlhf-trainer", "abd")
    link.unlink()
    assert not registry.has("rlhf-trainer", "abc")


def test_tags_used_within_a_day_stay_and_other_images_are_left_alone(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    ages = {"new": 0, "today": KEPT_SECONDS - 1, "older": KEPT_SECONDS + 1}
    for tag, age in ages.items():
        add_tag(registry, "rlhf-trainer", tag, age)
    add_tag(registry, "rlhf-operator", "oldest", 10 * KEPT_SECONDS)
    assert registry.remove_old("rlhf-trainer", NOW) == ["older"]
    assert [tag for tag in ages if registry.has("rlhf-trainer", tag)] == ["new", "today"]
    assert registry.has("rlhf-operator", "oldest")
    assert registry.remove_old("rlhf-trainer", NOW) == []


def test_a_registry_that_holds_nothing_yet_has_nothing_to_remove(tmp_path: Path) -> None:
    assert Registry(tmp_path).remove_old("rlhf-trainer", NOW) == []
