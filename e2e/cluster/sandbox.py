"""One tree of Linux namespaces per cluster, seen from the machine: start it, run commands in it, end it, and remove what a crash left.

The supervisor inside (`e2e.cluster.init`) is PID 1 of the tree. When it dies, by whatever signal, the kernel ends every process
of the tree and with them its mounts, interfaces and firewall rules; only files and empty cgroup folders are left, which
`remove_leftovers` takes away.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from e2e.cluster.parts import REPOSITORY, Part, PartState, SupervisorError, request, socket_address

CGROUP_ROOT = Path("/sys/fs/cgroup")
START_LIMIT_SECONDS = 20.0
END_LIMIT_SECONDS = 20.0
UNSHARE = (
    *("unshare", "--pid", "--fork", "--kill-child", "--mount", "--net", "--uts", "--ipc"),
    *("--mount-proc", "--propagation", "private"),
)


class SandboxError(RuntimeError):
    """The sandbox could not be made, or is gone."""


@dataclass(frozen=True)
class Identity:
    """A process, told apart from a later one with its pid by the boot and the start time in clock ticks since that boot."""

    pid: int
    start_ticks: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Identity:
        """The identity of a living process; raises ProcessLookupError when there is none."""
        fields = _stat(pid)
        if fields is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, int(fields[19]), _boot())

    @property
    def alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        fields = _stat(self.pid)
        return fields is not None and fields[0] not in "ZX" and int(fields[19]) == self.start_ticks and self.boot == _boot()


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third (the state) on; the second, the command, may hold blanks and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def cgroup_name(name: str) -> str:
    """The folder of this cluster in every cgroup hierarchy."""
    return f"rlhf-e2e-{name}"


def remove_cgroups(name: str, limit_seconds: float = 5.0) -> None:
    """Removes the cluster's cgroup folders in every hierarchy, depth first; a process that is just ending may hold one for a moment."""
    end = time.monotonic() + limit_seconds
    # In each hierarchy of version 1, or in the one of version 2.
    for top in (*CGROUP_ROOT.glob(f"*/{cgroup_name(name)}"), CGROUP_ROOT / cgroup_name(name)):
        for folder, _, _ in os.walk(top, topdown=False):
            while True:
                try:
                    os.rmdir(folder)
                except FileNotFoundError:
                    break
                except OSError as error:
                    if time.monotonic() > end:
                        raise SandboxError(f"cgroup {folder} still holds processes after {limit_seconds:.0f} s: {error}") from error
                    time.sleep(0.05)
                else:
                    break


