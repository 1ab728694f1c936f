"""The full lane: real nodes, real pods, the trainer image."""

from __future__ import annotations

import os

import pytest

from e2e.cluster.cluster import Cluster

pytest_plugins = ["e2e.kit.fixtures"]


@pytest.fixture(scope="session")
def shape() -> str:
    return "full"


@pytest.fixture(scope="session")
def image(own_cluster: Cluster | None) -> str:
    """``E2E_IMAGE``, else the trainer image built from this tree into the registry of our own cluster."""
    if name := os.environ.get("E2E_IMAGE"):
        return name
    if own_cluster is None:
        pytest.fail("E2E_KUBECONFIG names a cluster of your own: name the trainer image it can pull by E2E_IMAGE.")
    from e2e import images

    return images.ensure(["trainer"], own_cluster)["trainer"]
