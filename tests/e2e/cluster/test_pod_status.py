"""What the pod marker makes of pods, rules and annotations."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest

from e2e.cluster.addons.pod_status import (
    MARK,
    OUTCOMES,
    READY,
    Behaviour,
    addresses,
    from_annotations,
    mark_of,
    next_status,
    parse,
    parse_rules,
)

NOW = "2026-01-02T03:04:05Z"
LATER = "2026-01-02T03:04:06Z"


def pod(restart_policy: str = "Never", containers: tuple[str, ...] = ("main",), **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"restartPolicy": restart_policy, "containers": [{"name": name, "image": f"image/{name}"} for name in containers]},
        "status": {"phase": "Pending"} | status,
    }


def after(given: dict[str, Any], behaviour: Behaviour, now: str = NOW) -> dict[str, Any]:
    """The pod with the change made to it."""
    change = next_status(given, behaviour, "10.244.1.1", now)
    assert change is not None
    return given | {"status": given["status"] | change}


def condition(given: dict[str, Any], kind: str) -> str | None:
    return next((item["status"] for item in given["status"]["conditions"] if item["type"] == kind), None)


@dataclass(frozen=True)
class Case:
    outcome: str
    phase: str
    ready: str | None = "False"
    restart_policy: str = "Never"
    state: dict[str, str] = field(default_factory=dict)
    """Kind of the container's state → its reason."""
    last: str | None = None
    restarts: int = 0

    def __str__(self) -> str:
        return f"{self.outcome}-{self.restart_policy}"


