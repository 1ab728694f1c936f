import json
import re
import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rlhf_api.progress import MESSAGE_MAX, CommittedCheckpoint, Failure, Progress, Updates
from rlhf_trainer.errors import ConfigError
from rlhf_trainer.telemetry import progress_server
from rlhf_trainer.telemetry.phases import Phases
from rlhf_trainer.telemetry.progress_server import ProgressServer, nearest_free_port

TOKEN = "t0ken-of-this-job"
PROGRESS = Progress(
    job_uid="uid-1",
    step=140,
    total_steps=500,
    attempt=2,
    metrics={"rollout/reward_mean": 0.612, "reward/a.py": 0.5, "actor/loss": None},
    checkpoint=CommittedCheckpoint(step=120, path="/ckpt/ns/job/step-000120", committed_at="2026-01-02T03:04:05Z"),
    updates=Updates(planned=500, done=140),
    eta=7860.0,
    counts={"prompts_filtered": 3},
)


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def phases(clock):
    return Phases(clock=clock)


@pytest.fixture
def server(phases):
    server = ProgressServer(TOKEN, phases, PROGRESS, progress_port=0, metrics_port=0, heartbeat_limit_seconds=60)
    yield server, server.start()
    server.stop()


def get(port: int, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("header", ["Authorization", "X-Ray-Authorization"])
def test_progress_needs_the_token(server, header):
    _, ports = server
    status, body = get(ports.progress, "/progress", {header: f"Bearer {TOKEN}"})
    assert status == 200
    read = Progress.model_validate_json(body)
    assert read.step == 140
    assert read.checkpoint.step == 120
    assert read.metrics["actor/loss"] is None
    assert json.loads(body)["checkpoint"]["committedAt"] == "2026-01-02T03:04:05Z"
    assert json.loads(body)["totalSteps"] == 500


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer"}, {"Authorization": "Basic é"}])
def test_progress_without_the_token_is_401(server, headers):
    _, ports = server
    headers = {name: value.encode().decode("latin-1") for name, value in headers.items()}
    status, body = get(ports.progress, "/progress", headers)
    assert status == 401
    assert "140" not in body


def test_unknown_path_tells_nothing_without_the_token(server):
    _, ports = server
    assert get(ports.progress, "/other")[0] == 401
    assert get(ports.progress, "/other", {"Authorization": f"Bearer {TOKEN}"})[0] == 404
    assert get(ports.metrics, "/progress")[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_it_is_read_only(server, method):
    _, ports = server
    assert get(ports.progress, "/progress", {"Authorization": f"Bearer {TOKEN}"}, method)[0] == 405


def test_stage_and_heartbeat_are_those_of_the_moment(server, phases, clock):
    _, ports = server
    with phases("rollout"):
        clock.now += 12.5
        read = json.loads(get(ports.progress, "/progress", {"Authorization": f"Bearer {TOKEN}"})[1])
    assert read["stage"] == "rollout"
    assert read["heartbeatAgeSeconds"] == 12.5


def test_updates_are_published(server):
    running, ports = server
    running.update(PROGRESS.model_copy(update={"step": 141}))
    assert json.loads(get(ports.progress, "/progress", {"Authorization": f"Bearer {TOKEN}"})[1])["step"] == 141


def test_health_fails_when_the_heart_stopped(server, phases, clock):
    _, ports = server
    assert get(ports.metrics, "/healthz")[0] == 200
    clock.now += 61
    status, body = get(ports.metrics, "/healthz")
    assert status == 503
    assert "heartbeat 61 s old, limit 60 s" in body
    phases.beat()
    assert get(ports.metrics, "/healthz")[0] == 200


def test_metrics_are_prometheus_gauges(server):
    _, ports = server
    status, body = get(ports.metrics, "/metrics")
    assert status == 200
    values = {family.name: family.samples[0].value for family in text_string_to_metric_families(body)}
    assert values["rlhf_rollout_reward_mean"] == 0.612
    assert values["rlhf_reward_a_py"] == 0.5
    assert values["rlhf_step"] == 140
    assert values["rlhf_checkpoint_step"] == 120
    assert values["rlhf_count_prompts_filtered"] == 3
    assert values["rlhf_eta_seconds"] == 7860
    assert "rlhf_actor_loss" not in values
    assert 'rlhf_stage{stage="starting"} 1.0' in body
    assert all(name.startswith("rlhf_") for name in values)


def taken_port() -> socket.socket:
    busy = socket.socket()
    busy.bind(("127.0.0.1", 0))
    busy.listen()
    return busy


def test_explicit_port_in_use_names_it_and_the_nearest_free_one(phases):
    with taken_port() as busy:
        port = busy.getsockname()[1]
        with pytest.raises(ConfigError, match=f"metrics port {port} on 127.0.0.1 is in use") as caught:
            ProgressServer(TOKEN, phases, PROGRESS, progress_port=0, metrics_port=port).start()
    named = int(re.search(r"Nearest: (\d+) is free", str(caught.value))[1])
    assert named > port
    assert caught.value.exit_code == 2


def test_default_port_in_use_moves_on_with_a_notice(phases, monkeypatch, caplog):
    with taken_port() as busy:
        port = busy.getsockname()[1]
        monkeypatch.setattr(progress_server, "PROGRESS_PORT", port)
        server = ProgressServer(TOKEN, phases, PROGRESS, metrics_port=0)
        ports = server.start()
        server.stop()
    assert port < ports.progress < port + progress_server.PORT_SEARCH
    assert f"progress port {port} is in use, serving on {ports.progress}" in caplog.text


def test_nearest_free_port_can_be_bound():
    with taken_port() as busy, socket.socket() as other:
        other.bind(("127.0.0.1", nearest_free_port("127.0.0.1", busy.getsockname()[1])))


def test_open_progress_is_for_this_machine_only(phases):
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0 is reachable from outside and there is no token"):
        ProgressServer(None, phases, PROGRESS, host="0.0.0.0")
    server = ProgressServer(None, phases, PROGRESS, progress_port=0, metrics_port=0)
    assert get(server.start().progress, "/progress")[0] == 200
    server.stop()


def test_long_failure_is_cut_on_a_character_border():
    failure = Failure(exit_code=1, stage="update", message="é" * 10_000)
    assert len(failure.message) == MESSAGE_MAX
    assert failure.message.endswith("é…")


def test_progress_of_a_newer_trainer_can_be_read():
    assert Progress.model_validate_json('{"jobUid": "u", "novelty": 1}').job_uid == "u"
