"""From ``kubectl apply`` to a trained model, with the files that the repository ships."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Any

import pytest

from e2e.kit.api import Api
from e2e.kit.budgets import Budgets
from e2e.kit.jobs import Jobs, rows
from e2e.kit.operator import RESTRICTED_LABELS, Release
from e2e.kit.waiting import eventually


def seconds_between(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()


@pytest.mark.parametrize(
    ("example", "algorithm", "steps"),
    [("grpo.yaml", "grpo", 60), pytest.param("ppo.yaml", "ppo", None, marks=pytest.mark.level(1))],
)
def test_an_example_is_applied_trains_and_leaves_a_model(
    example: str, algorithm: str, steps: int | None, admin: Api, api: Api, jobs: Jobs, limits: Budgets
) -> None:
    # Pods of a job need nothing that the strictest level of Pod Security refuses.
    admin.patch("Namespace", api.namespace, {"metadata": {"labels": RESTRICTED_LABELS}})
    with jobs.watched() as watch:
        began = time.monotonic()
        job = jobs.start(example)
        eventually("all pods to be ready", job.pods_ready, seconds=limits.pods_ready, every=0.5, api=api)
        ready = time.monotonic() - began
        running = job.reaches("Running", seconds=limits.first_step)
        started = time.monotonic() - began
        job.trains_past(0, limits.first_step)
        first = time.monotonic() - began
        print(f"{example}: apply to pods ready {ready:.1f} s, to Running {started:.1f} s, to the first step {first:.1f} s")
        assert first <= limits.first_step
        assert (running["algorithm"], running["attempt"]) == (algorithm, 1)
        final = job.reaches("Succeeded", seconds=limits.run)
        print(f"{example}: apply to Succeeded {time.monotonic() - began:.1f} s")
        eventually("its end to be shown", lambda: re.search(rf"Succeeded +{algorithm} ", watch.read_text()), seconds=10)

    shown = [row for row in rows(watch.read_text()) if row.name == job.name]
    print(watch.read_text())
    assert len({row.step for row in shown}) >= 3, "the steps are seen as they are made"
    assert [row.step for row in shown] == sorted(row.step for row in shown)
    assert shown[-1].reward > shown[0].reward + 0.2
    assert {row.attempt for row in shown} == {1}
    assert final["progress"]["step"] == final["progress"]["totalSteps"]
    assert steps in (None, final["progress"]["step"])
    assert final.get("failures", []) == []
    assert {found["type"]: found["status"] for found in final["conditions"]}["Complete"] == "True"
    created = (api.get("RLHFJob", job.name) or {})["metadata"]["creationTimestamp"]
    print(f"{example}: status says apply to first step {seconds_between(created, final['firstStepAt']):.0f} s")

    eventually("its pods to be gone", lambda: not job.pods(), seconds=limits.released, every=0.5, api=api)
    folder = job.folder("load")
    assert folder.loaded is not None
    print(f"{example}: transformers loads {folder.loaded}")
    assert folder.loaded["parameters"] > 100_000
    assert folder.loaded["tokens"] == 8
    assert [row["step"] for row in folder.metrics][-1] == final["progress"]["step"]
    rewards = folder.series("rollout/reward_mean")
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2, "it learned"


def test_what_kubectl_shows_can_be_read(api: Api, jobs: Jobs, limits: Budgets) -> None:
    job = jobs.start(spec={"rl": {"reward": {"sources": [{"function": {"file": "reward.py", "name": "no_such_function"}}]}}})
    status = job.reaches("Failed", seconds=limits.first_step)
    failure: dict[str, Any] = status["failures"][0]
    assert failure["class"] in ("User", "Config")
    assert "no_such_function" in failure["message"]
    assert "reward_func" in failure["message"], "the nearest that would work"
    described = jobs.clients.kubectl("describe", "rlhfjob", job.name, namespace=api.namespace)
    assert "no_such_function" in described
    assert re.search(r"Warning\s+" + failure["reason"], described), "its Event is there"
    listed = jobs.clients.kubectl("get", "rlhfjobs", "-o", "wide", namespace=api.namespace)
    assert listed.splitlines()[0].split() == [
        "NAME", "PHASE", "ALGORITHM", "STEP", "REWARD", "KL", "ATTEMPT", "GPUS", "AGE", "TOK/S", "ETA", "CHECKPOINT", "REASON",
    ]  # fmt: skip
    assert failure["reason"] in listed.splitlines()[1]


def test_operator_runs_in_a_restricted_namespace_and_helm_test_passes(operator: Release, clients: Any) -> None:
    assert (operator.admin.get("Namespace", operator.namespace) or {})["metadata"]["labels"].items() >= RESTRICTED_LABELS.items()
    assert "Succeeded" in clients.helm("test", operator.name, namespace=operator.namespace)
