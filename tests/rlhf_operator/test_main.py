"""``python -m rlhf_operator`` as Kubernetes sees it: exit codes and log lines."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

from rlhf_operator.__main__ import JsonLines, PlainLines

ROOT = Path(__file__).parents[2]


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(str(ROOT / each) for each in ("operator", "crds"))
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "HOME": "/nonexistent", **environment}
    command = [sys.executable, "-m", "rlhf_operator"]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, cwd="/", check=False)


def test_missing_settings_are_all_named_and_the_exit_code_is_2():
    ended = run()
    assert ended.returncode == 2
    for name in ("POD_NAMESPACE", "POD_NAME", "RLHF_DEFAULT_IMAGE", "RLHF_TOKEN_KEY_FILE"):
        assert name in ended.stderr
    assert "Traceback" not in ended.stderr


def test_without_an_api_server_to_talk_to_it_says_where_it_looked(tmp_path: Path):
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    ended = run(
        POD_NAMESPACE="ns",
        POD_NAME="o",
        RLHF_DEFAULT_IMAGE="i",
        RLHF_DEFAULT_RAY_VERSION="2.60.0",
        RLHF_TOKEN_KEY_FILE=str(key),
        KUBECONFIG=str(tmp_path / "none"),
    )
    assert ended.returncode == 2
    line = json.loads(ended.stderr.splitlines()[-1])
    assert line["level"] == "critical"
    assert str(tmp_path / "none") in line["message"]


def test_a_log_line_is_one_json_object_with_what_was_given_beside_the_message():
    record = logging.makeLogRecord({"name": "x", "levelname": "INFO", "msg": "step %d\nof many", "args": (3,), "job": "ns/a", "at_step": 4})
    text = JsonLines().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert (line["message"], line["job"], line["at_step"], line["level"]) == ("step 3\nof many", "ns/a", 4, "info")
    assert PlainLines("%(message)s").format(record).endswith("job=ns/a at_step=4")


def test_a_traceback_stays_on_its_line():
    try:
        raise ValueError("no")
    except ValueError:
        record = logging.makeLogRecord({"msg": "failed", "levelname": "ERROR", "exc_info": sys.exc_info()})
    text = JsonLines().format(record)
    assert "\n" not in text
    assert "ValueError: no" in json.loads(text)["traceback"]
