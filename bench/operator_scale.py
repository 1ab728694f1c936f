"""The operator with hundreds of jobs on a real API server: `make bench-operator`; about seven minutes with the default of 500.

A control plane is started for it (etcd, API server, controller-manager), KubeRay and heads are played (`operator_world.py`), and the
operator runs as a process of its own with the account and rights of its chart and its default settings, but for the resync, which
falls into each window once. Then four spans of one run:

- start: from the first `create` of a job until all are Running;
- steady: a window in which each job makes a step every five seconds;
- dead: one in ten dashboards takes connections and never answers;
- steady again: they are back. What differs between the steady windows is the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import itertools
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.operator_cluster import NAMESPACES, READS, SYSTEM, WRITES, control_plane
from bench.operator_world import AT_ONCE, Heads, Ray
from bench.prometheus_text import buckets, quantile, samples, since, total
from e2e.cluster.addons.watching import Api, Copy
from e2e.cluster.cluster import Cluster
from e2e.cluster.control import API_SERVER
from tests.integration.operator.conftest import OperatorProcess, job

JOBS = "/apis/rlhf.dev/v1alpha1/rlhfjobs"
DISPATCHED = "apiserver_flowcontrol_dispatched_requests_total"
RECONCILE = "rlhf_operator_reconcile_seconds"
ANSWER = "apiserver_request_duration_seconds"
STATUS_WRITE = {"resource": "rlhfjobs", "subresource": "status", "verb": "PATCH"}
SAMPLE_SECONDS = 2.0
SETTLE_SECONDS = 30.0
START_LIMIT_SECONDS = 420.0
DEAD_SHARE = 0.1

Key = tuple[str, str]


@dataclass(frozen=True)
class Snapshot:
    at: float
    reconciles: Mapping[float, float]
    status_writes: Mapping[float, float]
    """By the API server's own time for them."""
    writes: float
    reads: float
    cpu_seconds: float
    server_cpu_seconds: float


@dataclass
class Span:
    """Figures of one span of the run; ages and gaps are those of living jobs."""

    name: str
    before: Snapshot
    after: Snapshot
    queue_depths: list[float] = field(default_factory=list)
    queue_ages: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    resident_bytes: list[float] = field(default_factory=list)
    status_ages: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.after.at - self.before.at

    @property
    def reconciles(self) -> dict[float, float]:
        return since(self.before.reconciles, self.after.reconciles)

    @property
    def status_writes(self) -> dict[float, float]:
        return since(self.before.status_writes, self.after.status_writes)


