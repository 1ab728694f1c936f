"""What the operator is told by its chart: one environment variable a field, mostly ``RLHF_<FIELD>``, read once at start."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

PREFIX = "RLHF_"
TOKEN_KEY_FILE = f"{PREFIX}TOKEN_KEY_FILE"
TOKEN_KEY_MIN_BYTES = 32
"""HMAC-SHA256 gains nothing from a longer key and loses with a shorter one."""


_PAIRS = "write a JSON object, or key=value separated by commas"
_RULES = {
    "bool_parsing": "true or false",
    "float_parsing": "a number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "string_pattern_mismatch": "three numbers with dots between them, as in 2.60.0",
    "string_type": _PAIRS,
}
"""Kind of a fault of pydantic -> the rule in words, where pydantic's own speak of its types."""
_QUOTED = re.compile(r"'([^']*)'")
_OF_A_SERVICE = re.compile(r"_SERVICE_(HOST|PORT)|_PORT(_\d+_(TCP|UDP|SCTP).*)?$")
"""Kubernetes gives pods such variables for each Service of their namespace."""


class SettingsError(Exception):
    """The operator cannot start with these variables; each line names one of them, its value and the rule."""


def _items(value: Any) -> Any:
    """``a, b`` -> (a, b); the empty text -> ()."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _pairs(value: Any) -> Any:
    """A JSON object, or ``key=value, …`` -> a mapping."""
    if not isinstance(value, str):
        return value
    if value.startswith("{"):
        try:
            return json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"{_PAIRS} ({error.msg} at character {error.pos})") from None
    pairs = [part.partition("=") for part in _items(value)]
    if any(not equals or not key.strip() for key, equals, _ in pairs):
        raise ValueError(_PAIRS)
    return {key.strip(): text.strip() for key, _, text in pairs}


Items = Annotated[tuple[str, ...], BeforeValidator(_items)]
Pairs = Annotated[dict[str, str], BeforeValidator(_pairs)]
Text = Annotated[str, Field(min_length=1)]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


@dataclass(frozen=True, config=ConfigDict(allow_inf_nan=False, use_attribute_docstrings=True))
class OperatorSettings:
    namespace: Text
    """Namespace of the operator's own pod: its Lease is there, and NetworkPolicies let this namespace in."""

    pod_name: Text
    """Name of the operator's own pod, its identity in the election."""

    default_image: Text
    """Trainer image of jobs that name none."""

    default_ray_version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
    """Version of Ray in that image."""

    token_key: Annotated[bytes, Field(min_length=TOKEN_KEY_MIN_BYTES)] = field(repr=False)
    """Key from which the Ray token of each job is derived: the content of the file that RLHF_TOKEN_KEY_FILE names."""

    release: Text = "rlhf-operator"
    """Full name of the chart's release: the Lease is called so, and Events name it."""

    operator_labels: Annotated[Pairs, Field(min_length=1)] = Field(default_factory=lambda: {"app.kubernetes.io/name": "rlhf-operator"})
    """Labels that select the operator's pods in a NetworkPolicy."""

    watch_scope: Literal["cluster", "namespaces", "release"] = "cluster"
    """Jobs of all namespaces, of those listed, or of the operator's own."""

    watch_namespaces: Items = ()
    """Namespaces whose jobs are run, separated by commas. Empty with scope cluster, filled with the others."""

    cluster_domain: Text = "cluster.local"
    """DNS domain of the cluster."""

    head_access: Literal["direct", "proxy"] = "direct"
    """How the operator reaches heads: their service, or the API server's service proxy."""

    head_url: str = ""
    """Address of heads for an operator that runs outside the cluster: `{namespace}` and `{service}` are filled in, and the Jobs API and
    /progress are looked for below it. Empty = as head_access says."""

    metrics_from: Pairs = Field(default_factory=dict)
    """Labels of the namespaces whose pods may read the metrics of jobs, in a NetworkPolicy. Empty = none."""

    head_disruption_budget: bool = False
    """Give each job a PodDisruptionBudget, so that a drain waits for its head; needs the right to."""

    ray_auth_options: bool = False
    """Whether the served RayCluster schema has `spec.authOptions.secretName` (KubeRay 1.6). Found at start, not from a variable."""

    kueue: bool = False
    """Read Kueue's Workloads for their messages; needs the right to."""

    workers: Annotated[int, Field(ge=1, le=64)] = 8
    """Jobs reconciled at once."""

    resync_seconds: Seconds = 300.0
    """Every job is looked at again after this time, whatever the watches said."""

    poll_seconds: Seconds = 10.0
    """Time between two looks at a head."""

    poll_concurrency: Annotated[int, Field(ge=1, le=1024)] = 32
    """Heads asked at once."""

    status_seconds: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """Least time between two writes of progress alone; phases and conditions are written at once."""

    http_timeout_seconds: Seconds = 5.0
    """Limit of connecting to a head, and of reading its answer."""

    leader_election: bool = True
    """Only the holder of the Lease acts. Needed with more than one replica."""

    lease_duration_seconds: Annotated[int, Field(ge=2, le=3600)] = 15
    """A Lease that was not renewed for this time is free."""

    lease_renew_seconds: Annotated[float, Field(gt=0, le=3600)] = 10.0
    """A leader that could not renew for this time stops."""

    lease_retry_seconds: Annotated[float, Field(gt=0, le=3600)] = 2.0
    """Time between two attempts to get or renew the Lease."""

    health_port: Port = 8080
    """Port of /livez and /readyz."""

    metrics_port: Port = 9090
    """Port of /metrics."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is logged."""

    log_format: Literal["json", "text"] = "json"
    """One JSON object a line, or text for people."""


