"""The first process of a cluster's namespaces: readies them, then starts, stops and reaps the cluster's processes.

It is the sandbox's PID 1, so when it ends for whatever reason the kernel kills every other process in there and drops the
mounts, interfaces and firewall rules with them. It therefore keeps no state worth saving and never tries to outlive a fault.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from e2e.cluster.parts import Part, PartState, python_part, socket_address

NODE_NAME = "node1"
NODE_ADDRESS = "10.200.0.1"
NODE_BRIDGE = "node0"
RELAY = "relay"

# What the kubelet writes at its start and would change for the whole machine. A plain file over each keeps the writes in here.
SHIELDED_SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


def _command(*argv: str) -> None:
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)


def prepare_namespaces() -> None:
    """Private /run and /dev/shm, shielded sysctls, host name, loopback, and a bridge with the node's address and the default route."""
    # Every later mount in here may be shared among our own containers; nothing of it reaches the machine (the namespace was made private).
    _command("mount", "--make-rshared", "/")
    _command("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    _command("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")
    Path("/run/lock").mkdir(mode=0o1777)
    for sysctl in SHIELDED_SYSCTLS:
        target = Path("/proc/sys", sysctl)
        shield = Path("/run/shields", sysctl)
        shield.parent.mkdir(parents=True, exist_ok=True)
        shield.write_bytes(target.read_bytes())
        _command("mount", "--bind", str(shield), str(target))
    socket.sethostname(NODE_NAME)
    _command("ip", "link", "set", "lo", "up")
    _command("ip", "link", "add", NODE_BRIDGE, "type", "bridge")
    _command("ip", "addr", "add", f"{NODE_ADDRESS}/24", "dev", NODE_BRIDGE)
    _command("ip", "link", "set", NODE_BRIDGE, "up")
    _command("ip", "route", "add", "default", "dev", NODE_BRIDGE)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


@dataclass
class _Running:
    """A part's process. `ended` is set when it was reaped."""

    part: Part
    pid: int
    started_at: float
    num_starts: int
    ended: asyncio.Event
    exit_status: int | None = None
    paused: bool = False

    def signal(self, number: signal.Signals) -> None:
        """To the part's whole process group: some parts fork."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class Supervisor:
    """Owns the parts; every public coroutine `op_NAME` answers the request NAME."""

    def __init__(self, folder: Path, base_environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = base_environment
        self.parts: dict[str, _Running] = {}
        self.tied = True
        self.finished = asyncio.Event()

    def reap(self) -> None:
        """Collects every ended child, ours or adopted, without waiting."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for running in self.parts.values():
                if running.pid == pid and running.exit_status is None:
                    running.exit_status = os.waitstatus_to_exitcode(status)
                    running.ended.set()

    def start(self, part: Part) -> PartState:
        """Starts a part; refuses one that runs already."""
        previous = self.parts.get(part.name)
        if previous is not None and previous.exit_status is None:
            raise ValueError(f"part {part.name!r} runs already, pid {previous.pid}: stop it first")
        with (self.folder / "logs" / f"{part.name}.log").open("ab") as log:
            process = subprocess.Popen(
                part.argv,
                env=self.environment | dict(part.env),
                cwd=part.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=part.inherit,
            )
        # Reaping is ours (waitpid of any child); Popen must not try it a second time.
        process.returncode = 0
        num_starts = previous.num_starts + 1 if previous else 1
        self.parts[part.name] = _Running(part, process.pid, time.time(), num_starts, asyncio.Event())
        return self.state(self.parts[part.name])

    def state(self, running: _Running) -> PartState:
        """The part as told to clients."""
        alive = running.exit_status is None
        resident, cpu = _usage(running.pid) if alive else (0, 0.0)
        return PartState(
            name=running.part.name,
            pid=running.pid,
            running=alive,
            paused=running.paused,
            exit_status=running.exit_status,
            num_starts=running.num_starts,
            started_at=running.started_at,
            resident_bytes=resident,
            cpu_seconds=cpu,
        )

    def _find(self, name: str) -> _Running:
        if name not in self.parts:
            raise ValueError(f"no part {name!r}; there are: {', '.join(self.parts) or 'none'}")
        return self.parts[name]

    async def op_start(self, part: dict[str, Any]) -> dict[str, Any]:
        return vars(self.start(Part.from_wire(part)))

    async def op_restart(self, name: str) -> dict[str, Any]:
        return vars(self.start(self._find(name).part))

    async def op_stop(self, name: str, grace_seconds: float | None = None) -> dict[str, Any]:
        """SIGTERM, and SIGKILL after the grace."""
        running = self._find(name)
        if running.exit_status is None:
            running.signal(signal.SIGTERM)
            running.signal(signal.SIGCONT)
            grace = running.part.stop_grace_seconds if grace_seconds is None else grace_seconds
            try:
                await asyncio.wait_for(running.ended.wait(), grace)
            except TimeoutError:
                running.signal(signal.SIGKILL)
                await running.ended.wait()
        return vars(self.state(running))

    async def op_kill(self, name: str) -> dict[str, Any]:
        running = self._find(name)
        if running.exit_status is None:
            running.signal(signal.SIGKILL)
            await running.ended.wait()
        return vars(self.state(running))

    async def op_pause(self, name: str) -> dict[str, Any]:
        running = self._find(name)
        running.signal(signal.SIGSTOP)
        running.paused = True
        return vars(self.state(running))

    async def op_resume(self, name: str) -> dict[str, Any]:
        running = self._find(name)
        running.signal(signal.SIGCONT)
        running.paused = False
        return vars(self.state(running))

    async def op_parts(self) -> list[dict[str, Any]]:
        return [vars(self.state(running)) for running in self.parts.values()]

    async def op_probe(self, host: str, port: int, path: str, timeout_seconds: float) -> int | None:
        """The status of an HTTP GET made in here; None without an answer."""
        with contextlib.suppress(OSError, TimeoutError, IndexError, ValueError):
            async with asyncio.timeout(timeout_seconds):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
                    return int((await reader.readline()).split()[1])
                finally:
                    writer.close()
        return None

    async def op_untie(self) -> bool:
        """From now on the sandbox outlives the process that started it."""
        self.tied = False
        return True

    async def op_shutdown(self) -> bool:
        asyncio.get_running_loop().call_later(0.05, self.finished.set)
        return True

    def owner_gone(self) -> None:
        """The starter's end of the leash closed: it died, or it has untied us."""
        if self.tied:
            print("the process that started this sandbox is gone before it was complete: ending", flush=True)
            self.finished.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of one connection."""
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                writer.write(json.dumps(await self.answer(line)).encode() + b"\n")
                await writer.drain()
        writer.close()

    async def answer(self, line: bytes) -> dict[str, Any]:
        """The answer to one request; a bad request is answered, never raised: this process must live."""
        try:
            message = json.loads(line)
            operation = getattr(self, f"op_{message.pop('op')}")
            return {"result": await operation(**message)}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}


def _usage(pid: int) -> tuple[int, float]:
    """Resident bytes and CPU seconds of one process; zeros when it has just ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, 0.0
    return int(fields[21]) * os.sysconf("SC_PAGE_SIZE"), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def supervise(folder: Path, leash: int, relay: int) -> None:
    """Runs until told to end, or until the starter dies before it has untied the sandbox."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    supervisor = Supervisor(folder, os.environ | {"TMPDIR": str(temporary), "HOSTNAME": NODE_NAME})
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCHLD, supervisor.reap)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.finished.set)

    def leash_closed() -> None:
        loop.remove_reader(leash)
        supervisor.owner_gone()

    loop.add_reader(leash, leash_closed)
    arguments = ("--listen-descriptor", str(relay), "--to", f"{NODE_ADDRESS}:6443")
    supervisor.start(replace(python_part(RELAY, "e2e.cluster.relay", *arguments), inherit=(relay,)))
    with socket_address(folder) as address:
        server = await asyncio.start_unix_server(supervisor.serve, address)
    async with server:
        await supervisor.finished.wait()


def main() -> None:
    """Entry point inside the new namespaces; see `e2e.cluster.sandbox` for the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--leash", type=int, required=True)
    parser.add_argument("--relay", type=int, required=True)
    arguments = parser.parse_args()
    prepare_namespaces()
    asyncio.run(supervise(arguments.folder, arguments.leash, arguments.relay))
    # Straight to the kernel: it ends whatever still runs in here.
    os._exit(0)


if __name__ == "__main__":
    main()