class Bench:
    def __init__(self, cluster: Cluster, operator: OperatorProcess, heads: Heads, jobs: Copy, num_jobs: int) -> None:
        self.cluster, self.operator, self.heads, self.jobs = cluster, operator, heads, jobs
        self.keys: list[Key] = [(NAMESPACES[number % len(NAMESPACES)], f"job-{number:04}") for number in range(num_jobs)]

    def phases(self) -> Counter[str]:
        return Counter(str((each.get("status") or {}).get("phase", "none")) for each in self.jobs.objects.values())

    def snapshot(self) -> Snapshot:
        process = self.operator.process
        assert process is not None
        if process.poll() is not None:
            raise RuntimeError(f"the operator ended with {process.returncode}: {self.operator.log.read_text()[-4000:]}")
        text = self.cluster.api.request("GET", "/metrics").data.decode()
        server = samples(text, DISPATCHED)
        states = {state.name: state for state in self.cluster.status()}
        return Snapshot(
            at=time.monotonic(),
            reconciles=buckets(samples(self.operator.scrape(), RECONCILE), RECONCILE),
            status_writes=buckets(samples(text, ANSWER), ANSWER, **STATUS_WRITE),
            writes=total(server, DISPATCHED, flow_schema=WRITES),
            reads=total(server, DISPATCHED, flow_schema=READS),
            cpu_seconds=cpu_seconds(process.pid),
            server_cpu_seconds=states[API_SERVER].cpu_seconds,
        )

    async def span(self, name: str, until: float | asyncio.Task[None]) -> Span:
        """Samples for ``until`` seconds, or until that task is done."""
        before = await asyncio.to_thread(self.snapshot)
        span = Span(name, before, before)
        began = time.monotonic()
        while not (until.done() if isinstance(until, asyncio.Task) else time.monotonic() - began >= until):
            await asyncio.sleep(SAMPLE_SECONDS)
            await self._sample(span)
        if isinstance(until, asyncio.Task):
            until.result()
        span.after = await asyncio.to_thread(self.snapshot)
        span.gaps = self._gaps(began)
        return span

    async def _sample(self, span: Span) -> None:
        text = await asyncio.to_thread(self.operator.scrape)
        found = samples(text, "rlhf_operator_")
        span.queue_depths.append(total(found, "rlhf_operator_queue_depth"))
        span.queue_ages.append(total(found, "rlhf_operator_queue_age_seconds"))
        span.lags.append(total(found, "rlhf_operator_event_loop_lag_seconds"))
        span.resident_bytes.append(total(samples(text, "process_resident_memory_bytes"), "process_resident_memory_bytes"))
        at = datetime.datetime.now(datetime.UTC)
        for key in self.keys:
            progress = ((self.jobs.objects.get(key) or {}).get("status") or {}).get("progress") or {}
            if key not in self.heads.dead and progress.get("updatedAt"):
                span.status_ages.append((at - datetime.datetime.fromisoformat(progress["updatedAt"])).total_seconds())

    def _gaps(self, began: float) -> list[float]:
        """Between two looks at the same living head."""
        found: list[float] = []
        for key in self.keys:
            if key not in self.heads.dead:
                looks = [at for at in self.heads.looks.get(key, ()) if at >= began]
                found += [later - earlier for earlier, later in itertools.pairwise(looks)]
        return found

    async def create(self, api: Api) -> None:
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(namespace: str, name: str) -> None:
            self.heads.prepare(namespace, name)
            body = job(name, checkpoint={"volume": {"existingClaim": "checkpoints"}})
            async with slots:
                await api.call("POST", f"/apis/rlhf.dev/v1alpha1/namespaces/{namespace}/rlhfjobs", body)

        async with asyncio.TaskGroup() as tasks:
            for key in self.keys:
                tasks.create_task(one(*key))

    async def all_running(self, api: Api) -> None:
        began = time.monotonic()
        await self.create(api)
        print(f"{len(self.keys)} jobs created [{time.monotonic() - began:.1f} s]", flush=True)
        said = began
        while (phases := self.phases())["Running"] < len(self.keys):
            await asyncio.sleep(0.1)
            if time.monotonic() - began > START_LIMIT_SECONDS:
                raise RuntimeError(f"after {START_LIMIT_SECONDS:g} s not all are Running: {dict(phases)}")
            if time.monotonic() - said > 10:
                said = time.monotonic()
                print(f"[{said - began:5.1f} s] {dict(phases)}", flush=True)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(
    cluster: Cluster, operator: OperatorProcess, heads: Heads, num_jobs: int, window_seconds: float, profile: str
) -> list[Span]:
    async with Api(cluster.admin_kubeconfig) as api:
        jobs = Copy(api, JOBS, lambda: None)
        bench = Bench(cluster, operator, heads, jobs, num_jobs)
        others = [asyncio.create_task(jobs.follow()), asyncio.create_task(Ray(api).run())]
        dead = frozenset(bench.keys[:: round(1 / DEAD_SHARE)])
        try:
            running = asyncio.create_task(bench.all_running(api))
            with profiled(operator, profile, "start"):
                spans = [await bench.span("start", running)]
            print(f"all Running after {spans[0].seconds:.1f} s", flush=True)
            await asyncio.sleep(SETTLE_SECONDS)
            with profiled(operator, profile, "steady"):
                spans.append(await bench.span("steady", window_seconds))
            heads.dead = dead
            await asyncio.sleep(SETTLE_SECONDS)
            spans.append(await bench.span(f"{len(dead)} dead", window_seconds))
            heads.dead = frozenset()
            await asyncio.sleep(SETTLE_SECONDS)
            spans.append(await bench.span("steady again", window_seconds))
            phases = bench.phases()
            if phases["Running"] != num_jobs:
                raise RuntimeError(f"not all jobs stayed Running: {dict(phases)}")
        finally:
            for task in others:
                task.cancel()
            ended = await asyncio.gather(*others, return_exceptions=True)
            for fault in ended:
                if isinstance(fault, Exception):
                    print(f"what stands in for the cluster failed: {fault!r}", flush=True)
        return spans


