"""The registry's configuration, and how it is told that an image is there."""

from pathlib import Path

import yaml

from e2e.cluster.home import Home
from e2e.images.registry import Registry, registry_config


def test_the_registry_keeps_no_memory_of_layers_that_another_process_may_remove() -> None:
    config = yaml.safe_load(registry_config(Path("/cache/registry"), "10.200.0.1:5000"))
    assert config["http"]["addr"] == "10.200.0.1:5000"
    assert config["storage"] == {"filesystem": {"rootdirectory": "/cache/registry"}, "delete": {"enabled": True}}


def test_an_image_is_there_once_its_tag_is_written(tmp_path: Path) -> None:
    registry = Registry(Home(tmp_path))
    link = registry.storage / "docker/registry/v2/repositories/rlhf-trainer/_manifests/tags/abc/current/link"
    link.parent.mkdir(parents=True)
    assert not registry.has("rlhf-trainer", "abc")
    link.write_text("sha256:0")
    assert registry.has("rlhf-trainer", "abc")
    assert not registry.has("rlhf-trainer", "abd")
