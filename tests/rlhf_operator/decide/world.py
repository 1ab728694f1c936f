"""A small model of Kubernetes, KubeRay, Ray's Jobs API and the operator's runtime around ``decide``.

It keeps what matters for safety: heads that forget their jobs, pods that linger while they are deleted, status writes that get
lost, an operator that forgets what it saw. Time moves in seconds; ``decide`` is called as the runtime calls it: when something that
it sees has changed, when it asked to be, and every five minutes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from rlhf_api.progress import CommittedCheckpoint, Progress
from rlhf_api.spec import RLHFJob
from rlhf_api.status import RLHFJobStatus
from rlhf_operator.decide.actions import (
    Action,
    Decision,
    DeleteCluster,
    DeleteJob,
    EnsureClaim,
    EnsureCluster,
    EnsureConfig,
    EnsureNetworkPolicy,
    EnsureToken,
    ReleaseWorkers,
    StopSubmission,
    Submit,
    SuspendCluster,
    Watch,
)
from rlhf_operator.decide.conditions import TYPES, is_true
from rlhf_operator.decide.observation import (
    ActResult,
    ContainerView,
    HeadView,
    JobView,
    Observation,
    PodView,
    RayClusterView,
    SubmissionView,
    VolumeClaimView,
)
from rlhf_operator.decide.policies import decide
from rlhf_operator.decide.settings import DecideSettings
from rlhf_operator.decide.texts import stamp
from tests.rlhf_operator.decide.builders import NAME, NOW, UID, job_spec

TICK = 5
GRACE = 120
RESYNC_SECONDS = 300.0
STEP_SECONDS = 20
CHECKPOINT_STEPS = 2


@dataclass
class Pod:
    name: str
    uid: str
    head: bool
    cluster: str
    created: datetime
    node: str
    incarnation: int = 1
    started: datetime | None = None
    ready_at: datetime | None = None
    deleting_since: datetime | None = None
    dies_at: datetime | None = None
    disruption: str = ""
    last_end: tuple[str, int, datetime] | None = None

    @property
    def container_id(self) -> str:
        return f"{self.uid}/{self.incarnation}" if self.started is not None else ""


@dataclass
class Job:
    """A submission in the Jobs API of one head."""

    status: str
    attempt: int
    step: int
    began: datetime
    workers: frozenset[str]
    stops_at: datetime | None = None
    notices_at: datetime | None = None
    exit_code: int | None = None
    stepped_at: datetime | None = None
    hangs: bool = False
    deaf: bool = False


@dataclass
class Cluster:
    uid: str
    created: datetime
    suspend: bool
    queue: str
    deleting: bool = False
    workers: int = 2


@dataclass
class World:
    total_steps: int = 6
    num_workers: int = 2
    queue: str | None = None
    spec: RLHFJob = field(init=False)
    settings: DecideSettings = field(default_factory=DecideSettings)
    now: datetime = NOW
    status: RLHFJobStatus = field(default_factory=RLHFJobStatus)
    generation: int = 1
    suspend: bool = False
    exists: bool = True
    deleting: bool = False
    config: bool = False
    token: bool = False
    policy: bool = False
    claim: bool = True
    cluster: Cluster | None = None
    pods: list[Pod] = field(default_factory=list)
    gone: list[PodView] = field(default_factory=list)
    jobs: dict[str, dict[str, Job]] = field(default_factory=dict)
    """Container id of a head -> submission id -> job. A head that is replaced takes its jobs along."""
    checkpoint: int = 0
    view: HeadView | None = None
    watch: Watch | None = None
    results: dict[str, ActResult] = field(default_factory=dict)
    """Failed actions only, for as long as they are asked for."""
    next_try: dict[Action, datetime] = field(default_factory=dict)
    reachable: bool = True
    partitioned: bool = False
    """The node of the head cannot be reached: its pod is not ready and nobody answers, but the trainer goes on."""
    cut_after_post: bool = False
    admitted: bool = True
    schedulable: bool = True
    lose_writes: int = 0
    crash_after_write: bool = False
    crash_after_post: bool = False
    api_errors: int = 0
    hang_next: bool = False
    deaf_next: bool = False
    exit_next: int | None = None
    posts: dict[str, int] = field(default_factory=dict)
    due: datetime = NOW
    last_seen: Observation | None = None
    counter: itertools.count[int] = field(default_factory=itertools.count)
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spec = self._spec()

    def _spec(self) -> RLHFJob:
        return job_spec(suspend=self.suspend, queue=self.queue, maxInfraRestarts=50, backoffLimit=1, progressDeadlineSeconds=600)

    # What people, nodes and schedulers do.

    def set_suspend(self, suspend: bool) -> None:
        if suspend != self.suspend and self.exists and not self.deleting:
            self.suspend = suspend
            self.generation += 1
            self.spec = self._spec()

    def delete_job(self) -> None:
        self.deleting = True

    def delete_pod(self, head: bool, reason: str = "", lingers: int = 10) -> None:
        for pod in self._living(head)[:1]:
            pod.disruption = reason
            self._begin_deletion(pod, lingers)

    def restart_container(self, head: bool, reason: str = "OOMKilled") -> None:
        for pod in self._living(head)[:1]:
            if pod.started is not None:
                self._restart(pod, reason, 137)

    def delete_cluster(self) -> None:
        if self.cluster is not None:
            self._remove_cluster()

    def evict(self) -> None:
        self.admitted = False
        if self.cluster is not None and self.cluster.queue:
            self.cluster.suspend = True

    def admit(self) -> None:
        self.admitted = True

    def restart_operator(self) -> None:
        self.view, self.watch, self.results, self.next_try, self.gone = None, None, {}, {}, []
        self.last_seen, self.due = None, self.now

    # Time.

    def advance(self, seconds: int) -> None:
        for _ in range(max(seconds // TICK, 1)):
            self.now += timedelta(seconds=TICK)
            self._kueue()
            self._kuberay()
            self._kubelet()
            self._trainers()
            self._poll()
            self._operator()
            self.check()

    def _living(self, head: bool) -> list[Pod]:
        return [pod for pod in self.pods if pod.head == head and pod.deleting_since is None]

    def _begin_deletion(self, pod: Pod, lingers: int) -> None:
        if pod.deleting_since is None:
            pod.deleting_since = self.now
            pod.dies_at = self.now + timedelta(seconds=lingers)

    def _restart(self, pod: Pod, reason: str, code: int) -> None:
        pod.last_end = (reason, code, self.now)
        self.jobs.pop(pod.container_id, None)
        pod.incarnation += 1
        pod.started = self.now
        pod.ready_at = self.now + timedelta(seconds=10)
        if pod.head:
            for other in self._living(head=False):
                if other.started is not None:
                    other.last_end = ("Error", 1, self.now)
                    other.incarnation += 1
                    other.started = self.now + timedelta(seconds=TICK)
                    other.ready_at = self.now + timedelta(seconds=20)

    def _remove_cluster(self) -> None:
        for pod in self.pods:
            self._begin_deletion(pod, 20)
        self.cluster = None

    def _kueue(self) -> None:
        if self.cluster is not None and self.cluster.queue:
            self.cluster.suspend = not self.admitted

    def _kuberay(self) -> None:
        cluster = self.cluster
        if cluster is None:
            return
        if cluster.suspend:
            for pod in self.pods:
                self._begin_deletion(pod, 20)
            return
        mine = [pod for pod in self.pods if pod.cluster == cluster.uid]
        # KubeRay replaces a pod only once the old one is gone.
        if not any(pod.head for pod in mine):
            self._new_pod(cluster, head=True)
        count = sum(not pod.head for pod in mine)
        for _ in range(max(cluster.workers - count, 0)):
            self._new_pod(cluster, head=False)
        for pod in [pod for pod in mine if not pod.head][cluster.workers :]:
            self._begin_deletion(pod, 10)

    def _new_pod(self, cluster: Cluster, head: bool) -> None:
        number = next(self.counter)
        kind = "head" if head else "workers-worker"
        self.pods.append(Pod(f"{NAME}-{kind}-{number}", f"pod-{number}", head, cluster.uid, self.now, f"node-{number % 5}"))

    def _kubelet(self) -> None:
        head_up = any(pod.ready_at is not None and pod.ready_at <= self.now for pod in self._living(head=True))
        for pod in list(self.pods):
            if pod.dies_at is not None and self.now >= pod.dies_at:
                self.jobs.pop(pod.container_id, None)
                if pod.head:
                    for other in self._living(head=False):
                        if other.started is not None:
                            other.incarnation += 1
                            other.ready_at = None
                            other.started = None
                self.gone.append(replace(self._pod_view(pod), gone=True))
                self.pods.remove(pod)
            elif pod.started is None and self.schedulable and pod.deleting_since is None and (pod.head or head_up):
                pod.started = self.now
                pod.ready_at = self.now + timedelta(seconds=10)

    def _trainers(self) -> None:
        workers = self._worker_ids()
        for jobs in self.jobs.values():
            for job in jobs.values():
                if job.status == "PENDING" and self.now >= job.began + timedelta(seconds=5):
                    job.status = "RUNNING"
                if job.status != "RUNNING":
                    continue
                if job.stops_at is not None and self.now >= job.stops_at:
                    job.status = "STOPPED"
                    self.checkpoint = max(self.checkpoint, job.step)
                    continue
                if job.workers != workers and not job.hangs:
                    job.notices_at = job.notices_at or self.now + timedelta(seconds=15)
                    if self.now >= job.notices_at:
                        job.status, job.exit_code = "FAILED", 75
                    continue
                if job.hangs or job.workers != workers:
                    continue
                self._train(job)

    def _train(self, job: Job) -> None:
        job.stepped_at = job.stepped_at or job.began
        if self.now < job.stepped_at + timedelta(seconds=STEP_SECONDS):
            return
        job.stepped_at = self.now
        job.step += 1
        if self.exit_next is not None:
            job.status, job.exit_code = "FAILED", self.exit_next
            self.exit_next = None
        elif job.step >= self.total_steps:
            job.status, job.exit_code = "SUCCEEDED", 0
            self.checkpoint = self.total_steps
        elif job.step % CHECKPOINT_STEPS == 0:
            self.checkpoint = max(self.checkpoint, job.step)

    def _worker_ids(self) -> frozenset[str]:
        return frozenset(pod.container_id for pod in self.pods if not pod.head and pod.started is not None)

    def _head(self) -> Pod | None:
        """The pod behind the head service: also one that is not ready."""
        return next((pod for pod in self.pods if pod.head and pod.started is not None and self._container_up(pod)), None)

    @property
    def _cut_off(self) -> bool:
        return self.partitioned or not self.reachable

    def _container_up(self, pod: Pod) -> bool:
        return pod.ready_at is not None and pod.ready_at <= self.now

    def _poll(self) -> None:
        if self.watch is None:
            self.view = None
            return
        pod = self._head()
        if pod is None or self._cut_off:
            since = self.view.unreachable_since if self.view is not None and not self.view.reachable else self.now
            kept = self.view or HeadView(at=self.now, reachable=False)
            self.view = replace(kept, at=self.now, reachable=False, unreachable_since=since, error="refused", gcs_healthy=False)
            return
        wanted = self.watch.submission_id
        job = self.jobs.get(pod.container_id, {}).get(wanted or "")
        # The version is asked for only where there is no submission to look at.
        version = (self.view.version if self.view is not None else "") if job is not None else "2.60.0"
        view = HeadView(at=self.now, reachable=True, gcs_healthy=True, version=version)
        if wanted is None:
            running = [(each, job) for each, job in self.jobs.get(pod.container_id, {}).items() if job.status in ("PENDING", "RUNNING")]
            view = replace(view, others=tuple(self._submission(each, job) for each, job in running))
        else:
            view = replace(view, submission=self._submission(wanted, job))
        if job is not None and job.status == "RUNNING":
            view = replace(view, progress=self._progress(job), progress_at=self.now)
        self.view = view

    def _submission(self, wanted: str, job: Job | None) -> SubmissionView:
        if job is None:
            return SubmissionView(wanted, found=False)
        return SubmissionView(
            wanted,
            found=True,
            status=job.status,  # type: ignore[arg-type]
            exit_code=job.exit_code,
            metadata={"rlhf.dev/job-uid": UID, "rlhf.dev/attempt": str(job.attempt)},
        )

    def _progress(self, job: Job) -> Progress:
        saved = CommittedCheckpoint(step=self.checkpoint, path="/checkpoints/x", committed_at=stamp(self.now)) if self.checkpoint else None
        return Progress(stage="rollout", step=job.step, total_steps=self.total_steps, attempt=job.attempt, job_uid=UID, checkpoint=saved)

    # The operator's runtime.

    def observe(self) -> Observation:
        cluster = self.cluster
        heads = [pod for pod in self.pods if pod.head]
        head_ready = not self.partitioned and any(self._container_up(pod) and pod.deleting_since is None for pod in heads)
        ready = sum(self._container_up(pod) for pod in self.pods if not pod.head)
        view = None
        if cluster is not None:
            suspended = cluster.suspend and not self.pods
            view = RayClusterView(
                name=NAME,
                uid=cluster.uid,
                owned=True,
                deleting=cluster.deleting,
                suspend=cluster.suspend,
                queue=cluster.queue,
                conditions={
                    "HeadPodReady": ("True" if head_ready else "False", "x", ""),
                    "RayClusterSuspended": ("True" if suspended else "False", "x", ""),
                },
                ready_workers=ready,
                desired_workers=0 if cluster.suspend else cluster.workers,
                state="suspended" if suspended else "ready",
                head_service=f"{NAME}-head-svc",
                created_at=cluster.created,
            )
        return Observation(
            job=JobView("research", NAME, UID, self.generation, NOW, self.deleting, self.spec, (), (), self.status, self.num_workers, 2),
            config=self.config,
            token=self.token,
            network_policy=self.policy,
            claim=VolumeClaimView("ckpt", "Bound", False, ("ReadWriteMany",)) if self.claim else None,
            cluster=view,
            pods=(*map(self._pod_view, self.pods), *self.gone),
            head=self.view,
            results=tuple(self.results.values()),
        )

    def _pod_view(self, pod: Pod) -> PodView:
        ended = pod.last_end or ("", None, None)
        ray = ContainerView(
            name="ray",
            container_id=pod.container_id,
            restart_count=pod.incarnation - 1,
            ready=self._container_up(pod),
            state="running" if pod.started is not None else "waiting",
            started_at=pod.started,
            terminated_reason=ended[0],
            terminated_exit_code=ended[1],
            terminated_at=ended[2],
        )
        return PodView(
            name=pod.name,
            uid=pod.uid,
            group="headgroup" if pod.head else "workers",
            head=pod.head,
            phase="Running" if pod.started is not None else "Pending",
            ready=self._container_up(pod) and pod.deleting_since is None and not (pod.head and self.partitioned),
            created_at=pod.created,
            node=pod.node,
            deleting_since=pod.deleting_since,
            disruption=pod.disruption,
            unschedulable="" if self.schedulable or pod.started is not None else "0/5 nodes are available",
            containers=(ray,),
        )

    def _operator(self) -> None:
        if not self.exists:
            return
        seen = self.observe()
        changed = self.last_seen is None or _without_ages(seen) != _without_ages(self.last_seen)
        if changed or self.now >= self.due:
            self.reconcile(seen)

    def reconcile(self, seen: Observation) -> None:
        self.last_seen = seen
        decision = decide(seen, self.now, self.settings)
        wait = min(decision.requeue_after_seconds if decision.requeue_after_seconds is not None else RESYNC_SECONDS, RESYNC_SECONDS)
        self.due = self.now + timedelta(seconds=wait)
        self.gone = []
        self.watch = decision.watch
        asked = {*decision.before_status, *decision.after_status}
        kinds = {type(action).__name__ for action in asked}
        self.results = {kind: result for kind, result in self.results.items() if kind in kinds}
        self.next_try = {action: at for action, at in self.next_try.items() if action in asked}
        if not self._act(decision.before_status):
            return
        if not self._store(decision):
            return
        if self.crash_after_write and decision.after_status:
            self.crash_after_write = False
            self.restart_operator()
            return
        self._act(decision.after_status)

    def _store(self, decision: Decision) -> bool:
        if decision.status == self.status:
            return True
        if self.lose_writes:
            self.lose_writes -= 1
            self.due = self.now
            return False
        self._check_step(decision)
        self.status = decision.status
        return True

    def _act(self, actions: tuple[Action, ...]) -> bool:
        for action in actions:
            kind = type(action).__name__
            creates = isinstance(action, EnsureConfig | EnsureToken | EnsureClaim | EnsureNetworkPolicy | EnsureCluster)
            if creates:
                assert not self.deleting, "nothing is created for a job that is being deleted"
                assert self.status.conditions, "the first child comes after the status"
            if self.now < self.next_try.get(action, self.now):
                self.due = min(self.due, self.next_try[action])
                return False
            if creates and self.api_errors:
                self.api_errors -= 1
                ok = False
            else:
                ok = self._do(action)
            if ok:
                self.results.pop(kind, None)
                self.next_try.pop(action, None)
                continue
            old = self.results.get(kind)
            failures = (old.failures if old is not None else 0) + 1
            self.results[kind] = ActResult(kind, False, self.now, 500, "no answer", False, failures)
            self.next_try[action] = self.now + timedelta(seconds=min(2.0**failures, 60.0))
            self.due = self.now
            return False
        return True

    def _do(self, action: Action) -> bool:
        match action:
            case EnsureConfig():
                self.config = True
            case EnsureToken():
                self.token = True
            case EnsureClaim():
                self.claim = True
            case EnsureNetworkPolicy():
                self.policy = True
            case EnsureCluster():
                if self.cluster is None:
                    queue = self.queue or ""
                    self.cluster = Cluster(f"cluster-{next(self.counter)}", self.now, bool(queue), queue, workers=self.num_workers)
            case SuspendCluster(uid, suspend):
                if self.cluster is not None and self.cluster.uid == uid:
                    assert not self.cluster.queue, "the queue alone suspends its clusters"
                    self.cluster.suspend = suspend
            case ReleaseWorkers(uid):
                if self.cluster is not None and self.cluster.uid == uid:
                    self.cluster.workers = 0
            case DeleteCluster(uid):
                if self.cluster is not None and self.cluster.uid == uid:
                    self._remove_cluster()
            case Submit(attempt, submission_id):
                return self._post(attempt, submission_id)
            case StopSubmission(submission_id):
                return self._stop(submission_id)
            case DeleteJob():
                self.delete_job()
        return True

    def _post(self, attempt: int, submission_id: str) -> bool:
        assert self.status.attempt == attempt, "the status is stored before the POST"
        assert self.status.run is not None, "the status is stored before the POST"
        assert self.status.run.submission_id == submission_id, "the status is stored before the POST"
        pod = self._head()
        if pod is None or self._cut_off:
            return False
        jobs = self.jobs.setdefault(pod.container_id, {})
        if submission_id not in jobs:
            self.posts[submission_id] = self.posts.get(submission_id, 0) + 1
            job = Job("PENDING", attempt, self.checkpoint, self.now, self._worker_ids(), hangs=self.hang_next, deaf=self.deaf_next)
            jobs[submission_id] = job
            self.hang_next = self.deaf_next = False
            self.log.append(f"{self.now:%H:%M:%S} POST {submission_id}")
        if self.crash_after_post:
            self.crash_after_post = False
            self.restart_operator()
            return False
        if self.cut_after_post:
            self.cut_after_post = self.reachable = False
            return False
        return True

    def _stop(self, submission_id: str) -> bool:
        pod = self._head()
        if pod is None or self._cut_off:
            return False
        job = self.jobs.get(pod.container_id, {}).get(submission_id)
        if job is not None and job.status == "PENDING":
            job.status = "STOPPED"
        elif job is not None and not job.deaf and job.stops_at is None:
            job.stops_at = self.now + timedelta(seconds=10)
        return True

    # What must hold.

    def trainers(self) -> list[tuple[str, str]]:
        return [(place, key) for place, jobs in self.jobs.items() for key, job in jobs.items() if job.status in ("PENDING", "RUNNING")]

    def check(self) -> None:
        assert len(self.trainers()) <= 1, f"two trainers at once: {self.trainers()}"
        assert all(count == 1 for count in self.posts.values()), f"one POST an attempt: {self.posts}"
        if self.deleting and self.cluster is None and not self.pods:
            self.exists = False

    def _check_step(self, decision: Decision) -> None:
        old, new = self.status, decision.status
        RLHFJobStatus.model_validate(new.model_dump(by_alias=True, exclude_none=True))
        assert (new.attempt or 0) >= (old.attempt or 0), "attempt never decreases"
        assert (new.attempt or 0) <= (old.attempt or 0) + 1, "attempts are counted one by one"
        assert {condition.type for condition in new.conditions} == set(TYPES), "every condition is there"
        for kind in ("Complete", "Failed"):
            if is_true(old.conditions, kind):
                assert is_true(new.conditions, kind), "terminal conditions are latched"
                assert (new.phase, new.finished_at, new.run) == (old.phase, old.finished_at, old.run), "a finished job does not change"
        assert not (is_true(new.conditions, "Complete") and is_true(new.conditions, "Failed"))
        self.log.append(f"{self.now:%H:%M:%S} a{new.attempt} {new.phase} {new.reason}: {(new.message or '')[:100]}")

    @property
    def at_rest(self) -> bool:
        """Nothing more is to be expected: ended, suspended as asked, or gone."""
        if not self.exists:
            return True
        return self.status.phase in ("Succeeded", "Failed") or (self.suspend and self.status.phase == "Suspended")


def _without_ages(seen: Observation) -> Observation:
    """What wakes the operator: polls that say the same again do not."""
    head = seen.head
    quiet = replace(head, at=NOW, progress_at=None) if head is not None else None
    results = tuple(replace(result, at=NOW, failures=0) for result in seen.results)
    return replace(seen, head=quiet, results=results, job=replace(seen.job, status=RLHFJobStatus()))
