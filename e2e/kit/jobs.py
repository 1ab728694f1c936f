"""RLHFJobs as a user handles them (kubectl and files), and what a test wants to know about them."""

from __future__ import annotations

import base64
import copy
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from e2e.kit.api import Api
from e2e.kit.clients import Clients
from e2e.kit.inspection import Folder, read_folder
from e2e.kit.waiting import eventually, pod_is_ready

EXAMPLES = Path(__file__).parents[2] / "examples" / "tiny"
CHILDREN = {"RayCluster": "", "ConfigMap": "-config", "Secret": "-ray-token", "PersistentVolumeClaim": "-ckpt", "NetworkPolicy": ""}
REWARD = "def reward_func(queries, prompts, labels):\n"
ENDED = ("Succeeded", "Failed")

Overrides = Mapping[str, Any]


def merged(base: Mapping[str, Any], changes: Overrides) -> dict[str, Any]:
    """``base`` with ``changes`` put in, map by map; None removes a key."""
    result = copy.deepcopy(dict(base))
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = copy.deepcopy(value)
    return result


def derived(example: str, spec: Overrides, step_seconds: float = 0.0) -> tuple[str, str]:
    """Name of the job in ``examples/tiny/<example>`` and the file's text with ``spec`` put into that of the job.

    ``step_seconds``: the reward function sleeps so long, so that a fault finds a job at work however fast the machine is.
    """
    documents = list(yaml.safe_load_all((EXAMPLES / example).read_text()))
    job = next(document for document in documents if document["kind"] == "RLHFJob")
    job["spec"] = merged(job["spec"], spec)
    if step_seconds:
        files = next(document for document in documents if document["kind"] == "ConfigMap")["data"]
        before, signature, body = files["reward.py"].partition(REWARD)
        assert signature, f"{example}: its reward.py has no {REWARD.strip()}"
        files["reward.py"] = f"{before}{signature}    import time\n\n    time.sleep({step_seconds})\n{body}"
    return str(job["metadata"]["name"]), yaml.safe_dump_all(documents, sort_keys=False)


@dataclass(frozen=True)
class Row:
    """One line of ``kubectl get rlhfjobs`` in which every column has a value."""

    name: str
    phase: str
    algorithm: str
    step: int
    reward: float
    kl: float
    attempt: int
    gpus: int


