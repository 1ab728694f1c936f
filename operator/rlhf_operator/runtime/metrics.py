"""The operator's own metrics, and four gauges a job that go away with it. Names of jobs are the only unbounded label."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable
from datetime import datetime
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from rlhf_api.progress import Progress
from rlhf_api.status import FailureClass, Phase, RLHFJobStatus
from rlhf_operator.runtime.keys import JobKey

RECONCILE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
FIRST_STEP_BUCKETS = (30, 60, 120, 180, 300, 600, 900, 1800, 3600, 7200)

JOB_METRICS = {
    "reward": ("rollout/reward_mean",),
    "kl": ("rollout/kl",),
    "tokens_per_second": ("perf/tokens_per_second",),
}
"""Gauge -> the trainer's metric names, first found wins."""
JOB_LABELS = ("namespace", "rlhfjob")
"""Not `job`: Prometheus calls the target it scraped so, and would rename ours to `exported_job`."""


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        here = self.registry
        ProcessCollector(registry=here)
        self.reconcile_seconds = Histogram(
            "rlhf_operator_reconcile_seconds", "Time of one reconcile, reads and writes included.", buckets=RECONCILE_BUCKETS, registry=here
        )
        self.reconcile_errors = Counter("rlhf_operator_reconcile_errors", "Reconciles that ended in an exception.", registry=here)
        self.queue_depth = Gauge("rlhf_operator_queue_depth", "Jobs that wait for a worker.", registry=here)
        self.queue_age = Gauge("rlhf_operator_queue_age_seconds", "How long the longest waiting job has waited.", registry=here)
        self.watch_age = Gauge("rlhf_operator_watch_age_seconds", "Since the quietest watch last heard from the API server.", registry=here)
        self.loop_lag = Gauge("rlhf_operator_event_loop_lag_seconds", "How late the event loop last woke.", registry=here)
        self.leading = Gauge("rlhf_operator_leading", "1 while this replica acts.", registry=here)
        self.status_writes = Counter("rlhf_operator_status_writes", "Writes of a status.", ["kind"], registry=here)
        self.api_errors = Counter("rlhf_operator_api_errors", "Failed actions against the API server or a head.", ["action"], registry=here)
        self.events_dropped = Counter("rlhf_operator_events_dropped", "Kubernetes Events that could not be written.", registry=here)
        self.jobs = Gauge("rlhf_operator_jobs", "Jobs by phase.", ["phase"], registry=here)
        self.failures = Counter(
            "rlhf_operator_attempt_failures", "Attempts that failed, by whose failure it was.", ["failure_class"], registry=here
        )
        self.first_step_seconds = Histogram(
            "rlhf_operator_first_step_seconds", "From a job's creation to its first step.", buckets=FIRST_STEP_BUCKETS, registry=here
        )
        self.seconds_lost = Counter(
            "rlhf_operator_seconds_lost_to_failures", "From a failure to the next reported step, over all jobs.", registry=here
        )
        self.job_step = Gauge("rlhf_job_step", "Steps done.", JOB_LABELS, registry=here)
        self.job_gauges = {
            name: Gauge(f"rlhf_job_{name}", f"{name.replace('_', ' ')} of the last step.", JOB_LABELS, registry=here)
            for name in JOB_METRICS
        }
        self._phases: dict[JobKey, str] = {}
        for each in get_args(FailureClass):
            self.failures.labels(each)

    def job(self, key: JobKey, status: RLHFJobStatus, progress: Progress | None) -> None:
        """What is known of one job after a reconcile."""
        self._phases[key] = status.phase or "Pending"
        if progress is None:
            return
        self.job_step.labels(*key).set(progress.step)
        for name, sources in JOB_METRICS.items():
            value = next((progress.metrics[each] for each in sources if progress.metrics.get(each) is not None), None)
            if value is not None:
                self.job_gauges[name].labels(*key).set(value)

    def forget(self, key: JobKey) -> None:
        self._phases.pop(key, None)
        for gauge in (self.job_step, *self.job_gauges.values()):
            gauge.remove(*key)

    def transition(self, before: RLHFJobStatus, after: RLHFJobStatus, created_at: datetime, now: datetime) -> None:
        """Counts what the step from one stored status to the next says: failures, the first step, the time that a failure cost."""
        known = {(each.attempt, each.at, each.reason) for each in before.failures}
        for each in after.failures:
            if (each.attempt, each.at, each.reason) not in known:
                self.failures.labels(each.class_).inc()
        stepped = _step(after) > _step(before)
        if not stepped:
            return
        if _step(before) == 0 and not after.failures:
            self.first_step_seconds.observe(max((now - created_at).total_seconds(), 0.0))
        if after.failures:
            failed_at, last_step_at = _time(after.failures[-1].at), _progress_time(before)
            if last_step_at is None or last_step_at < failed_at:
                self.seconds_lost.inc(max((now - failed_at).total_seconds(), 0.0))

    def collect_phases(self) -> None:
        tally = Tally(self._phases.values())
        for phase in get_args(Phase):
            self.jobs.labels(phase).set(tally[phase])

    def known(self) -> Iterable[JobKey]:
        return tuple(self._phases)


def _step(status: RLHFJobStatus) -> int:
    return status.progress.step or 0 if status.progress is not None else 0


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _progress_time(status: RLHFJobStatus) -> datetime | None:
    at = status.progress.updated_at if status.progress is not None else None
    return _time(at) if at is not None else None
