"""One decision being made: what was seen, and the status and actions so far. Lives only inside one call of ``decide``."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from rlhf_api.reasons import FACTS, Reason
from rlhf_api.status import ConditionType, Counters, RLHFJobStatus, RunStatus
from rlhf_operator import names
from rlhf_operator.decide import pods
from rlhf_operator.decide.actions import Action, EventNote
from rlhf_operator.decide.conditions import State, find, is_true, with_condition
from rlhf_operator.decide.observation import ActResult, HeadView, Observation, RayClusterView, SubmissionView
from rlhf_operator.decide.settings import DecideSettings
from rlhf_operator.decide.terms import Terms
from rlhf_operator.decide.texts import EVENT_MAX, cut, moment_of

TERMINAL = ("SUCCEEDED", "FAILED", "STOPPED")


@dataclass(slots=True)
class Case:
    seen: Observation
    now: datetime
    settings: DecideSettings
    status: RLHFJobStatus
    terms: Terms | None
    """None when the spec cannot be read."""
    before: list[Action] = field(default_factory=list)
    after: list[Action] = field(default_factory=list)
    events: list[EventNote] = field(default_factory=list)
    wakes: list[datetime] = field(default_factory=list)

    # What was seen.

    @property
    def cluster(self) -> RayClusterView | None:
        """The job's own RayCluster."""
        cluster = self.seen.cluster
        return cluster if cluster is not None and cluster.owned else None

    @property
    def pods_read(self) -> bool:
        return "pods" not in self.seen.unread

    @property
    def queued_cluster(self) -> bool:
        """Whether a queue owns the suspension of the cluster."""
        return self.cluster is not None and bool(self.cluster.queue)

    @property
    def fresh_head(self) -> HeadView | None:
        """What the pollers saw a short while ago; None when that says nothing about now."""
        head = self.seen.head
        if head is None or (self.now - head.at).total_seconds() > self.settings.fresh_seconds:
            return None
        return head

    def submission(self, since: datetime | None) -> SubmissionView | None:
        """The head's answer for the current submission id, given after ``since``."""
        head, run = self.fresh_head, self.status.run
        if head is None or run is None or not head.reachable or (since is not None and head.at <= since):
            return None
        view = head.submission
        return view if view is not None and view.submission_id == run.submission_id else None

    def is_ours(self, view: SubmissionView) -> bool:
        """Whether a submission with our id carries this job and attempt. Without metadata there is nothing to compare."""
        uid, attempt = view.metadata.get(names.JOB_UID_METADATA), view.metadata.get(names.ATTEMPT_METADATA)
        return uid in (None, self.seen.job.uid) and attempt in (None, str(self.status.attempt))

    def result(self, action: str) -> ActResult | None:
        return next((result for result in self.seen.results if result.action == action), None)

    # What is remembered.

    @property
    def run(self) -> RunStatus | None:
        """The attempt that is not judged yet."""
        run = self.status.run
        return run if run is not None and run.ended_at is None else None

    @property
    def counters(self) -> Counters:
        return self.status.counters or Counters()

    @property
    def finished(self) -> bool:
        return is_true(self.status.conditions, "Complete") or is_true(self.status.conditions, "Failed")

    @property
    def grace_seconds(self) -> float:
        """How long something that was asked to stop may take."""
        grace = self.terms.grace_seconds if self.terms is not None else 0.0
        return grace + self.settings.stop_margin_seconds

    @property
    def head_address(self) -> str:
        cluster = self.cluster
        service = cluster.head_service if cluster is not None and cluster.head_service else names.head_service(self.seen.job.name)
        return f"http://{service}.{self.seen.job.namespace}.svc.{self.settings.cluster_domain}:{names.DASHBOARD_PORT}"

    def token_trouble(self, error: str) -> str:
        """What to do about a head that refuses the job's token; empty where ``error`` is another one. The operator reads no Secrets."""
        if not error.lstrip().startswith(("401", "403")):
            return ""
        job = self.seen.job
        return (
            f"the head does not take this job's token: Secret {names.token_secret(job.name)} may be another's, made by hand, or older than "
            f"the operator's key; `kubectl -n {job.namespace} delete secret/{names.token_secret(job.name)} "
            f"raycluster/{names.ray_cluster(job.name)}` has both made anew"
        )

    # What is decided.

    def set(self, **fields: Any) -> None:
        self.status = self.status.model_copy(update=fields)

    def set_run(self, **fields: Any) -> None:
        if self.status.run is not None:
            self.set(run=self.status.run.model_copy(update=fields))

    def condition(self, kind: ConditionType, state: State, reason: Reason, message: str) -> None:
        conditions = with_condition(self.status.conditions, kind, state, reason, message, self.now, self.seen.job.generation)
        self.set(conditions=conditions)

    def condition_reason(self, kind: ConditionType) -> str:
        condition = find(self.status.conditions, kind)
        return condition.reason if condition is not None else ""

    def note(self, reason: Reason, message: str) -> None:
        kind: Literal["Normal", "Warning"] = "Warning" if FACTS[reason].warning else "Normal"
        self.events.append(EventNote(kind, reason, cut(message, EVENT_MAX)))

    def wake(self, at: datetime) -> None:
        """Decide again at ``at``, though nothing changes."""
        self.wakes.append(at)

    def wake_in(self, seconds: float) -> None:
        self.wake(self.now + timedelta(seconds=seconds))

    def passed(self, since: str | None, seconds: float) -> bool:
        """Whether ``seconds`` have passed since a stored time; if not, look again then. A time that is not stored never passes."""
        start = moment_of(since)
        if start is None:
            return False
        end = start + timedelta(seconds=seconds)
        if self.now >= end:
            return True
        self.wake(end)
        return False

    def head_name(self) -> str:
        head = pods.head_pod(self.seen.pods)
        return f"pod {head.name}" if head is not None else "the head pod"
