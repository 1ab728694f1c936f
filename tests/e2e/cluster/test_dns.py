"""The cluster's DNS answers, from Services and EndpointSlices as the API server gives them."""

import asyncio
from typing import Any

import pytest
from dnslib import QTYPE, RCODE, DNSRecord

from e2e.cluster.addons.dns import Record, Server, Zone, answer, build_zone


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


async def ask_server(zone: Zone, name: str) -> tuple[DNSRecord, DNSRecord]:
    """The server's replies by UDP and by TCP, after it got a message that is no request."""
    server = Server()
    server.zone = zone
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: server, ("127.0.0.1", 0))
    stream = await asyncio.start_server(server.serve_stream, "127.0.0.1", 0)
    request = DNSRecord.question(name)

    def send(port: int, tcp: bool) -> DNSRecord:
        return DNSRecord.parse(request.send("127.0.0.1", port, tcp=tcp, timeout=5))

    async with stream:
        udp_port, tcp_port = transport.get_extra_info("sockname")[1], stream.sockets[0].getsockname()[1]
        server.datagram_received(b"no request", ("127.0.0.1", 1))
        replies = await asyncio.to_thread(send, udp_port, False), await asyncio.to_thread(send, tcp_port, True)
    transport.close()
    return replies


@pytest.mark.parametrize(("num_pods", "fits"), [(3, True), (60, False)])
def test_an_answer_too_long_for_udp_is_given_by_tcp(num_pods: int, fits: bool) -> None:
    pods = [endpoint(f"10.244.0.{number}") for number in range(1, num_pods + 1)]
    zone = build_zone([service("workers", clusterIP="None")], [slice_of("workers", *pods)])
    udp, tcp = asyncio.run(ask_server(zone, "workers.team.svc.cluster.local"))
    assert (len(udp.rr), bool(udp.header.tc)) == ((num_pods, False) if fits else (0, True))
    assert (len(tcp.rr), bool(tcp.header.tc)) == (num_pods, False)
