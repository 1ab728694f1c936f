"""Answers the cluster's names from Services and EndpointSlices: `python -m e2e.cluster.addons.dns --kubeconfig FILE --listen ADDRESS`.

Names as in the Kubernetes DNS specification: Services (address or endpoints), their endpoints' host names, external names, and pods by
address. Nothing outside the cluster can be reached from pods, so every other name is answered at once as missing.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from dnslib import AAAA, CNAME, QTYPE, RCODE, RR, A, DNSError, DNSRecord

from e2e.cluster.addons.watching import Api, Copy, Object
from e2e.cluster.network import CLUSTER_DOMAIN

# Endpoints of a restarted pod must be seen soon, and the answer comes from the same machine.
TTL_SECONDS = 1
# Without EDNS a UDP answer may not be longer (RFC 1035); the asker then repeats by TCP.
UDP_LIMIT_BYTES = 512
_POD_NAME = re.compile(rf"(\d+-\d+-\d+-\d+)\.[^.]+\.pod\.{re.escape(CLUSTER_DOMAIN)}")


@dataclass(frozen=True)
class Record:
    """What one name stands for: IPv4 or IPv6 addresses, or another name."""

    addresses: tuple[str, ...] = ()
    alias: str | None = None


@dataclass(frozen=True)
class Zone:
    """Every name of the cluster, in lower case and without the last dot."""

    records: dict[str, Record] = field(default_factory=dict)
    parents: frozenset[str] = frozenset()

    def find(self, name: str) -> Record | None:
        """The record of a name; an empty one when only names below it exist; None when there is no such name."""
        name = name.lower().rstrip(".")
        if name in self.records:
            return self.records[name]
        if pod := _POD_NAME.fullmatch(name):
            return Record((pod[1].replace("-", "."),))
        return Record() if name in self.parents else None


def build_zone(services: Iterable[Object], slices: Iterable[Object]) -> Zone:
    """The names of these Services and EndpointSlices.

    An endpoint counts when its `ready` condition is not false: the control plane sets it for Services that publish not-ready addresses too.
    """
    endpoints: dict[tuple[str, str], list[Object]] = {}
    for piece in slices:
        service = piece["metadata"].get("labels", {}).get("kubernetes.io/service-name")
        ready = [point for point in piece.get("endpoints") or [] if point.get("conditions", {}).get("ready") is not False]
        endpoints.setdefault((piece["metadata"]["namespace"], service), []).extend(ready)
    records: dict[str, Record] = {}
    for service in services:
        namespace, name, spec = service["metadata"]["namespace"], service["metadata"]["name"], service["spec"]
        full = f"{name}.{namespace}.svc.{CLUSTER_DOMAIN}"
        points = endpoints.get((namespace, name), [])
        if spec.get("type") == "ExternalName":
            records[full] = Record(alias=spec["externalName"])
        elif spec.get("clusterIP") == "None":
            records[full] = Record(_unique(address for point in points for address in point["addresses"]))
            for point in points:
                host = point.get("hostname") or point["addresses"][0].replace(".", "-").replace(":", "-")
                earlier = records.get(f"{host}.{full}", Record()).addresses
                records[f"{host}.{full}"] = Record(_unique((*earlier, *point["addresses"])))
        else:
            records[full] = Record(tuple(spec.get("clusterIPs") or [spec["clusterIP"]] if spec.get("clusterIP") else ()))
    parents = {CLUSTER_DOMAIN, f"svc.{CLUSTER_DOMAIN}", f"pod.{CLUSTER_DOMAIN}"}
    for name in records:
        labels = name.split(".")
        parents.update(".".join(labels[start:]) for start in range(1, len(labels)))
    return Zone(records, frozenset(parents))


def _unique(addresses: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(addresses)))


def answer(request: DNSRecord, zone: Zone | None) -> DNSRecord:
    """The reply. While the zone is not known yet (None) the asker is told to try again, which is not the same as a missing name.

    A name that exists without an address of the wanted family gets an empty reply: a resolver takes "no such name" for both families.
    """
    reply = request.reply()
    reply.header.ra = 1
    question = request.q
    if zone is None:
        reply.header.rcode = RCODE.SERVFAIL
        return reply
    record = zone.find(str(question.qname))
    if record is None:
        reply.header.rcode = RCODE.NXDOMAIN
        return reply
    owner = question.qname
    if record.alias is not None:
        reply.add_answer(RR(owner, QTYPE.CNAME, rdata=CNAME(record.alias), ttl=TTL_SECONDS))
        owner, record = record.alias, zone.find(record.alias) or Record()
    for address in record.addresses:
        six = ipaddress.ip_address(address).version == 6
        if question.qtype == (QTYPE.AAAA if six else QTYPE.A):
            kind = QTYPE.AAAA if six else QTYPE.A
            reply.add_answer(RR(owner, kind, rdata=AAAA(address) if six else A(address), ttl=TTL_SECONDS))
    return reply


class Server(asyncio.DatagramProtocol):
    """Serves `zone` by UDP (as an asyncio protocol) and by TCP (`serve_stream`)."""

    zone: Zone | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # asyncio's own datagram transport is no subclass of DatagramTransport on Python 3.11.
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        packed = self._reply(data)
        if packed is None:
            return
        if len(packed) > UDP_LIMIT_BYTES:
            packed = DNSRecord.parse(packed).truncate().pack()
        self.transport.sendto(packed, address)

    def _reply(self, data: bytes) -> bytes | None:
        try:
            request = DNSRecord.parse(data)
        except DNSError as error:
            print(f"a message that is no DNS request: {error}", flush=True)
            return None
        packed: bytes = answer(request, self.zone).pack()
        return packed

    async def serve_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One TCP connection: each message is preceded by its length in two bytes."""
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(2))
                packed = self._reply(await reader.readexactly(length))
                if packed is None:
                    break
                writer.write(len(packed).to_bytes(2) + packed)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def serve(kubeconfig: Path, address: str, port: int) -> None:
    """Runs for ever."""
    server = Server()
    async with Api(kubeconfig) as api:

        def rebuild() -> None:
            if services.complete and slices.complete:
                server.zone = build_zone(services.objects.values(), slices.objects.values())

        services = Copy(api, "/api/v1/services", rebuild)
        slices = Copy(api, "/apis/discovery.k8s.io/v1/endpointslices", rebuild)
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: server, (address, port))
        await asyncio.start_server(server.serve_stream, address, port)
        print(f"answering on {address}:{port}", flush=True)
        await asyncio.gather(services.follow(), slices.follow())


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--listen", required=True, help="IP address to answer on, by UDP and TCP")
    parser.add_argument("--port", type=int, default=53)
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.kubeconfig, arguments.listen, arguments.port))


if __name__ == "__main__":
    main()
