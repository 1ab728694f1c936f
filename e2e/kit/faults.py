"""What goes wrong in clusters, done on purpose. Faults that reach below Kubernetes need a cluster of our own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from e2e.cluster.cluster import Cluster
from e2e.kit.jobs import Job

KILL_TRAINER = """
import os, pathlib, signal
killed = 0
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        argv = (process / "cmdline").read_bytes().split(b"\\0")
    except OSError:
        continue
    # Ray starts it by a shell, whose command line holds the same words.
    if argv[1:3] == [b"-m", b"rlhf_trainer"]:
        os.kill(int(process.name), signal.SIGKILL)
        killed += 1
print(killed)
"""
FILL_MEMORY = """
import os, time
# Many small processes, so that none of them is the one the kernel chooses.
for _ in range(128):
    if os.fork() == 0:
        held = bytearray(b"x") * (96 << 20)
        time.sleep(60)
    time.sleep(0.1)
"""
FIRST_TO_DIE = """
import pathlib, sys
for process in map(pathlib.Path, (f"/proc/{number}" for number in sys.argv[1:])):
    try:
        inside = (process / "status").read_text().split("NSpid:")[1].splitlines()[0].split()[-1]
        (process / "oom_score_adj").write_text("1000" if inside == "1" else "-900")
    except OSError:
        pass
"""
PROCESSES_OF = """
import pathlib, sys
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        if sys.argv[1] in (process / "cgroup").read_text():
            print(process.name)
    except OSError:
        pass
"""
SUBMISSIONS = """
import json, sys, urllib.request
request = urllib.request.Request(f"http://{sys.argv[1]}:8265/api/jobs/", headers={"Authorization": f"Bearer {sys.argv[2]}"})
print("\\n".join(job["submission_id"] for job in json.load(urllib.request.urlopen(request, timeout=5)) if job["submission_id"]))
"""


def kill_trainer(job: Job) -> None:
    """SIGKILL to the driver on the head, nothing else."""
    killed = job.execute(job.pod("head")["metadata"]["name"], KILL_TRAINER).strip()
    assert killed == "1", f"{killed} trainers on the head"


def fill_memory(cluster: Cluster, job: Job) -> None:
    """The Ray container of the worker goes beyond its memory limit and is ended by the kernel as a whole.

    That is what cgroup v2 does under Kubernetes; with v1 the kernel ends a single process, and here it is made to choose the first.
    """
    pod = job.pod("worker")
    cluster.exec([sys.executable, "-c", FIRST_TO_DIE, *map(str, processes(cluster, container_id(pod)))])
    try:
        job.execute(pod["metadata"]["name"], FILL_MEMORY)
    except AssertionError as ended:
        # The command ends with its container.
        print(f"memory of {pod['metadata']['name']} filled: {str(ended).strip().splitlines()[-1][:200]}")


def container_id(pod: dict[str, Any]) -> str:
    """Of its first container, without the runtime's prefix."""
    return str(pod["status"]["containerStatuses"][0]["containerID"]).partition("://")[2]


def processes(cluster: Cluster, container: str) -> list[int]:
    """Process ids, as the cluster's sandbox counts them."""
    return [int(line) for line in cluster.exec([sys.executable, "-c", PROCESSES_OF, container]).stdout.split()]


def kill_container(cluster: Cluster, container: str) -> None:
    """SIGKILL to all that runs in a container: no last word, no released lease."""
    found = processes(cluster, container)
    assert found, f"container {container} has no process"
    cluster.exec(["kill", "-9", *map(str, found)])


def submissions(cluster: Cluster, head: str, token: str) -> list[str]:
    """Ids that the Jobs API of a head (its address) lists, asked past the API server."""
    return cluster.exec([sys.executable, "-c", SUBMISSIONS, head, token]).stdout.split()


@contextmanager
def cut_off(cluster: Cluster, container: str, address: str) -> Iterator[None]:
    """Packets from a pod to an address vanish, as behind a broken network or a NetworkPolicy that forgot somebody."""
    pid = processes(cluster, container)[0]

    def rule(verb: str) -> None:
        cluster.exec(["nsenter", "-t", str(pid), "-n", "iptables", verb, "OUTPUT", "-d", address, "-j", "DROP"])

    rule("-I")
    try:
        yield
    finally:
        rule("-D")


@contextmanager
def paused(cluster: Cluster, part: str) -> Iterator[None]:
    """A part stays but does not answer."""
    cluster.sandbox.pause_part(part)
    try:
        yield
    finally:
        cluster.sandbox.resume_part(part)
