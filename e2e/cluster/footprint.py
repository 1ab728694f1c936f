"""What a cluster could leave on the machine, as a value that can be taken before and after and compared."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

from e2e.cluster.init import SHIELDED_SYSCTLS
from e2e.cluster.sandbox import CGROUP_ROOT, cgroup_name

_LISTENING = "0A"


@dataclass(frozen=True)
class Footprint:
    """Each field is a set of lines for people.

    Mounts, interfaces, firewall rules and sysctls are the whole machine's; processes, namespaces, sockets and cgroups those of one
    cluster, because other work on the machine goes on meanwhile.
    """

    processes: frozenset[str]
    namespaces: frozenset[str]
    mounts: frozenset[str]
    interfaces: frozenset[str]
    firewall: frozenset[str]
    cgroups: frozenset[str]
    sockets: frozenset[str]
    sysctls: frozenset[str]


def snapshot(cluster: str) -> Footprint:
    """What there is now. Needs root: it looks into every process."""
    own = set(_processes_of(cluster))
    foreign_inodes = {inode for pid in _pids() if pid not in own for inode in _socket_inodes(pid)}
    return Footprint(
        processes=frozenset(f"{pid} {_command_line(pid)}" for pid in own),
        namespaces=frozenset(_own_namespaces(own)),
        mounts=frozenset(_mounts()),
        interfaces=frozenset(os.listdir("/sys/class/net")),
        firewall=frozenset(_firewall()),
        cgroups=frozenset(map(str, CGROUP_ROOT.glob(f"*/{cgroup_name(cluster)}"))),
        sockets=frozenset(line for inode, line in _listening() if inode not in foreign_inodes),
        sysctls=frozenset(f"{name} = {Path('/proc/sys', name).read_text().strip()}" for name in SHIELDED_SYSCTLS),
    )


def difference(before: Footprint, after: Footprint) -> list[str]:
    """One line for everything that is new or gone; empty when nothing is."""
    lines = []
    for field in fields(Footprint):
        old, new = getattr(before, field.name), getattr(after, field.name)
        lines += [f"{field.name}: new: {line}" for line in sorted(new - old)]
        lines += [f"{field.name}: gone: {line}" for line in sorted(old - new)]
    return lines


def settled_difference(before: Footprint, take: Callable[[], Footprint], limit_seconds: float = 5.0) -> list[str]:
    """The difference once it is empty, or after the limit: the kernel drops a dead namespace's interfaces a moment later."""
    end = time.monotonic() + limit_seconds
    while (lines := difference(before, take())) and time.monotonic() < end:
        time.sleep(0.1)
    return lines


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _processes_of(cluster: str) -> Iterator[int]:
    """Processes that carry the cluster's run folder in their arguments or environment, and all that live in their pid namespaces."""
    mark = f"/clusters/{cluster}/".encode()
    namespaces, me = {}, os.readlink("/proc/self/ns/pid")
    marked = set()
    for pid in _pids():
        with suppress(OSError):
            namespaces[pid] = os.readlink(f"/proc/{pid}/ns/pid")
            content = Path(f"/proc/{pid}/cmdline").read_bytes() + b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
            if mark in content.replace(b"\0", b"/\0") and pid != os.getpid():
                marked.add(pid)
    inside = {namespaces[pid] for pid in marked} - {me}
    return iter(pid for pid, namespace in namespaces.items() if pid in marked or namespace in inside)


def _command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return "(ended)"


def _own_namespaces(pids: set[int]) -> Iterator[str]:
    host = {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")}
    for pid in pids:
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/ns"):
                link = os.readlink(f"/proc/{pid}/ns/{name}")
                if link != host.get(name):
                    yield link


def _mounts() -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4]
        # An image build mounts for itself, perhaps just now.
        if "/buildah" not in point:
            yield f"{point} {line.partition(' - ')[2]}"
    netns = Path("/run/netns")
    if netns.exists():
        yield from (f"netns {name}" for name in os.listdir(netns))


def _firewall() -> Iterator[str]:
    for tool in ("iptables-save", "ip6tables-save"):
        if path := shutil.which(tool, path="/usr/sbin:/sbin:/usr/bin:/bin"):
            output = subprocess.run([path], capture_output=True, text=True, check=False).stdout
            yield from (f"{tool}: {line}" for line in output.splitlines() if line.startswith("-A"))


def _listening() -> Iterator[tuple[str, str]]:
    """Inode and address of every listening TCP socket of this network namespace."""
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == _LISTENING:
                yield columns[9], f"{table} port {int(columns[1].rpartition(':')[2], 16)}"


def _socket_inodes(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                link = os.readlink(f"/proc/{pid}/fd/{name}")
                if link.startswith("socket:["):
                    yield link[8:-1]
