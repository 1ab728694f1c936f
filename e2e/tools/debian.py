"""Debian packages that a cluster or an image build needs: checked in milliseconds, installed where this process may.

Nothing is ever removed or started: a machine with another containerd keeps it, and no daemon of a package comes up on the host.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.home import Home
from e2e.tools.cachefolder import Report, ToolsError, report_to_stderr

CONTROL = ("iproute2", "util-linux")
FULL = (*CONTROL, "containerd", "runc", "containernetworking-plugins", "iptables", "conntrack", "docker-registry", "busybox-static")
IMAGES = ("buildah", "debootstrap", "docker-registry")
# What a cluster of each shape runs, and what building its images does.
SHAPES: Mapping[str, tuple[str, ...]] = {"control": CONTROL, "full": FULL, "images": IMAGES}

# Where a machine has the program from elsewhere (another distribution, Docker's containerd.io), it counts. busybox-static has no entry:
# /bin/busybox of Debian's package `busybox` is not static.
PROGRAMS = {
    "iproute2": "ip",
    "util-linux": "unshare",
    "containerd": "containerd",
    "runc": "runc",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "docker-registry": "docker-registry",
}
# Daemons and administrators' programs lie here, and an ordinary user's PATH often lacks them.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
INSTALL = ("apt-get", "install", "--yes", "--no-install-recommends", "--no-remove")
LOCK_SECONDS = 900
LOCKED = ("Could not get lock", "Unable to acquire the dpkg frontend lock", "is another process using it")

POLICY = Path("/usr/sbin/policy-rc.d")
# Exit code 101, "action forbidden by policy": Debian's invoke-rc.d and deb-systemd-invoke then start nothing.
FORBID = "#!/bin/sh\n# rlhf-kube: no daemon starts while packages are installed; removed afterwards.\nexit 101\n"


def states(output: str) -> dict[str, str]:
    """Lines of `dpkg-query --show --showformat='${Package} ${Status}\\n'` → package → status, as `install ok installed`."""
    return dict(line.split(" ", 1) for line in output.splitlines() if " " in line)


def absent(packages: Sequence[str], known: Mapping[str, str], programs_found: Mapping[str, bool]) -> list[str]:
    """Those neither installed by dpkg nor there from elsewhere. One that dpkg holds half-installed is absent whatever files it left."""
    half = ("unpacked", "half-installed", "half-configured", "triggers-awaited")
    missing = []
    for package in packages:
        state = known.get(package, "unknown ok not-installed")
        if state.endswith(" installed") or state.endswith("triggers-pending"):
            continue
        if state.endswith(half) or not programs_found.get(package, False):
            missing.append(package)
    return missing


def missing(packages: Sequence[str]) -> list[str]:
    """Asks dpkg, where there is one, and looks for the programs."""
    known = {}
    if shutil.which("dpkg-query"):
        command = ["dpkg-query", "--show", "--showformat=${Package} ${Status}\n", *packages]
        # Exit code 1 when one is unknown to dpkg; the others are still printed.
        known = states(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    return absent(packages, known, {package: _program_found(package) for package in packages})


def _program_found(package: str) -> bool:
    program = PROGRAMS.get(package)
    return program is not None and shutil.which(program, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}") is not None


def ensure(packages: Sequence[str], why: str, report: Report = report_to_stderr) -> None:
    """Installs what is missing; `why` is the end of "Debian packages needed …", as `for a cluster with nodes`.

    Waits up to a quarter of an hour for another apt. ToolsError names the exact command where this process is not root, and what to look
    for where there is no apt-get.
    """
    wanted = missing(packages)
    if not wanted:
        return
    if shutil.which("apt-get") is None:
        programs = ", ".join(PROGRAMS.get(package, package) for package in wanted)
        raise ToolsError(f"Needed {why}, not found, and no apt-get to install it: {programs} (in Debian: {' '.join(wanted)}).")
    if os.geteuid() != 0:
        raise ToolsError(f"Debian packages needed {why}; install them with: sudo {' '.join(INSTALL)} {' '.join(wanted)}")
    started = time.monotonic()
    with Home.default().locked("debian-packages"):
        wanted = missing(packages)
        if wanted:
            report(f"Installing {' '.join(wanted)} ({why}).")
            _install(wanted, report)
            report(f"Installed {' '.join(wanted)} in {time.monotonic() - started:.0f} s.")


def _install(wanted: Sequence[str], report: Report) -> None:
    with no_daemon_starts():
        if not _apt([*INSTALL, *wanted], report, may_fail=True):
            # The lists are old, or there are none, as in container images.
            _apt(["apt-get", "update", "--quiet"], report)
            _apt([*INSTALL, *wanted], report)
    left = missing(wanted)
    if left:
        raise ToolsError(f"apt-get ended well, and dpkg still does not have: {' '.join(left)}.")


def _apt(command: Sequence[str], report: Report, *, may_fail: bool = False) -> bool:
    """True: done. apt waits for dpkg's lock by itself, not for that of its package lists: it is asked again until that is free."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1", "LC_ALL": "C.UTF-8"}
    argv = [command[0], "--option", f"DPkg::Lock::Timeout={LOCK_SECONDS}", *command[1:]]
    deadline = time.monotonic() + LOCK_SECONDS
    waited = False
    while True:
        done = subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return True
        said = done.stdout + done.stderr
        if not any(words in said for words in LOCKED) or time.monotonic() > deadline:
            break
        if not waited:
            report("Another apt is at work; waiting for it.")
            waited = True
        time.sleep(2)
    if may_fail:
        return False
    raise ToolsError(f"`{' '.join(command)}` ended with {done.returncode}:\n" + "\n".join(said.splitlines()[-20:]))


@contextmanager
def no_daemon_starts(policy: Path = POLICY) -> Iterator[None]:
    """Until the block ends, package scripts may start nothing; then the machine's own policy is back. For one process at a time.

    A policy that forbids already, as container images have one, stays untouched. One set aside by a killed process comes back here.
    """
    aside = policy.with_name(policy.name + ".rlhf-kube")
    if _is_ours(policy):
        policy.unlink()
    if aside.exists() and not policy.exists():
        aside.rename(policy)
    if _forbids(policy):
        yield
        return
    if policy.exists():
        policy.rename(aside)
    making = policy.with_name(policy.name + ".rlhf-kube-new")
    making.write_text(FORBID)
    making.chmod(0o755)
    making.rename(policy)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)
        if aside.exists():
            aside.rename(policy)


def _is_ours(policy: Path) -> bool:
    return policy.is_file() and policy.read_text(errors="replace") == FORBID


def _forbids(policy: Path) -> bool:
    if not os.access(policy, os.X_OK):
        return False
    return subprocess.run([policy, "containerd", "start"], capture_output=True, check=False).returncode == 101
