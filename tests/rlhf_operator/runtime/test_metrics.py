"""What is counted, and that nothing of a job stays when it goes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from prometheus_client import generate_latest

from rlhf_api.progress import Progress
from rlhf_api.status import Failure, ProgressStatus, RLHFJobStatus
from rlhf_operator.runtime.keys import JobKey
from rlhf_operator.runtime.metrics import Metrics

KEY = JobKey("ns", "job")
START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat()


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_gauges_of_a_job_come_and_go():
    metrics = Metrics()
    progress = Progress(job_uid="u", step=7, metrics={"rollout/reward_mean": 0.5, "rollout/kl": None, "perf/tokens_per_second": 100.0})
    metrics.job(KEY, RLHFJobStatus(phase="Running"), progress)
    metrics.collect_phases()
    job = {"namespace": "ns", "rlhfjob": "job"}
    assert value(metrics, "rlhf_job_step", **job) == 7
    assert value(metrics, "rlhf_job_reward", **job) == 0.5
    assert value(metrics, "rlhf_job_kl", **job) is None
    assert value(metrics, "rlhf_job_tokens_per_second", **job) == 100
    assert value(metrics, "rlhf_operator_jobs", phase="Running") == 1
    metrics.forget(KEY)
    metrics.forget(KEY)
    metrics.collect_phases()
    assert value(metrics, "rlhf_operator_jobs", phase="Running") == 0
    assert b'rlhfjob="job"' not in generate_latest(metrics.registry)


def test_a_failure_is_counted_once_by_class():
    metrics = Metrics()
    failed = RLHFJobStatus(failures=[Failure(attempt=1, class_="Infra", reason="HeadLost", message="m", at=at(60))])
    metrics.transition(RLHFJobStatus(), failed, START, START)
    metrics.transition(failed, failed.model_copy(update={"phase": "Restarting"}), START, START)
    assert value(metrics, "rlhf_operator_attempt_failures_total", failure_class="Infra") == 1
    assert value(metrics, "rlhf_operator_attempt_failures_total", failure_class="User") == 0


def test_time_to_the_first_step_and_time_lost():
    metrics = Metrics()
    stepped = RLHFJobStatus(progress=ProgressStatus(step=1, updated_at=at(90)))
    metrics.transition(RLHFJobStatus(), stepped, START, START + timedelta(seconds=90))
    assert value(metrics, "rlhf_operator_first_step_seconds_sum") == 90
    failure = Failure(attempt=1, class_="Infra", reason="HeadLost", message="m", at=at(100))
    failed = stepped.model_copy(update={"failures": [failure]})
    again = failed.model_copy(update={"progress": ProgressStatus(step=2, updated_at=at(250))})
    metrics.transition(failed, again, START, START + timedelta(seconds=250))
    assert value(metrics, "rlhf_operator_seconds_lost_to_failures_total") == 150
    further = failed.model_copy(update={"progress": ProgressStatus(step=3, updated_at=at(260))})
    metrics.transition(again, further, START, START + timedelta(seconds=260))
    assert value(metrics, "rlhf_operator_seconds_lost_to_failures_total") == 150
    assert value(metrics, "rlhf_operator_first_step_seconds_count") == 1