_VARIABLES = {"namespace": "POD_NAMESPACE", "pod_name": "POD_NAME", "token_key": TOKEN_KEY_FILE}
_NOT_FROM_ENVIRONMENT = frozenset({"token_key", "ray_auth_options"})
_ADAPTER = TypeAdapter(OperatorSettings)


def variable(name: str) -> str:
    """Environment variable of the field ``name``."""
    return _VARIABLES.get(name, f"{PREFIX}{name.upper()}")


def from_environment(environment: Mapping[str, str]) -> OperatorSettings:
    """Settings from the variables of ``environment``; one that is absent or empty means the default.

    Reads the file that RLHF_TOKEN_KEY_FILE names. Raises SettingsError with every fault at once.
    """
    values: dict[str, Any] = {}
    for each in fields(OperatorSettings):
        text = environment.get(variable(each.name), "").strip()
        if text and each.name not in _NOT_FROM_ENVIRONMENT:
            values[each.name] = text
    faults: list[str] = []
    path = environment.get(TOKEN_KEY_FILE, "").strip()
    if path:
        try:
            values["token_key"] = Path(path).read_bytes().strip()
        except OSError as error:
            faults.append(f"{TOKEN_KEY_FILE}: {path!r}\n  Rule: the file can be read ({error.strerror}).")
            values["token_key"] = bytes(TOKEN_KEY_MIN_BYTES)
    try:
        settings = _ADAPTER.validate_python(values)
    except ValidationError as error:
        raise SettingsError("\n".join([*faults, *(_fault(details, environment) for details in error.errors())])) from None
    faults += _conflicts(settings)
    faults += _misspelt(environment)
    if faults:
        raise SettingsError("\n".join(faults))
    return settings


def _misspelt(environment: Mapping[str, str]) -> list[str]:
    """Variables that nothing reads and that are nearly called like one that is read."""
    known = [variable(each.name) for each in fields(OperatorSettings) if each.name != "ray_auth_options"]
    faults: list[str] = []
    for name in sorted(environment.keys() - set(known)):
        near = get_close_matches(name, known, n=1, cutoff=0.9) if name.startswith(PREFIX) and not _OF_A_SERVICE.search(name) else []
        if near:
            faults.append(f"{name}: {environment[name]!r}\n  Rule: the operator reads no such variable. Nearest: {near[0]}.")
    return faults


def _conflicts(settings: OperatorSettings) -> list[str]:
    """Values that are right alone and wrong together."""
    faults: list[str] = []
    if settings.health_port == settings.metrics_port:
        faults.append(
            f"{variable('metrics_port')}: {settings.metrics_port}\n"
            f"  Rule: another port than {variable('health_port')}. Nearest: {settings.metrics_port % 65_535 + 1}."
        )
    if settings.lease_renew_seconds >= settings.lease_duration_seconds:
        faults.append(
            f"{variable('lease_renew_seconds')}: {settings.lease_renew_seconds:g}\n"
            f"  Rule: shorter than {variable('lease_duration_seconds')} ({settings.lease_duration_seconds}), "
            "or two leaders act at once. Nearest: 10 of 15."
        )
    if (settings.watch_scope == "cluster") is bool(settings.watch_namespaces):
        faults.append(
            f"{variable('watch_namespaces')}: {', '.join(settings.watch_namespaces) or 'empty'}\n"
            f"  Rule: empty with {variable('watch_scope')} cluster, filled with namespaces and release ({settings.watch_scope})."
        )
    return faults


def _fault(details: Any, environment: Mapping[str, str]) -> str:
    name = variable(str(details["loc"][0]))
    if details["type"] in ("missing", "missing_argument"):
        return f"{name}\n  Rule: this variable is set; it has no default."
    if name == TOKEN_KEY_FILE:
        return f"{name}: {environment.get(name)!r}\n  Rule: the file holds at least {TOKEN_KEY_MIN_BYTES} bytes."
    rule = _RULES.get(details["type"]) or details["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    default = next((each.default for each in fields(OperatorSettings) if each.name == details["loc"][0]), None)
    if details["type"] == "literal_error":
        default = next(iter(get_close_matches(environment.get(name, "").lower(), _QUOTED.findall(rule), n=1)), default)
    text = str(default).lower() if isinstance(default, bool) else f"{default:g}" if isinstance(default, float) else default
    nearest = f" Nearest: {text}." if isinstance(text, str | int) and text != "" else ""
    return f"{name}: {environment.get(name)!r}\n  Rule: {rule}.{nearest}"
