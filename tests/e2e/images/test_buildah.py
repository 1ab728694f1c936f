"""What is refused before a build starts, and what is removed after it."""

from pathlib import Path

import pytest

from e2e.images.buildah import disk_refusal, outdated
from e2e.images.provide import recipes_of
from e2e.images.recipes import BASE, TRAINER, TRAINER_STACK
from e2e.tools.cachefolder import ToolsError


@pytest.mark.parametrize(
    ("free_bytes", "refused"),
    [(0, True), (BASE.free_bytes + TRAINER_STACK.free_bytes - 1, True), (BASE.free_bytes + TRAINER_STACK.free_bytes, False)],
)
def test_a_build_needs_room_for_all_its_images(free_bytes: int, refused: bool) -> None:
    message = disk_refusal([BASE, TRAINER_STACK], free_bytes, Path("/cache"))
    assert (message is not None) == refused
    if message:
        assert "rlhf-base, rlhf-trainer-stack" in message
        assert "/cache" in message
        assert "RLHF_CACHE" in message


def test_only_other_tags_of_the_same_image_are_outdated() -> None:
    names = ["localhost/rlhf-trainer:aaa", "localhost/rlhf-trainer:bbb", "localhost/rlhf-trainer-stack:ccc", "localhost/rlhf-base:aaa"]
    assert outdated(names, TRAINER, "bbb") == ["localhost/rlhf-trainer:aaa"]


def test_an_unknown_image_names_the_nearest() -> None:
    with pytest.raises(ToolsError, match="did you mean trainer"):
        recipes_of(["trainr"])