def remove_leftovers(name: str, folder: Path, keep_logs: bool = False) -> None:
    """Ends a sandbox that still runs under this name and removes its files and cgroup folders; nothing to do is fine."""
    recorded = Sandbox.recorded(name, folder)
    if recorded is not None:
        recorded.end()
    remove_cgroups(name)
    if not folder.exists():
        return
    for path in folder.iterdir():
        if keep_logs and path.name == "logs":
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def log_tail(path: Path, num_lines: int = 8) -> str:
    """The last lines of a log, indented, for an error message."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return "  (no log)"
    return "\n".join(f"  {line[:400]}" for line in lines[-num_lines:]) or "  (empty log)"


@dataclass
class Sandbox:
    """A running sandbox. `port` is where its API server is reached on 127.0.0.1 of the machine."""

    name: str
    folder: Path
    init: Identity
    port: int
    leash: int | None = None
    unshare: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, name: str, folder: Path, hold: Sequence[int] = ()) -> Sandbox:
        """Makes the namespaces and waits until the supervisor answers; needs root.

        Until `untie` is called the sandbox ends with this process, so that a killed start leaves nothing running. The supervisor
        keeps the descriptors in `hold` open for as long as the sandbox lives. Leftovers of an earlier sandbox must have been removed.
        """
        if os.geteuid() != 0:
            raise SandboxError(f"user id {os.geteuid()}: making namespaces and mounts needs root. Run as root, or with sudo.")
        logs = folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        leash_read, leash_write = os.pipe()
        with socket.socket() as listener:
            # Bound here, in the machine's network namespace, and served from inside.
            listener.bind(("127.0.0.1", 0))
            listener.listen(256)
            port: int = listener.getsockname()[1]
            with (logs / "init.log").open("ab") as log:
                unshare = subprocess.Popen(
                    [
                        *UNSHARE,
                        *(sys.executable, "-m", "e2e.cluster.init"),
                        *("--folder", str(folder), "--leash", str(leash_read), "--relay", str(listener.fileno())),
                    ],
                    cwd=REPOSITORY,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=(leash_read, listener.fileno(), *hold),
                )
        os.close(leash_read)
        try:
            init = _await_supervisor(folder, unshare)
        except BaseException:
            os.close(leash_write)
            unshare.kill()
            unshare.wait()
            raise
        sandbox = cls(name, folder, init, port, leash_write, unshare)
        (folder / "sandbox.json").write_text(json.dumps({"init": asdict(init), "port": port}))
        return sandbox

    @classmethod
    def recorded(cls, name: str, folder: Path) -> Sandbox | None:
        """The sandbox the run folder tells of, if it still runs."""
        try:
            record = json.loads((folder / "sandbox.json").read_text())
            init = Identity(**record["init"])
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return cls(name, folder, init, record["port"]) if init.alive else None

    @property
    def alive(self) -> bool:
        """Whether the supervisor still runs."""
        return self.init.alive

    def untie(self) -> None:
        """Lets the sandbox outlive this process."""
        self._request(op="untie")
        if self.leash is not None:
            os.close(self.leash)
            self.leash = None

    def end(self) -> None:
        """Ends the supervisor, and so every process inside, at once; returns when the kernel has ended them all. Stop the parts first."""
        if self.init.alive:
            os.kill(self.init.pid, 9)
        limit = time.monotonic() + END_LIMIT_SECONDS
        while self.init.alive:
            if time.monotonic() > limit:
                raise SandboxError(f"sandbox {self.name}: pid {self.init.pid} is still there {END_LIMIT_SECONDS:.0f} s after SIGKILL")
            time.sleep(0.01)
        if self.unshare is not None:
            self.unshare.wait(END_LIMIT_SECONDS)
        if self.leash is not None:
            os.close(self.leash)
            self.leash = None

    def enter(self, argv: Sequence[str], cwd: str | Path = "/") -> list[str]:
        """The command line that runs `argv` inside; raises SandboxError when the sandbox is gone: its pid may be another's by now."""
        if not self.alive:
            raise SandboxError(f"sandbox {self.name}: its first process {self.init.pid} is gone; start it again")
        namespaces = ("--mount", "--net", "--ipc", "--uts", "--pid")
        return ["nsenter", "--target", str(self.init.pid), *namespaces, f"--wdns={cwd}", "--", *argv]

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float = 60.0,
        check: bool = True,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = "/",
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command inside and returns its outputs; raises SandboxError when it fails (if `check`) or takes too long."""
        with self.popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.PIPE if input is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                stdout, stderr = process.communicate(input.encode() if input is not None else None, timeout_seconds)
            except subprocess.TimeoutExpired as error:
                os.killpg(process.pid, 9)
                raise SandboxError(f"sandbox {self.name}: {' '.join(argv)}: not done after {timeout_seconds:.0f} s") from error
        result = subprocess.CompletedProcess(argv, process.returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace"))
        if check and result.returncode != 0:
            raise SandboxError(f"sandbox {self.name}: {' '.join(argv)}: exit {result.returncode}\n{result.stdout}{result.stderr}".rstrip())
        return result

    def popen(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = "/",
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        start_new_session: bool = True,
    ) -> subprocess.Popen[bytes]:
        """Starts a command inside. It ends with the sandbox; to end it earlier kill its process group, not only the process."""
        return subprocess.Popen(
            self.enter(argv, cwd),
            env=os.environ | dict(env or {}),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=start_new_session,
        )

    def start_part(self, part: Part) -> PartState:
        """Starts a long-running process; refused while one of that name runs."""
        return PartState(**self._request(op="start", part=part.to_wire()))

    def restart_part(self, name: str) -> PartState:
        """Starts a part that has ended again, as it was."""
        return PartState(**self._request(op="restart", name=name))

    def stop_part(self, name: str, grace_seconds: float | None = None) -> PartState:
        """SIGTERM, then SIGKILL after the grace (None: the part's own); returns when it has ended."""
        return PartState(**self._request(op="stop", name=name, grace_seconds=grace_seconds))

    def kill_part(self, name: str) -> PartState:
        """SIGKILL; returns when it has ended."""
        return PartState(**self._request(op="kill", name=name))

    def pause_part(self, name: str) -> PartState:
        """SIGSTOP: the part stays but does not answer."""
        return PartState(**self._request(op="pause", name=name))

    def resume_part(self, name: str) -> PartState:
        """SIGCONT."""
        return PartState(**self._request(op="resume", name=name))

    def parts(self) -> list[PartState]:
        """Every part ever started, in order of its first start."""
        return [PartState(**state) for state in self._request(op="parts")]

    def part(self, name: str) -> PartState | None:
        """One part, if it was ever started."""
        return next((state for state in self.parts() if state.name == name), None)

    def probe(self, port: int, path: str, host: str = "127.0.0.1", timeout_seconds: float = 2.0) -> int | None:
        """The status of an HTTP GET made inside; None without an answer."""
        status = self._request(op="probe", host=host, port=port, path=path, timeout_seconds=timeout_seconds)
        return None if status is None else int(status)

    def log(self, name: str) -> Path:
        """The log of a part."""
        return self.folder / "logs" / f"{name}.log"

    def _request(self, **message: Any) -> Any:
        try:
            return request(self.folder, 60.0, message)
        except OSError as error:
            raise SandboxError(f"sandbox {self.name}: its supervisor does not answer: {error}") from error
        except SupervisorError as error:
            raise SandboxError(f"sandbox {self.name}: {error}") from error


def _await_supervisor(folder: Path, unshare: subprocess.Popen[bytes]) -> Identity:
    """Waits for the supervisor's socket; the kernel tells the pid, in our count, of the process that listens on it."""
    limit = time.monotonic() + START_LIMIT_SECONDS
    log = folder / "logs" / "init.log"
    while True:
        try:
            with socket_address(folder) as address, socket.socket(socket.AF_UNIX) as connection:
                connection.connect(address)
                credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            return Identity.of(struct.unpack("3i", credentials)[0])
        except (FileNotFoundError, ConnectionRefusedError):
            pass
        if unshare.poll() is not None:
            raise SandboxError(f"the sandbox ended at its start, exit {unshare.returncode}; {log}:\n{log_tail(log)}")
        if time.monotonic() > limit:
            raise SandboxError(f"no supervisor after {START_LIMIT_SECONDS:.0f} s; {log}:\n{log_tail(log)}")
        time.sleep(0.01)
