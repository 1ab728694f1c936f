"""Helm from the cache, with a cluster or without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e import tools
from e2e.kit.helm import Helm


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
