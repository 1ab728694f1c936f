"""What a job left on its volume: weights, metrics, and the driver's log that tells which attempt did what when."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from e2e.kit import objects
from e2e.kit.api import Api
from e2e.kit.waiting import eventually

SCRIPT = Path(__file__).parents[1] / "jobs" / "read_folder.py"
MOUNT = "/checkpoints"
READ_SECONDS = 240.0


@dataclass(frozen=True)
class Event:
    """One line of the driver's log."""

    time: str
    """RFC 3339, UTC, so that texts compare as times do."""
    attempt: int
    event: str
    step: int | None = None


@dataclass(frozen=True)
class Folder:
    weights: str | None
    """SHA-256 over all tensors of the final model; None without one."""
    metrics: Sequence[Mapping[str, Any]]
    events: Sequence[Event]
    claim: Mapping[str, Any]
    checkpoints: Sequence[str]
    loaded: Mapping[str, Any] | None
    """What transformers made of the final model, when it was asked to load it."""

    def series(self, key: str) -> list[float]:
        return [row[key] for row in self.metrics if row.get(key) is not None]

    def steps(self, attempt: int) -> list[int]:
        """Steps that the attempt finished, in order; lost ones too, which metrics.jsonl does not show any more."""
        return [event.step for event in self.events if event.attempt == attempt and event.event == "step" and event.step]

    @property
    def attempts(self) -> list[int]:
        """Attempts that trained, in the order of the log's lines, one entry wherever the number changes."""
        found: list[int] = []
        for event in self.events:
            if not found or found[-1] != event.attempt:
                found.append(event.attempt)
        return found


def overlaps(folder: Folder) -> list[str]:
    """Signs that two attempts were alive at once: lines between each other's, or times that overlap."""
    order = folder.attempts
    found = [f"the log goes from attempt {before} to {after}" for before, after in pairwise(order) if after <= before]
    for before, after in pairwise(order):
        last = max(event.time for event in folder.events if event.attempt == before)
        first = min(event.time for event in folder.events if event.attempt == after)
        if first <= last:
            found.append(f"attempt {after} wrote at {first}, attempt {before} still at {last}")
    return found


def repeated(folder: Folder) -> int:
    """Steps that were made more than once, over all attempts."""
    made = [step for attempt in dict.fromkeys(folder.attempts) for step in folder.steps(attempt)]
    return len(made) - len(set(made))


def parse(text: str) -> Folder:
    """From what ``read_folder.py`` prints as its last line."""
    given = json.loads(text.strip().splitlines()[-1])
    events = [Event(line["time"], line["attempt"], line["event"], line.get("step")) for line in given["events"]]
    return Folder(given["weights"], given["metrics"], events, given["claim"] or {}, given["checkpoints"], given["loaded"])


def read_folder(api: Api, image: str, claim: str, job: str, *options: str) -> Folder:
    """Runs a pod of the trainer image on ``claim``; ``options``: ``load``. AssertionError with its log when it fails."""
    name = f"read-{job}"
    command = ["python", "-c", SCRIPT.read_text(), f"{MOUNT}/{api.namespace}/{job}", *options]
    volume = {"name": "checkpoints", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    container = {
        "volumeMounts": [{"name": "checkpoints", "mountPath": MOUNT, "readOnly": True}],
        "env": [{"name": "HOME", "value": "/tmp"}],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
    }
    api.create(objects.pod(name, image, command, volumes=[volume], restartPolicy="Never", container=container))
    try:

        def ended() -> str:
            phase = ((api.get("Pod", name) or {}).get("status") or {}).get("phase", "")
            return phase if phase in ("Succeeded", "Failed") else ""

        phase = eventually(f"pod {name} to end", ended, seconds=READ_SECONDS, every=0.5, api=api)
        log = str(api.core.read_namespaced_pod_log(name, api.namespace))
        assert phase == "Succeeded", f"pod {name} failed:\n{log[-5000:]}"
        return parse(log)
    finally:
        api.delete("Pod", name, grace_seconds=0)