@contextlib.contextmanager
def profiled(operator: OperatorProcess, prefix: str, name: str) -> Iterator[None]:
    """Writes PREFIX-NAME.txt, stacks with counts, as py-spy sees the operator."""
    if not prefix or operator.process is None:
        yield
        return
    spy = Path(sys.executable).with_name("py-spy")
    what = ["--pid", str(operator.process.pid), "--rate", "50", "--format", "raw", "--output", f"{prefix}-{name}.txt"]
    recording = subprocess.Popen([str(spy), "record", *what], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        recording.send_signal(2)
        recording.wait(60)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("nan")


def rows(spans: Sequence[Span], num_jobs: int) -> list[list[str]]:
    def row(name: str, cell: Any) -> list[str]:
        return [name, *(cell(span) for span in spans)]

    def both(values: Sequence[float], unit: float = 1.0) -> str:
        return f"{percentile(values, 0.5) * unit:.1f}, {percentile(values, 0.99) * unit:.1f}"

    def milliseconds(observed: Mapping[float, float]) -> str:
        return f"{quantile(observed, 0.5) * 1e3:.0f}, {quantile(observed, 0.99) * 1e3:.0f}"

    return [
        ["", *(span.name for span in spans)],
        ["---"] * (len(spans) + 1),
        row("seconds", lambda span: f"{span.seconds:.0f}"),
        row("reconciles a second", lambda span: f"{max(span.reconciles.values()) / span.seconds:.1f}"),
        row("**reconcile p50, p99** (ms)", lambda span: milliseconds(span.reconciles)),
        row("of it, the API server's own time for a status write (ms)", lambda span: milliseconds(span.status_writes)),
        row("jobs that wait for a worker, max", lambda span: f"{max(span.queue_depths):.0f}"),
        row("longest wait (s)", lambda span: f"{max(span.queue_ages):.1f}"),
        row("event loop late, p50, max (ms)", lambda span: f"{statistics.median(span.lags) * 1e3:.0f}, {max(span.lags) * 1e3:.0f}"),
        row("**API writes a second and job**", lambda span: f"{(span.after.writes - span.before.writes) / span.seconds / num_jobs:.3f}"),
        row("API writes a job", lambda span: f"{(span.after.writes - span.before.writes) / num_jobs:.1f}"),
        row("API reads a job", lambda span: f"{(span.after.reads - span.before.reads) / num_jobs:.1f}"),
        row("**operator's memory, max** (MB)", lambda span: f"{max(span.resident_bytes) / 1e6:.0f}"),
        row("operator's CPU (cores)", lambda span: f"{(span.after.cpu_seconds - span.before.cpu_seconds) / span.seconds:.2f}"),
        row(
            "API server's CPU (cores)",
            lambda span: f"{(span.after.server_cpu_seconds - span.before.server_cpu_seconds) / span.seconds:.2f}",
        ),
        row("between two looks at a head, p50, p99 (s)", lambda span: both(span.gaps)),
        row("age of a status's progress, p50, p99 (s)", lambda span: both(span.status_ages)),
    ]


def ratios(spans: Sequence[Span]) -> list[tuple[str, float]]:
    """Dead dashboards against the mean of the windows before and after."""
    _, first, dead, second = spans

    def ratio(figure: Any) -> float:
        return float(figure(dead) / statistics.mean((figure(first), figure(second))))

    return [
        ("reconcile p99", ratio(lambda span: quantile(span.reconciles, 0.99))),
        ("time between two looks, p99", ratio(lambda span: percentile(span.gaps, 0.99))),
        ("age of a status, p99", ratio(lambda span: percentile(span.status_ages, 0.99))),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=500, help="at least 20 (default: 500)")
    parser.add_argument("--window", type=float, default=60.0, metavar="SECONDS", help="length of a window (default: 60)")
    parser.add_argument("--profile", default="", metavar="PREFIX", help="also write py-spy's stacks of start and steady to PREFIX-….txt")
    arguments = parser.parse_args()
    if arguments.jobs < 20:
        parser.error(f"--jobs {arguments.jobs}: one in ten heads dies, so fewer than 20 jobs say nothing")
    heads = Heads(secrets.token_hex(32).encode())
    with tempfile.TemporaryDirectory() as scratch, heads:
        folder = Path(scratch)
        with control_plane(folder) as (cluster, kubeconfig):
            # An empty variable means the default: those of the tests are quicker.
            defaults = dict.fromkeys(("RLHF_POLL_SECONDS", "RLHF_STATUS_SECONDS", "RLHF_WATCH_SCOPE", "RLHF_WATCH_NAMESPACES"), "")
            resync = {"RLHF_RESYNC_SECONDS": f"{arguments.window:g}"}
            operator = OperatorProcess(kubeconfig, SYSTEM, heads, folder, **defaults, **resync).start()
            try:
                operator.wait()
                # The API server works for some seconds on the schemas of a kind that was just installed.
                time.sleep(SETTLE_SECONDS)
                alone = operator.metric("process_resident_memory_bytes")
                load = os.getloadavg()[0]
                spans = asyncio.run(measure(cluster, operator, heads, arguments.jobs, arguments.window, arguments.profile))
                errors = operator.metric("rlhf_operator_reconcile_errors_total")
            finally:
                operator.stop()
                faults = operator.faults()
    print(f"\n{arguments.jobs} jobs, all Running {spans[0].seconds:.0f} s after the first was created")
    print(f"{os.cpu_count()} cores, load average before {load:.1f}, after {os.getloadavg()[0]:.1f}")
    print(f"the operator without a job: {alone / 1e6:.0f} MB; reconciles that failed: {errors:.0f}\n")
    for row in rows(spans, arguments.jobs):
        print(f"| {' | '.join(row)} |")
    print("\nDead dashboards, against the mean of the windows before and after:")
    for name, value in ratios(spans):
        print(f"- {name}: {value:.2f}x")
    if faults:
        sys.exit("unexpected lines in the operator's log:\n" + "\n".join(faults[:20]))


if __name__ == "__main__":
    main()
