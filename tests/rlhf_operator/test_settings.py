from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rlhf_operator.settings import OperatorSettings, SettingsError, from_environment, variable

KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The least that the operator starts with."""
    key = tmp_path / "token_key"
    key.write_text(f"{KEY}\n")
    return {
        "POD_NAMESPACE": "rlhf-system",
        "POD_NAME": "rlhf-operator-0",
        "RLHF_DEFAULT_IMAGE": "trainer:1",
        "RLHF_DEFAULT_RAY_VERSION": "2.60.0",
        "RLHF_TOKEN_KEY_FILE": str(key),
    }


def test_defaults(environment: dict[str, str]) -> None:
    settings = from_environment(environment)
    assert settings.token_key == KEY.encode()
    assert settings.operator_labels == {"app.kubernetes.io/name": "rlhf-operator"}
    assert (settings.watch_namespaces, settings.head_access, settings.ray_auth_options) == ((), "direct", False)


def test_empty_variables_mean_the_default(environment: dict[str, str]) -> None:
    found = from_environment({**environment, "RLHF_WORKERS": "", "RLHF_WATCH_NAMESPACES": " "})
    assert found == from_environment(environment)


@pytest.mark.parametrize(
    ("variables", "field", "expected"),
    [
        ({"RLHF_WORKERS": "16"}, "workers", 16),
        ({"RLHF_POLL_SECONDS": "2.5"}, "poll_seconds", 2.5),
        ({"RLHF_HEAD_ACCESS": "proxy"}, "head_access", "proxy"),
        ({"RLHF_KUEUE": "true"}, "kueue", True),
        ({"RLHF_LEADER_ELECTION": "false"}, "leader_election", False),
        ({"RLHF_WATCH_SCOPE": "namespaces", "RLHF_WATCH_NAMESPACES": "a, b"}, "watch_namespaces", ("a", "b")),
        (
            {"RLHF_METRICS_FROM": '{"kubernetes.io/metadata.name":"monitoring"}'},
            "metrics_from",
            {"kubernetes.io/metadata.name": "monitoring"},
        ),
        ({"RLHF_OPERATOR_LABELS": "app=x, part=y"}, "operator_labels", {"app": "x", "part": "y"}),
        ({"RLHF_RAY_AUTH_OPTIONS": "true"}, "ray_auth_options", False),
    ],
)
def test_values_from_variables(variables: dict[str, str], field: str, expected: object, environment: dict[str, str]) -> None:
    assert dataclasses.asdict(from_environment({**environment, **variables}))[field] == expected


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RLHF_WORKERS": "many"}, "RLHF_WORKERS: 'many'\n  Rule: a whole number. Nearest: 8."),
        ({"RLHF_KUEUE": "maybe"}, "RLHF_KUEUE: 'maybe'\n  Rule: true or false. Nearest: false."),
        ({"RLHF_LOG_LEVEL": "INFO"}, "'error'. Nearest: info."),
        ({"RLHF_OPERATOR_LABELS": '{"app":1}'}, "write a JSON object, or key=value"),
        ({"RLHF_POLL_SECOND": "5"}, "RLHF_POLL_SECOND: '5'\n  Rule: the operator reads no such variable. Nearest: RLHF_POLL_SECONDS."),
        ({"RLHF_HEALTH_PORT": "9090"}, "RLHF_METRICS_PORT: 9090\n  Rule: another port than RLHF_HEALTH_PORT. Nearest: 9091."),
        ({"RLHF_WORKERS": "0"}, "greater than or equal to 1"),
        ({"RLHF_HEAD_ACCESS": "tunnel"}, "RLHF_HEAD_ACCESS: 'tunnel'\n  Rule: 'direct' or 'proxy'"),
        ({"RLHF_DEFAULT_RAY_VERSION": "2.60"}, "RLHF_DEFAULT_RAY_VERSION: '2.60'"),
        ({"RLHF_DEFAULT_IMAGE": ""}, "RLHF_DEFAULT_IMAGE\n  Rule: this variable is set"),
        ({"POD_NAMESPACE": ""}, "POD_NAMESPACE\n"),
        ({"RLHF_TOKEN_KEY_FILE": ""}, "RLHF_TOKEN_KEY_FILE\n"),
        ({"RLHF_TOKEN_KEY_FILE": "/none"}, "RLHF_TOKEN_KEY_FILE: '/none'\n  Rule: the file can be read (No such file"),
        ({"RLHF_METRICS_FROM": "{broken"}, "RLHF_METRICS_FROM: '{broken'"),
        ({"RLHF_OPERATOR_LABELS": "novalue"}, "write a JSON object, or key=value"),
        ({"RLHF_POLL_SECONDS": "nan"}, "RLHF_POLL_SECONDS"),
        ({"RLHF_LEASE_RENEW_SECONDS": "15"}, "shorter than RLHF_LEASE_DURATION_SECONDS (15)"),
        ({"RLHF_WATCH_SCOPE": "release"}, "RLHF_WATCH_NAMESPACES: empty"),
        ({"RLHF_WATCH_NAMESPACES": "a"}, "RLHF_WATCH_NAMESPACES: a\n  Rule: empty with RLHF_WATCH_SCOPE cluster"),
    ],
)
def test_bad_values_name_their_variable(variables: dict[str, str], message: str, environment: dict[str, str]) -> None:
    with pytest.raises(SettingsError) as error:
        from_environment({**environment, **variables})
    assert message in str(error.value)


def test_variables_that_kubernetes_makes_of_services_are_left_alone(environment: dict[str, str]) -> None:
    made = {"RLHF_OPERATOR_SERVICE_HOST": "10.0.0.1", "RLHF_OPERATOR_PORT": "tcp://10.0.0.1:80", "RLHF_HEALTH_PORT_8080_TCP_PORT": "8080"}
    assert from_environment({**environment, **made}) == from_environment(environment)


def test_every_fault_is_told_at_once(environment: dict[str, str]) -> None:
    with pytest.raises(SettingsError) as error:
        from_environment({**environment, "RLHF_WORKERS": "x", "RLHF_HEALTH_PORT": "0", "RLHF_TOKEN_KEY_FILE": "/none"})
    assert all(name in str(error.value) for name in ("RLHF_WORKERS", "RLHF_HEALTH_PORT", "RLHF_TOKEN_KEY_FILE"))


def test_rc13_short_keys_are_refused_and_keys_are_never_shown(tmp_path: Path, environment: dict[str, str]) -> None:
    short = tmp_path / "short"
    short.write_text("hunter2")
    with pytest.raises(SettingsError, match="at least 32 bytes") as error:
        from_environment({**environment, "RLHF_TOKEN_KEY_FILE": str(short)})
    assert "hunter2" not in str(error.value)
    assert KEY not in repr(from_environment(environment))


def test_each_field_has_a_variable_of_its_own() -> None:
    variables = [variable(field.name) for field in dataclasses.fields(OperatorSettings)]
    assert len(variables) == len(set(variables))
