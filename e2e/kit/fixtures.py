"""Pytest fixtures of the cluster lanes.

``E2E_KUBECONFIG=FILE`` runs the tests against that cluster; ``E2E_CLUSTER=NAME`` against a running cluster of ours (``make cluster-up``);
without either a cluster of the lane's shape is started for the session and stopped after it. ``E2E_IMAGE`` names the trainer image.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from e2e.cluster.cluster import Cluster, Shape
from e2e.kit.api import Api
from e2e.kit.evidence import describe
from e2e.kit.log_scan import LogScan
from e2e.kit.waiting import eventually

REPORT = pytest.StashKey[bool]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Remembers for the fixtures whether the test itself failed."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.when == "call":
        item.stash[REPORT] = report.failed


@pytest.fixture(scope="session")
def shape() -> Shape:
    """Shape of the cluster that the lane starts; each lane's conftest overrides it."""
    return "control"


@pytest.fixture(scope="session")
def own_cluster(shape: Shape) -> Iterator[Cluster | None]:
    """Our own cluster, or None when a foreign kubeconfig is given."""
    if os.environ.get("E2E_KUBECONFIG"):
        yield None
    elif name := os.environ.get("E2E_CLUSTER"):
        yield Cluster.attach(name)
    else:
        # Tied: a killed test run takes its cluster along.
        cluster = Cluster.up(f"tests-{shape}-{os.getpid()}", shape, tied=True)
        try:
            yield cluster
        finally:
            cluster.down()


@pytest.fixture
def cluster(own_cluster: Cluster | None) -> Cluster:
    """Our own cluster, for tests that restart its parts; skipped on a foreign one."""
    if own_cluster is None:
        pytest.skip("stops parts of the cluster: needs one of ours, and E2E_KUBECONFIG names another")
    return own_cluster


@pytest.fixture(scope="session")
def kubeconfig(own_cluster: Cluster | None) -> Path:
    return own_cluster.admin_kubeconfig if own_cluster is not None else Path(os.environ["E2E_KUBECONFIG"])


@pytest.fixture(scope="session")
def admin(kubeconfig: Path) -> Api:
    """The whole cluster, default namespace."""
    return Api(kubeconfig)


@pytest.fixture
def namespace(admin: Api, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace for one test, gone after it; what it held is printed when the test failed."""
    name = f"test-{secrets.token_hex(4)}"
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    eventually(
        f"default service account of {name}", lambda: admin.get("ServiceAccount", "default", namespace=name), seconds=30, every=0.05
    )
    yield name
    if request.node.stash.get(REPORT, False):
        print(describe(admin.within(name)))
    try:
        admin.delete("Namespace", name)
    except (ApiException, HTTPError) as error:
        print(f"namespace {name} was not deleted: {error}")


@pytest.fixture
def api(admin: Api, namespace: str) -> Api:
    """The test's own namespace."""
    return admin.within(namespace)


@pytest.fixture(scope="session")
def image() -> str:
    """The trainer image, as the cluster's nodes know it."""
    name = os.environ.get("E2E_IMAGE", "")
    if not name:
        pytest.fail("E2E_IMAGE names no trainer image, and this lane builds none.")
    return name


@pytest.fixture(scope="session")
def _cluster_logs(own_cluster: Cluster | None) -> LogScan:
    logs = sorted(own_cluster.logs.glob("*.log")) if own_cluster is not None else []
    scan = LogScan({path.stem: path for path in logs if path.stem in ("kuberay", "kuberay-operator")})
    scan.skip()
    return scan


@pytest.fixture(autouse=True)
def log_scan(_cluster_logs: LogScan) -> Iterator[LogScan]:
    """Fails a test in whose time KubeRay logged an error nobody expects; a test adds ``allowed`` patterns for what it provokes."""
    _cluster_logs.allowed.clear()
    yield _cluster_logs
    found = _cluster_logs.new_errors()
    assert not found, "unexpected errors in the logs:\n" + "\n".join(found[:20])
