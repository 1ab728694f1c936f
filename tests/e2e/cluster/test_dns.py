"""The cluster's DNS answers, from Services and EndpointSlices as the API server gives them."""

from typing import Any

import pytest
from dnslib import QTYPE, RCODE, DNSRecord

from e2e.cluster.addons.dns import Record, Zone, answer, build_zone


def service(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "team", "name": name}, "spec": spec}


def endpoint(address: str, ready: bool | None = True, **more: Any) -> dict[str, Any]:
    return {"addresses": [address], "conditions": {} if ready is None else {"ready": ready}, **more}


def slice_of(name: str, *endpoints: dict[str, Any]) -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": name}
    return {"metadata": {"namespace": "team", "name": f"{name}-abcde", "labels": labels}, "endpoints": list(endpoints)}


SERVICES = [
    service("web", clusterIP="10.96.0.7", clusterIPs=["10.96.0.7"]),
    service("head", clusterIP="None"),
    service("empty", clusterIP="None"),
    service("outside", type="ExternalName", externalName="web.team.svc.cluster.local"),
    service("six", clusterIP="None"),
]
SLICES = [
    slice_of("web", endpoint("10.244.0.9")),
    slice_of("head", endpoint("10.244.0.4"), endpoint("10.244.0.5", ready=False), endpoint("10.244.0.6", ready=None, hostname="worker-0")),
    slice_of("head", endpoint("10.244.0.3")),
    {"metadata": {"namespace": "team", "name": "empty-1", "labels": {"kubernetes.io/service-name": "empty"}}, "endpoints": None},
    slice_of("six", endpoint("fd00::1")),
]
ZONE = build_zone(SERVICES, SLICES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("web.team.svc.cluster.local", Record(("10.96.0.7",))),
        ("WEB.Team.svc.cluster.local.", Record(("10.96.0.7",))),
        ("head.team.svc.cluster.local", Record(("10.244.0.3", "10.244.0.4", "10.244.0.6"))),
        ("worker-0.head.team.svc.cluster.local", Record(("10.244.0.6",))),
        ("10-244-0-4.head.team.svc.cluster.local", Record(("10.244.0.4",))),
        ("empty.team.svc.cluster.local", Record()),
        ("team.svc.cluster.local", Record()),
        ("10-244-0-8.team.pod.cluster.local", Record(("10.244.0.8",))),
        ("head.other.svc.cluster.local", None),
        ("web.team", None),
        ("example.com", None),
    ],
)
def test_zone_finds_services_endpoints_and_pods(name: str, expected: Record | None) -> None:
    assert ZONE.find(name) == expected


def ask(name: str, kind: str, zone: Zone | None = ZONE) -> tuple[str, list[str]]:
    reply = answer(DNSRecord.parse(DNSRecord.question(name, kind).pack()), zone)
    reply = DNSRecord.parse(reply.pack())
    return RCODE[reply.header.rcode], [f"{QTYPE[record.rtype]} {record.rdata}" for record in reply.rr]


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("web.team.svc.cluster.local", "A", ("NOERROR", ["A 10.96.0.7"])),
        ("web.team.svc.cluster.local", "AAAA", ("NOERROR", [])),
        ("web.team.svc.cluster.local", "SRV", ("NOERROR", [])),
        ("six.team.svc.cluster.local", "AAAA", ("NOERROR", ["AAAA fd00::1"])),
        ("six.team.svc.cluster.local", "A", ("NOERROR", [])),
        ("outside.team.svc.cluster.local", "A", ("NOERROR", ["CNAME web.team.svc.cluster.local.", "A 10.96.0.7"])),
        ("missing.team.svc.cluster.local", "A", ("NXDOMAIN", [])),
        ("missing.team.svc.cluster.local", "AAAA", ("NXDOMAIN", [])),
    ],
)
def test_answers(name: str, kind: str, expected: tuple[str, list[str]]) -> None:
    assert ask(name, kind) == expected


def test_asker_is_told_to_try_again_until_services_are_known() -> None:
    assert ask("web.team.svc.cluster.local", "A", zone=None) == ("SERVFAIL", [])