def rows(text: str) -> list[Row]:
    """The complete lines; those of a job that has made no step yet have empty columns and are left out."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) == 9 and words[3].isdigit() and re.fullmatch(r"-?[\d.]+(e-?\d+)?", words[4]):
            name, phase, algorithm, step, reward, kl, attempt, gpus, _age = words
            found.append(Row(name, phase, algorithm, int(step), float(reward), float(kl), int(attempt), int(gpus)))
    return found


@dataclass(frozen=True)
class Job:
    api: Api
    clients: Clients
    name: str
    image: str

    def status(self) -> dict[str, Any]:
        """Empty before the operator has seen the job, and when the job is gone."""
        return dict((self.api.get("RLHFJob", self.name) or {}).get("status") or {})

    @property
    def phase(self) -> str:
        return str(self.status().get("phase", ""))

    def condition(self, kind: str) -> dict[str, Any]:
        return next((dict(found) for found in self.status().get("conditions", []) if found["type"] == kind), {})

    def wait(self, what: str, probe: Callable[[dict[str, Any]], Any], seconds: float) -> dict[str, Any]:
        """The first status for which ``probe`` is true; an error at once when the job ends before. Waits out an API server that is away."""

        def look() -> dict[str, Any] | None:
            try:
                status = self.status()
            except (ApiException, HTTPError):
                return None
            if probe(status):
                return status
            assert status.get("phase") not in ENDED, f"{self.name} ended before it was seen {what}: {json.dumps(status, indent=1)}"
            return None

        return eventually(f"{self.name} {what}", look, seconds=seconds, every=0.5, api=self.api, last=self.brief)

    def reaches(self, *phases: str, seconds: float) -> dict[str, Any]:
        """The status once it has one of ``phases``; at once an error when the job ended in another way."""
        status = self.wait(f"to be {' or '.join(phases)}", lambda now: now.get("phase") in (*phases, *ENDED), seconds)
        assert status["phase"] in phases, f"{self.name} is {status['phase']}, not {' or '.join(phases)}: {json.dumps(status, indent=1)}"
        return status

    def brief(self) -> str:
        """The status without what is long."""
        try:
            status = self.status()
        except (ApiException, HTTPError) as error:
            return f"no answer: {error}"
        kept = ("phase", "reason", "message", "attempt", "progress", "checkpoint", "run", "failures")
        return json.dumps({key: status.get(key) for key in kept}, indent=1)

    def pods(self, node_type: str = "") -> list[dict[str, Any]]:
        """Pods of the job; ``node_type``: head or worker."""
        labels = f"rlhf.dev/job={self.name}" + (f",ray.io/node-type={node_type}" if node_type else "")
        return self.api.list("Pod", labels=labels)

    def pod(self, node_type: str) -> dict[str, Any]:
        """The only one of its kind that is not being deleted."""
        found = [pod for pod in self.pods(node_type) if not pod["metadata"].get("deletionTimestamp")]
        assert len(found) == 1, f"{self.name}: {len(found)} {node_type} pods"
        return found[0]

    def pods_ready(self, count: int = 2) -> bool:
        found = self.pods()
        return len(found) == count and all(pod_is_ready(pod) and not pod["metadata"].get("deletionTimestamp") for pod in found)

    def children(self) -> list[str]:
        return [kind for kind, suffix in CHILDREN.items() if self.api.get(kind, f"{self.name}{suffix}") is not None]

    def token(self) -> str:
        secret = self.api.get("Secret", f"{self.name}-ray-token") or {}
        return base64.b64decode(secret["data"]["auth_token"]).decode()

    def progress(self) -> dict[str, Any]:
        """What the trainer itself says now; empty when none answers. The status follows it by up to 40 seconds."""
        path = f"/api/v1/namespaces/{self.api.namespace}/services/{self.name}-head-svc:rlhf-progress/proxy/progress"
        try:
            code, text = self.api.http("GET", path, headers={"X-Ray-Authorization": f"Bearer {self.token()}"}, seconds=5)
        except (ApiException, HTTPError, KeyError):
            return {}
        return dict(json.loads(text)) if code == 200 else {}

    def submissions(self) -> list[str]:
        """Ids of what was ever handed to this Ray cluster; the dashboard must answer."""
        path = f"/api/v1/namespaces/{self.api.namespace}/services/{self.name}-head-svc:dashboard/proxy/api/jobs/"
        code, text = self.api.http("GET", path, headers={"X-Ray-Authorization": f"Bearer {self.token()}"}, seconds=15)
        assert code == 200, f"the dashboard of {self.name}: {code} {text[:300]}"
        return [job["submission_id"] for job in json.loads(text) if job["submission_id"]]

    def gone(self, seconds: float, *, kept: tuple[str, ...] = ()) -> float:
        """Waits until nothing of it is left but children that are ``kept``; returns the seconds it took."""
        began = time.monotonic()
        eventually(f"{self.name} to be gone", lambda: self.api.get("RLHFJob", self.name) is None, seconds=seconds, every=0.1, api=self.api)
        eventually(
            f"what {self.name} owned to be gone", lambda: not self.pods() and self.children() == list(kept), seconds=seconds, every=0.5,
            api=self.api, last=self.children,
        )  # fmt: skip
        return time.monotonic() - began

    def trains_past(self, step: int, seconds: float) -> dict[str, Any]:
        """The trainer's report once it has made more than ``step`` steps; at once an error when the job ended before."""

        def look() -> dict[str, Any] | None:
            report = self.progress()
            if report.get("step", 0) > step:
                return report
            assert self.phase not in ENDED, f"{self.name} ended before step {step + 1}: {self.brief()}"
            return None

        return eventually(f"{self.name} to train past step {step}", look, seconds=seconds, every=0.5, api=self.api, last=self.brief)

    def suspend(self, value: bool) -> None:
        self.clients.kubectl(
            "patch", "rlhfjob", self.name, "--type", "merge", "-p", json.dumps({"spec": {"suspend": value}}), namespace=self.api.namespace
        )

    def execute(self, pod: str, script: str, *arguments: str) -> str:
        """Runs Python in the Ray container of a pod."""
        command = ("exec", pod, "-c", "ray", "--", "python", "-c", script, *arguments)
        return self.clients.kubectl(*command, namespace=self.api.namespace)

    def folder(self, *options: str) -> Folder:
        """What lies on the job's volume, read by a pod that mounts it."""
        return read_folder(self.api, self.image, f"{self.name}-ckpt", self.name, *options)


@dataclass
class Jobs:
    """Applies manifests in one namespace and waits at the end until their pods are gone."""

    api: Api
    clients: Clients
    image: str
    scratch: Path

    def apply(self, path: Path) -> str:
        return self.clients.kubectl("apply", "-f", path, namespace=self.api.namespace)

    def start(self, example: str = "grpo.yaml", spec: Overrides | None = None, step_seconds: float = 0.0) -> Job:
        """``kubectl apply`` of examples/tiny/``example``, the very file where nothing is to be changed; arguments as of `derived`."""
        name, text = derived(example, spec or {}, step_seconds)
        path = EXAMPLES / example
        if spec or step_seconds:
            path = self.scratch / example
            path.write_text(text)
        self.apply(path)
        return Job(self.api, self.clients, name, self.image)

    @contextmanager
    def watched(self) -> Iterator[Path]:
        """The output of ``kubectl get rlhfjobs -w`` over the length of a `with` block."""
        path = self.scratch / "watch.txt"
        with path.open("wb") as output:
            process = self.clients.follow("get", "rlhfjobs", "-w", namespace=self.api.namespace, output=output)
            try:
                yield path
            finally:
                process.terminate()
                process.wait(10)

    def close(self, seconds: float) -> None:
        """No pod of this namespace may take processor time from the next test."""
        for job in self.api.list("RLHFJob"):
            self.api.delete("RLHFJob", job["metadata"]["name"])
        deadline = time.monotonic() + seconds
        while self.api.list("Pod") and time.monotonic() < deadline:
            time.sleep(0.5)
        for pod in self.api.list("Pod"):
            self.api.delete("Pod", pod["metadata"]["name"], grace_seconds=0)
