"""The operator as a process of its own, against the real API server, with a stand-in for what would run in pods."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.kit.api import Api
from e2e.kit.log_scan import unexpected
from e2e.kit.objects import config_map
from e2e.kit.waiting import eventually
from rlhf_api import crd
from tests.integration.operator.standin import StandIn

ROOT = Path(__file__).parents[3]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class OperatorProcess:
    """``python -m rlhf_operator`` for one namespace."""

    def __init__(self, kubeconfig: Path, namespace: str, standin: StandIn, folder: Path, **variables: str) -> None:
        self.health, self.metrics = free_port(), free_port()
        key = folder / "key"
        key.write_bytes(standin.key)
        self.log = folder / f"operator-{secrets.token_hex(3)}.log"
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("operator", "crds")),
            "KUBECONFIG": str(kubeconfig),
            "POD_NAMESPACE": namespace,
            "POD_NAME": f"operator-{secrets.token_hex(3)}",
            "RLHF_TOKEN_KEY_FILE": str(key),
            "RLHF_DEFAULT_IMAGE": "registry.example/trainer:1",
            "RLHF_DEFAULT_RAY_VERSION": "2.60.0",
            "RLHF_HEAD_URL": standin.url,
            "RLHF_WATCH_SCOPE": "namespaces",
            "RLHF_WATCH_NAMESPACES": namespace,
            "RLHF_POLL_SECONDS": "0.5",
            "RLHF_STATUS_SECONDS": "1",
            "RLHF_HEALTH_PORT": str(self.health),
            "RLHF_METRICS_PORT": str(self.metrics),
            **variables,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.allowed: list[str] = []
        """Patterns of log lines that a test provokes."""

    def start(self) -> OperatorProcess:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "rlhf_operator"], env=self.environment, stdout=log, stderr=log, cwd="/")
        return self

    def acting(self) -> bool:
        return self.process is not None and self.process.poll() is None and "rlhf_operator_leading 1.0" in self.scrape()

    def wait(self) -> OperatorProcess:
        eventually("the operator to act", self.acting, seconds=30, every=0.1)
        return self

    def stop(self, number: int = signal.SIGTERM, seconds: float = 20) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def probe(self, path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health}{path}", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return int(error.code)
        except OSError:
            return 0

    def scrape(self) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def metric(self, name: str) -> float:
        lines = [line for line in self.scrape().splitlines() if line.startswith(f"{name} ")]
        return float(lines[0].split()[-1]) if lines else 0.0

    def faults(self) -> list[str]:
        """Errors that the log holds and the test did not ask for."""
        return unexpected(self.log.read_text(encoding="utf-8", errors="replace").splitlines(), self.allowed)


@pytest.fixture(scope="session", autouse=True)
def installed(admin: Api) -> None:
    """The RLHFJob CRD, as this tree has it."""
    install(admin)


def install(admin: Api) -> None:
    wanted = crd.definition()
    if admin.get("CustomResourceDefinition", wanted["metadata"]["name"]) is None:
        admin.create(wanted)
    else:
        admin.patch("CustomResourceDefinition", wanted["metadata"]["name"], {"spec": wanted["spec"]})

    def established() -> bool:
        found = admin.get("CustomResourceDefinition", wanted["metadata"]["name"]) or {}
        conditions = (found.get("status") or {}).get("conditions") or []
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

    eventually("the CRD to be served", established, seconds=20, every=0.1)
    time.sleep(0.5)


@pytest.fixture
def standin() -> Iterator[StandIn]:
    with StandIn(secrets.token_hex(32).encode()) as found:
        yield found


@pytest.fixture
def operators(kubeconfig: Path, namespace: str, standin: StandIn, tmp_path: Path) -> Iterator[Callable[..., OperatorProcess]]:
    """Makes operators for the test's namespace; they are stopped, and their logs looked through, after it."""
    made: list[OperatorProcess] = []

    def make(**variables: str) -> OperatorProcess:
        operator = OperatorProcess(kubeconfig, namespace, standin, tmp_path, **variables)
        made.append(operator)
        return operator

    yield make
    faults = []
    for operator in made:
        if operator.process is not None and operator.process.poll() is None:
            operator.process.send_signal(signal.SIGCONT)
            try:
                operator.stop()
            except subprocess.TimeoutExpired:
                operator.process.kill()
                operator.process.wait()
                faults.append("the operator did not stop within 20 s")
        print(f"--- {operator.log.name}", operator.log.read_text(encoding="utf-8", errors="replace")[-20000:], sep="\n")
        faults += operator.faults()
    assert not faults, "unexpected errors in the operator's log:\n" + "\n".join(faults[:20])


@pytest.fixture
def operator(operators: Callable[..., OperatorProcess]) -> OperatorProcess:
    return operators().start().wait()


def job(name: str = "tiny", **spec: Any) -> dict[str, Any]:
    """A small valid job; ``spec`` takes the place of whole fields."""
    return {
        "apiVersion": "rlhf.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": name},
        "spec": {
            "rl": {
                "algorithm": "grpo",
                "rollout": {"promptsPerStep": 4, "samplesPerPrompt": 4, "maxNewTokens": 16},
                "reward": {"sources": [{"function": {"file": "reward.py"}}]},
            },
            "models": {"actor": {"path": "/models/tiny"}},
            "data": {"datasets": [{"path": "/models/data.jsonl"}]},
            "training": {"globalBatchSize": 16, "microBatchSize": 4},
            "placement": {"accelerator": "cpu", "actor": {"nodes": 1, "gpusPerNode": 1}, "rollout": {"engines": 1}},
            "checkpoint": {"volume": {"create": {"size": "1Gi", "accessModes": ["ReadWriteOnce"]}}},
            "cluster": {"files": {"configMap": "reward"}},
            **spec,
        },
    }


@pytest.fixture(autouse=True)
def reward(api: Api) -> None:
    api.create(config_map("reward", {"reward.py": "def reward(sample): return 1.0"}))


@pytest.fixture(autouse=True)
def volumes(admin: Api, namespace: str) -> Iterator[None]:
    """Nothing provisions volumes here: one lies ready for each checkpoint claim."""
    names = []
    for job_name in ("tiny", *(f"gone-{number}" for number in range(4))):
        names.append(f"{namespace}-{job_name}")
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "storageClassName": "",
            "hostPath": {"path": "/tmp"},
            "claimRef": {"namespace": namespace, "name": f"{job_name}-ckpt"},
        }
        admin.create({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": names[-1]}, "spec": spec})
    yield
    for name in names:
        admin.delete("PersistentVolume", name)
