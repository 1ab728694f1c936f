"""The full lane: real nodes, real pods, the trainer image.

``make e2e`` runs the tests of level 0, ``make e2e-full`` those of level 1 as well: more kinds of failures, half an hour more.
Time limits stand in budgets.yaml; ``E2E_SLOW=3`` allows three times as much on a slow machine.
"""

from __future__ import annotations

import os

import pytest

from e2e.cluster.cluster import Cluster, Shape

pytest_plugins = ["e2e.kit.fixtures", "e2e.kit.operator"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--level", type=int, default=0, help="highest level of tests to run: 0 (default) or 1")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "level(n): runs with --level n and above; without the marker, always")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    highest = config.getoption("--level")
    above = [item for item in items if (marker := item.get_closest_marker("level")) is not None and marker.args[0] > highest]
    if above:
        config.hook.pytest_deselected(items=above)
        items[:] = [item for item in items if item not in above]


@pytest.fixture(scope="session")
def shape() -> Shape:
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
