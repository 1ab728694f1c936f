"""Helm from the cache, with a cluster or without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e import tools
from e2e.kit.helm import Helm
from tests.integration.chart.rendering import KEY, VALUES, Object, Render


@pytest.fixture(scope="session")
def helm_binary() -> Path:
    return tools.prepare(("helm",)).binary("helm")


@pytest.fixture(scope="session")
def renderer(helm_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm without a cluster."""
    return Helm(helm_binary, tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def helm(helm_binary: Path, kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm as the cluster's administrator."""
    return Helm(helm_binary, tmp_path_factory.mktemp("helm"), kubeconfig)


@pytest.fixture(scope="module")
def render(renderer: Helm) -> Render:
    done: dict[str, list[Object]] = {}

    def rendered(name: str) -> list[Object]:
        if name not in done:
            done[name] = renderer.render(VALUES[name])
        return done[name]

    return rendered


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "token_key"
    path.write_text(KEY)
    return path
