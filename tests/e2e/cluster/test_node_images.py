"""Which images a node keeps."""

from __future__ import annotations

import os
from pathlib import Path

from e2e.cluster.node_images import outdated, read_listing, tag_link

REGISTRY = "10.0.0.1:5000"
LISTING = f"""REF TYPE DIGEST SIZE PLATFORMS LABELS
{REGISTRY}/trainer:one application/vnd.oci.image.manifest.v1+json sha256:a1 3.0 GiB linux/amd64 io.cri-containerd.image=managed
{REGISTRY}/trainer@sha256:a1 application/vnd.oci.image.manifest.v1+json sha256:a1 3.0 GiB linux/amd64 -
sha256:c1 application/vnd.oci.image.manifest.v1+json sha256:a1 3.0 GiB linux/amd64 -
{REGISTRY}/trainer:two application/vnd.oci.image.manifest.v1+json sha256:a2 3.0 GiB linux/amd64 -
sha256:c2 application/vnd.oci.image.manifest.v1+json sha256:a2 3.0 GiB linux/amd64 -
{REGISTRY}/trainer@sha256:a0 application/vnd.oci.image.manifest.v1+json sha256:a0 3.0 GiB linux/amd64 -
{REGISTRY}/operator:one application/vnd.oci.image.manifest.v1+json sha256:b1 60 MiB linux/amd64 -
registry.example/pause:3 application/vnd.oci.image.manifest.v1+json sha256:d1 1 MiB linux/amd64 -
"""


def use(storage: Path, repository: str, tag: str, at: int) -> None:
    link = tag_link(storage, repository, tag)
    link.parent.mkdir(parents=True)
    link.write_text("")
    os.utime(link, (at, at))


def test_of_each_name_the_image_used_last_stays_and_the_others_go_with_all_their_references(tmp_path: Path) -> None:
    use(tmp_path, "trainer", "one", 200)
    use(tmp_path, "trainer", "two", 100)
    assert outdated(read_listing(LISTING), tmp_path, REGISTRY) == [f"{REGISTRY}/trainer:two", "sha256:c2", f"{REGISTRY}/trainer@sha256:a0"]


def test_an_image_stays_that_the_registry_has_forgotten_while_it_is_the_only_one(tmp_path: Path) -> None:
    use(tmp_path, "trainer", "two", 100)
    assert f"{REGISTRY}/operator:one" not in outdated(read_listing(LISTING), tmp_path, REGISTRY)
    assert f"{REGISTRY}/trainer:one" in outdated(read_listing(LISTING), tmp_path, REGISTRY)


def test_an_empty_store_has_nothing_to_lose(tmp_path: Path) -> None:
    assert outdated(read_listing("REF TYPE DIGEST SIZE PLATFORMS LABELS\n"), tmp_path, REGISTRY) == []
