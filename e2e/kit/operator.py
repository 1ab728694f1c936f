"""The operator as its users get it: this tree's chart, installed by helm, with this tree's images."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiException

from e2e.cluster.cluster import Cluster
from e2e.kit import budgets
from e2e.kit.api import Api
from e2e.kit.budgets import Budgets
from e2e.kit.clients import Clients
from e2e.kit.evidence import describe
from e2e.kit.fixtures import REPORT
from e2e.kit.jobs import Jobs
from e2e.kit.log_scan import unexpected
from e2e.kit.waiting import eventually, pod_is_ready

CHART = Path(__file__).parents[2] / "charts" / "rlhf-operator"
NAME = "rlhf-operator"
NAMESPACE = "rlhf-system"
CRD = "rlhfjobs.rlhf.dev"
RESTRICTED_LABELS = {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "latest"}


@dataclass(frozen=True)
class Images:
    """Names that the nodes of the cluster can pull."""

    operator: str
    trainer: str


@dataclass
class Release:
    """One installation of the chart. ``values`` go over the chart's own."""

    clients: Clients
    admin: Api
    images: Images
    name: str = NAME
    namespace: str = NAMESPACE
    values: Mapping[str, Any] = field(default_factory=dict)
    allowed: list[str] = field(default_factory=list)
    """Patterns of log lines that a test provokes."""

    @property
    def full_name(self) -> str:
        """Of the Deployment and the Lease."""
        return self.name if NAME in self.name else f"{self.name}-{NAME}"

    @property
    def api(self) -> Api:
        return self.admin.within(self.namespace)

    @property
    def labels(self) -> str:
        return f"app.kubernetes.io/name={NAME},app.kubernetes.io/instance={self.name}"

    def install(self, seconds: float, chart: Path = CHART) -> None:
        """Installs, or changes what is there; returns when all replicas are ready."""
        if self.admin.get("Namespace", self.namespace) is None:
            metadata = {"name": self.namespace, "labels": RESTRICTED_LABELS}
            self.admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        repository, _, tag = self.images.operator.rpartition(":")
        values = {"image": {"repository": repository, "tag": tag}, "trainer": {"image": self.images.trainer}, **self.values}
        # JSON is YAML, and one value a flag keeps types without a file.
        flags = [word for key, value in values.items() for word in ("--set-json", f"{key}={json.dumps(value)}")]
        timeout = ("--wait", "--timeout", f"{seconds:.0f}s")
        self.clients.helm("upgrade", "--install", self.name, chart, *timeout, *flags, namespace=self.namespace, seconds=seconds + 30)

    def remove(self) -> None:
        """``helm uninstall``: the CRD and the token key stay, as the chart says, and so does the namespace."""
        self.clients.helm("uninstall", self.name, "--ignore-not-found", "--wait", namespace=self.namespace)

    def uninstall(self) -> None:
        """The CRD stays; the namespace goes, and all that is in it."""
        self.remove()
        self.admin.delete("Namespace", self.namespace)
        eventually(f"namespace {self.namespace} to be gone", lambda: self.admin.get("Namespace", self.namespace) is None, seconds=120)

    def pods(self) -> list[dict[str, Any]]:
        """Those that are not being deleted."""
        return [pod for pod in self.api.list("Pod", labels=self.labels) if not pod["metadata"].get("deletionTimestamp")]

    def token_key(self) -> str:
        """From which the Ray token of each job is derived; empty when there is none."""
        return str(((self.api.get("Secret", f"{self.full_name}-token-key") or {}).get("data") or {}).get("token_key", ""))

    def holder(self) -> str:
        """Identity of the process that holds the Lease: its pod's name and something drawn by lot. Empty when nobody does."""
        return str(((self.api.get("Lease", self.full_name) or {}).get("spec") or {}).get("holderIdentity") or "")

    def leader(self) -> str:
        """Name of the pod that acts; empty when nobody does."""
        holder = self.holder()
        return next((pod["metadata"]["name"] for pod in self.pods() if holder.startswith(pod["metadata"]["name"])), "")

    def another_leads(self, before: str, seconds: float) -> float:
        """Waits for a process other than ``before`` to hold the Lease; returns the seconds it took."""
        began = time.monotonic()
        eventually("another operator to lead", lambda: self.holder() not in ("", before), seconds=seconds, every=0.2, api=self.api)
        return time.monotonic() - began

    def scale(self, replicas: int) -> None:
        """Returns when so many pods are ready and no other is left."""
        self.api.patch("Deployment", self.full_name, {"spec": {"replicas": replicas}})

        def done() -> bool:
            found = self.api.list("Pod", labels=self.labels)
            return len(found) == replicas and all(pod_is_ready(pod) for pod in found)

        eventually(f"{replicas} operator pods", done, seconds=120, every=0.5, api=self.api)

    def new_errors(self, since: float) -> list[str]:
        """Lines of the pods' logs after ``since`` (``time.monotonic``) that report an error nobody expects."""
        seconds = max(int(time.monotonic() - since), 1)
        found: list[str] = []
        for pod in self.api.list("Pod", labels=self.labels):
            name = pod["metadata"]["name"]
            for previous in (False, True):
                try:
                    text = str(self.api.core.read_namespaced_pod_log(name, self.namespace, since_seconds=seconds, previous=previous))
                except ApiException as error:
                    # No container started yet, or none before this one.
                    if error.status not in (400, 404):
                        raise
                    continue
                found += [f"{name}: {line}" for line in unexpected(text.splitlines(), self.allowed)]
        return found


@pytest.fixture(scope="session")
def limits() -> Budgets:
    return budgets.load()


@pytest.fixture(scope="session")
def clients(kubeconfig: Path) -> Clients:
    return Clients(kubeconfig)


@pytest.fixture(scope="session")
def images(own_cluster: Cluster | None, image: str) -> Images:
    """``E2E_OPERATOR_IMAGE``, else the operator image built from this tree; beside it the trainer image."""
    if name := os.environ.get("E2E_OPERATOR_IMAGE"):
        return Images(name, image)
    if own_cluster is None:
        pytest.fail("E2E_KUBECONFIG names a cluster of your own: name the operator image it can pull by E2E_OPERATOR_IMAGE.")
    from e2e import images

    return Images(images.ensure(["operator"], own_cluster)["operator"], image)


@pytest.fixture(scope="session")
def release(clients: Clients, admin: Api, images: Images, limits: Budgets) -> Iterator[Release]:
    """The chart as it comes, for all tests of the session, in a namespace of Pod Security level `restricted`."""
    found = Release(clients, admin, images)
    began = time.monotonic()
    try:
        found.install(limits.helm_install)
    except AssertionError:
        print(describe(found.api))
        raise
    print(f"helm install: {time.monotonic() - began:.1f} s")
    yield found
    found.uninstall()


@pytest.fixture
def operator(release: Release, request: pytest.FixtureRequest) -> Iterator[Release]:
    """The session's operator; afterwards its logs hold no error that the test did not allow."""
    release.allowed.clear()
    began = time.monotonic()
    yield release
    if request.node.stash.get(REPORT, False):
        print(describe(release.api))
    found = release.new_errors(began)
    assert not found, "unexpected errors in the operator's log:\n" + "\n".join(found[:20])


@pytest.fixture
def jobs(operator: Release, api: Api, clients: Clients, images: Images, tmp_path: Path, limits: Budgets) -> Iterator[Jobs]:
    """Jobs of the test's own namespace; their pods are gone before the next test needs the machine."""
    found = Jobs(api, clients, images.trainer, tmp_path)
    yield found
    found.close(limits.gone)
