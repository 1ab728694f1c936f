"""What a head or a driver says that it should not: told in the status, and never believed."""

from __future__ import annotations

import json

from e2e.kit.api import Api
from e2e.kit.waiting import eventually
from tests.integration.operator.asking import reaches, status
from tests.integration.operator.conftest import OperatorProcess, job
from tests.integration.operator.standin import StandIn

UNREADABLE = {
    "refused": ((401, "unauthorized"), "401 unauthorized"),
    "html": ((200, "<html>"), "not JSON"),
    "huge": ((200, '{{}, "step": 1%s}' % ("0" * 400)), "step: "),
    "large": ((200, '{{}, "step": 1%s}' % ("0" * 18)), "step: "),
    "other": ((200, '{{}, "jobUid": "another"}'), "of job another"),
}


def test_a_report_that_cannot_be_read_is_told_and_the_next_one_is_believed(
    api: Api, namespace: str, operator: OperatorProcess, standin: StandIn
):
    for name, (answer, _) in UNREADABLE.items():
        head = standin.head(namespace, name)
        head.hold, head.step_seconds, head.progress_says = True, 5.0, answer
        api.create(job(name))
    for name, (_, words) in UNREADABLE.items():
        eventually(f"{name} to be told", lambda name=name: status(api, name).get("reason") == "ProgressUnreadable", seconds=60, every=0.2)
        now = status(api, name)
        assert words in now["message"], name
        assert now["phase"] == "Running"
        assert "lastStep" not in now["run"], name
    for name in UNREADABLE:
        standin.head(namespace, name).progress_says = None
    for name in UNREADABLE:
        eventually(f"{name} to be read", lambda name=name: status(api, name).get("reason") == "Training", seconds=40, every=0.2)
        eventually(
            f"a step of {name}", lambda name=name: (status(api, name).get("progress") or {}).get("step", 0) > 0, seconds=40, every=0.2
        )
        assert status(api, name)["run"]["lastStep"] < 100
        assert not status(api, name).get("failures")
    assert operator.metric("rlhf_operator_reconcile_errors_total") == 0


def test_rc13_secrets_of_a_log_reach_neither_status_nor_events_and_no_exit_code_holds_it_up(
    api: Api, namespace: str, operator: OperatorProcess, standin: StandIn
):
    head = standin.head(namespace, "tiny")
    head.hold = True
    head.log = "Traceback\nError: hf_abcdefghijklmnopqrstuvwxyz0123456 https://user:pass@host/x AKIAIOSFODNN7EXAMPLE\u202e\x1b[31m\x07"
    api.create(job("tiny", lifecycle={"backoffLimit": 0}))
    reaches(api, "Running")
    head.end("tiny-a1", "FAILED", 10**23, "JOB_ENTRYPOINT_COMMAND_ERROR")
    final = reaches(api, "Failed", seconds=40)
    assert "Error: *** https://***@host/x ***" in final["message"]
    assert "exitCode" not in final["failures"][-1]
    said = json.dumps([final, [each.get("message") for each in api.list("Event")]], ensure_ascii=False)
    for part in ("hf_abc", "user:pass", "AKIA", "\u202e", "\\u001b", "\\u0007"):
        assert part not in said


def test_a_head_that_refuses_the_token_names_the_secret(api: Api, namespace: str, operator: OperatorProcess, standin: StandIn):
    head = standin.head(namespace, "tiny")
    head.hold, head.status_code = True, 401
    api.create(job())
    eventually("the refusal to be told", lambda: status(api).get("reason") == "TokenRefused", seconds=60, every=0.2)
    assert f"kubectl -n {namespace} delete secret/tiny-ray-token raycluster/tiny" in status(api)["message"]
    head.status_code = 0
    reaches(api, "Running")
