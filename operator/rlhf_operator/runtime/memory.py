"""What this process remembers of a job between reconciles. All of it can be lost: the truth is in the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from rlhf_operator.decide.actions import Action
from rlhf_operator.decide.observation import ActResult, JobView, PodView, VolumeClaimView
from rlhf_operator.runtime.keys import JobKey

MESSAGE_CHARACTERS = 2048
POSTS = frozenset({"Submit", "StopSubmission"})
"""Actions that nothing in the cluster shows at once: their success is remembered, or they would be made twice."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Read(Generic[T]):
    """A value and when it was read, by the monotonic clock."""

    value: T
    at: float


@dataclass(slots=True)
class JobMemory:
    uid: str
    """Another UID under the same name is another job: it begins with an empty memory."""
    parsed: tuple[int, JobView] | None = None
    """Generation and the view of its spec; the status in it is stale."""
    config: Read[str | None] | None = None
    """Text of the stored resolved job; None = the ConfigMap does not exist, or belongs to another job."""
    edits: tuple[int, tuple[str, ...]] | None = None
    """Generation and its edits that come too late."""
    token: Read[bool] | None = None
    policy: Read[bool] | None = None
    budget: Read[str] | None = None
    """UID of the PodDisruptionBudget; empty = it does not exist, or belongs to another job."""
    cluster: Read[bool] | None = None
    """Whether a RayCluster that no watch shows was found, when the API server was last asked for it."""
    hidden: Read[tuple[PodView, ...]] | None = None
    """Pods of the job's RayCluster that no watch shows, because somebody took our label off."""
    claim: Read[VolumeClaimView | None] | None = None
    references: dict[str, Read[bool]] = field(default_factory=dict)
    """Named objects that the job refers to -> whether they exist."""
    warnings: dict[str, Read[str]] = field(default_factory=dict)
    """UID of a cluster, claim or pod -> its last Warning event."""
    queue_message: Read[str] | None = None
    results: dict[str, ActResult] = field(default_factory=dict)
    next_try: dict[Action, float] = field(default_factory=dict)
    """Action that failed, or helped nothing -> when it may be tried again, by the monotonic clock."""
    repeated: dict[Action, int] = field(default_factory=dict)
    """Action -> how often in a row it succeeded and was asked for again all the same."""
    status_written_at: float | None = None
    status_failures: int = 0
    """Writes in a row that failed."""
    status_next_try: float = 0.0
    namespace_terminating: bool = False

    def note(self, action: str, at: datetime, *, code: int, message: str, permanent: bool) -> ActResult:
        """A failed action."""
        before = self.results.get(action)
        result = ActResult(
            action=action,
            ok=False,
            at=at,
            code=code,
            message=message[:MESSAGE_CHARACTERS],
            permanent=permanent,
            failures=(before.failures if before is not None else 0) + 1,
        )
        self.results[action] = result
        return result

    def succeeded(self, action: str, at: datetime) -> None:
        self.results.pop(action, None)
        if action in POSTS:
            self.results[action] = ActResult(action=action, ok=True, at=at)

    def keep_only(self, asked: Iterable[Action]) -> None:
        """Failures of actions that are no longer asked for say nothing any more."""
        wanted = set(asked)
        kinds = {type(action).__name__ for action in wanted}
        self.results = {name: result for name, result in self.results.items() if result.ok or name in kinds}
        self.next_try = {action: at for action, at in self.next_try.items() if action in wanted}
        self.repeated = {action: times for action, times in self.repeated.items() if action in wanted}


class Memories:
    def __init__(self) -> None:
        self._known: dict[JobKey, JobMemory] = {}

    def of(self, key: JobKey, uid: str) -> JobMemory:
        found = self._known.get(key)
        if found is None or found.uid != uid:
            found = self._known[key] = JobMemory(uid)
        return found

    def forget(self, key: JobKey) -> None:
        self._known.pop(key, None)
