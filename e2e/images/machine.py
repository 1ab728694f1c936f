"""What a build takes over from the machine it runs on: index, proxy, CA and uv's cache. Only the build sees it; the image keeps nothing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

CERTIFICATES = Path("/etc/ssl/certs")
UV_CACHE_INSIDE = "/mnt/uv-cache"

# Settings that hold in a container as well; those that name a file hold where the file lies below CERTIFICATES, which is mounted.
VALUES = frozenset(
    {
        *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT", "PIP_RETRIES"),
        *("UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_STRATEGY", "UV_TORCH_BACKEND"),
        *("UV_INSECURE_HOST", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS", "UV_HTTP_TIMEOUT"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy"),
    }
)
PATHS = frozenset({"SSL_CERT_FILE", "SSL_CERT_DIR", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"})


@dataclass(frozen=True)
class MachineSettings:
    """`variables` for the build's commands, `volumes` as folder on the machine → folder in the build, with `:ro` where it is read only."""

    variables: Mapping[str, str] = field(default_factory=dict)
    volumes: Mapping[str, str] = field(default_factory=dict)

    def as_shell(self) -> str:
        """Lines that a shell can read."""
        return "".join(f"{name}={shlex.quote(value)}\n" for name, value in sorted(self.variables.items()))


def settings_of(environment: Mapping[str, str], uv_cache: Path | None) -> MachineSettings:
    """The part of an environment that a build needs. `uv_cache`: uv's cache folder on this machine, if there is one."""
    variables = {name: value for name, value in environment.items() if name in VALUES and value}
    paths = {
        name: value
        for name, value in environment.items()
        if name in PATHS and (Path(value) == CERTIFICATES or CERTIFICATES in Path(value).parents)
    }
    volumes = {}
    if paths:
        volumes[str(CERTIFICATES)] = f"{CERTIFICATES}:ro"
    if uv_cache is not None:
        variables["UV_CACHE_DIR"] = UV_CACHE_INSIDE
        volumes[str(uv_cache)] = UV_CACHE_INSIDE
    return MachineSettings(variables | paths, volumes)
