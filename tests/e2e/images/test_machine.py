"""A build sees the machine's index, proxy and CA, and nothing else of its environment."""

import subprocess
from pathlib import Path

import pytest

from e2e.images.machine import settings_of

CERTIFICATES = {"/etc/ssl/certs": "/etc/ssl/certs:ro"}


@pytest.mark.parametrize(
    ("environment", "variables", "volumes"),
    [
        ({}, {}, {}),
        ({"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "s", "PIP_FIND_LINKS": "/opt/wheels"}, {}, {}),
        ({"UV_INDEX_URL": "https://u:p@host/simple", "http_proxy": ""}, {"UV_INDEX_URL": "https://u:p@host/simple"}, {}),
        ({"SSL_CERT_FILE": "/etc/ssl/certs/own.crt"}, {"SSL_CERT_FILE": "/etc/ssl/certs/own.crt"}, CERTIFICATES),
        ({"SSL_CERT_DIR": "/etc/ssl/certs"}, {"SSL_CERT_DIR": "/etc/ssl/certs"}, CERTIFICATES),
        ({"SSL_CERT_FILE": "/home/me/own.crt"}, {}, {}),
    ],
    ids=["empty", "unrelated", "index", "certificate file", "certificate folder", "certificate elsewhere"],
)
def test_only_settings_that_hold_in_a_container_are_taken(
    environment: dict[str, str], variables: dict[str, str], volumes: dict[str, str]
) -> None:
    settings = settings_of(environment, uv_cache=None)
    assert (dict(settings.variables), dict(settings.volumes)) == (variables, volumes)


def test_uv_in_the_build_uses_the_cache_of_the_machine() -> None:
    settings = settings_of({}, Path("/home/me/.cache/uv"))
    assert settings.variables["UV_CACHE_DIR"] == settings.volumes["/home/me/.cache/uv"]


def test_a_shell_reads_the_values_back_unchanged() -> None:
    value = "https://user:it's $HOME `id`@host/simple"
    script = settings_of({"PIP_INDEX_URL": value}, None).as_shell() + 'printf %s "$PIP_INDEX_URL"'
    assert subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout == value