CASES = [
    Case("ready", "Running", "True", state={"running": ""}),
    Case("not-ready", "Running", state={"running": ""}),
    Case("pending", "Pending", state={"waiting": "ContainerCreating"}),
    Case("image-pull-backoff", "Pending", state={"waiting": "ImagePullBackOff"}),
    Case("crash-loop", "Running", state={"waiting": "CrashLoopBackOff"}, last="Error", restarts=1),
    Case("failed", "Failed", state={"terminated": "Error"}),
    Case("failed", "Running", "True", "Always", state={"running": ""}, last="Error", restarts=1),
    Case("failed", "Running", "True", "OnFailure", state={"running": ""}, last="Error", restarts=1),
    Case("oom-killed", "Failed", state={"terminated": "OOMKilled"}),
    Case("oom-killed", "Running", "True", "Always", state={"running": ""}, last="OOMKilled", restarts=1),
    Case("evicted", "Failed", restart_policy="Always", state={"terminated": "Error"}),
    Case("succeeded", "Succeeded", state={"terminated": "Completed"}),
    Case("succeeded", "Succeeded", restart_policy="OnFailure", state={"terminated": "Completed"}),
    Case("succeeded", "Running", "True", "Always", state={"running": ""}, last="Completed", restarts=1),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_outcome_is_told_as_a_kubelet_would(case: Case) -> None:
    marked = after(pod(case.restart_policy), Behaviour(case.outcome))
    status = marked["status"]["containerStatuses"][0]
    assert marked["status"]["phase"] == case.phase
    assert condition(marked, "Ready") == case.ready
    assert {kind: value.get("reason", "") for kind, value in status["state"].items()} == case.state
    assert status.get("lastState", {}).get("terminated", {}).get("reason") == case.last
    assert status["restartCount"] == case.restarts


def test_every_outcome_can_happen_to_a_new_pod() -> None:
    assert [outcome for outcome in OUTCOMES if next_status(pod(), Behaviour(outcome), "10.244.1.1", NOW) is None] == []


def test_a_pod_that_fits_nowhere_gets_no_address_and_no_containers() -> None:
    marked = after(pod(), Behaviour("unschedulable"))
    assert condition(marked, "PodScheduled") == "False"
    assert {"podIP", "containerStatuses"}.isdisjoint(marked["status"])


@pytest.mark.parametrize("outcome", ["failed", "succeeded", "evicted"])
def test_a_pod_that_has_ended_never_changes(outcome: str) -> None:
    marked = after(pod(), Behaviour(outcome))
    assert [other for other in OUTCOMES if next_status(marked, Behaviour(other), "10.244.1.1", LATER)] == []


def test_a_running_pod_is_not_put_back_before_its_start() -> None:
    running = after(pod(), READY)
    for outcome in ("pending", "unschedulable", "image-pull-backoff"):
        assert next_status(running, Behaviour(outcome), "10.244.1.1", LATER) is None


def test_an_image_that_becomes_pullable_lets_the_pod_run() -> None:
    waiting = after(pod(), Behaviour("image-pull-backoff"))
    running = after(waiting, READY, LATER)
    assert running["status"]["phase"] == "Running"
    assert running["status"]["containerStatuses"][0]["restartCount"] == 0


def test_restarts_are_counted_and_the_last_end_is_kept() -> None:
    given = after(pod("Always"), READY)
    given = after(given, Behaviour("oom-killed"))
    given = after(given, Behaviour("failed", exit_code=3), LATER)
    given = after(given, Behaviour("not-ready"), LATER)
    status = given["status"]["containerStatuses"][0]
    assert status["restartCount"] == 2
    assert status["lastState"]["terminated"]["exitCode"] == 3


def test_one_container_of_two_ends_and_the_pod_runs_on_unready() -> None:
    marked = after(pod(containers=("main", "sidecar")), Behaviour("oom-killed", container="sidecar"))
    states = {status["name"]: next(iter(status["state"])) for status in marked["status"]["containerStatuses"]}
    assert states == {"main": "running", "sidecar": "terminated"}
    assert (marked["status"]["phase"], condition(marked, "Ready")) == ("Running", "False")


def test_init_containers_are_completed_and_sidecars_run() -> None:
    given = pod()
    given["spec"]["initContainers"] = [{"name": "wait", "image": "i"}, {"name": "proxy", "image": "i", "restartPolicy": "Always"}]
    statuses = after(given, READY)["status"]["initContainerStatuses"]
    assert [(status["name"], next(iter(status["state"]))) for status in statuses] == [("wait", "terminated"), ("proxy", "running")]


def test_what_was_done_can_be_read_from_the_status() -> None:
    behaviour = Behaviour("oom-killed", again="2")
    assert mark_of(pod()) is None
    assert mark_of(after(pod("Always"), behaviour)) == behaviour.signature
    assert condition(after(pod("Always"), behaviour), MARK) == "True"


def test_the_same_again_is_another_happening() -> None:
    assert Behaviour("oom-killed").signature != Behaviour("oom-killed", again="2").signature
    assert Behaviour("oom-killed").signature == Behaviour("oom-killed", after_seconds=3).signature


def test_annotations_have_dashes_and_rules_camel_case() -> None:
    given = pod()
    assert from_annotations(given) is None
    given["metadata"]["annotations"] = {"e2e.rlhf.dev/outcome": "failed", "e2e.rlhf.dev/exit-code": "7", "other/key": "x"}
    assert from_annotations(given) == Behaviour("failed", exit_code=7)
    rules = parse_rules("[{selector: {ray.io/group: a}, count: 1, outcome: evicted, afterSeconds: 2, holdDeletion: true}]")
    assert rules[0].behaviour == Behaviour("evicted", after_seconds=2.0, hold_deletion=True)
    assert rules[0].count == 1


def test_a_rule_needs_all_its_labels() -> None:
    (rule,) = parse_rules("[{selector: {a: '1', b: '2'}, outcome: failed}]")
    given = pod()
    given["metadata"]["labels"] = {"a": "1"}
    assert not rule.matches(given)
    given["metadata"]["labels"] = {"a": "1", "b": "2", "c": "3"}
    assert rule.matches(given)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"outcome": "exploded"}, "outcome: 'exploded'; possible are ready, not-ready"),
        ({"outcom": "ready"}, "outcom: no such field; there are outcome"),
        ({"exit-code": "many"}, "exit-code: 'many' is no number"),
    ],
)
def test_a_wrong_field_is_named_with_what_is_possible(fields: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(fields)


def test_addresses_in_use_are_left_out() -> None:
    assert list(islice(addresses(["10.244.1.2"]), 3)) == ["10.244.1.1", "10.244.1.3", "10.244.1.4"]
    assert len(set(islice(addresses([]), 600))) == 600
