"""The operator's own times and limits. What a user may choose per job is ``spec.lifecycle``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecideSettings:
    cluster_domain: str = "cluster.local"

    queue_words: bool = False
    """Whether Kueue's words are read for jobs that wait in a queue."""

    queue_seconds: float = 30.0
    """Between two looks at what a queue says: no event tells that its words changed."""

    retry_min_seconds: float = 10.0
    """Delay of the first new attempt; doubles with each attempt that made no step."""
    retry_max_seconds: float = 300.0

    charge_window_seconds: float = 86_400.0
    """After this an infrastructure failure is forgotten, if newer steps were made."""

    in_place_attempts: int = 2
    """Attempts in a row without a new step on one Ray cluster, before it is replaced."""

    node_failures: int = 2
    """Attempts that lost a pod on one node, before the node is avoided and the cluster replaced."""

    same_step: int = 2
    """Two out-of-memory kills at most this many steps apart are the job's own fault."""

    submit_seconds: float = 300.0
    """An attempt that no head accepted in this time is given up and counts as Infra."""

    evidence_seconds: float = 10.0
    """A trainer notices a lost pod before the kubelet says why: so long an exit waits for an explanation."""

    head_loss_seconds: float = 60.0
    """A head whose pod is not ready and that does not answer for so long is lost, whatever its node still says."""

    silence_shown_seconds: float = 60.0
    """Before a head that does not answer is called unreachable: a poll or two may fail."""

    unread_shown_seconds: float = 15.0
    """Before a trainer whose ``/progress`` answers with something else is called unreadable: an old driver may still hold the port."""

    unread_starting_seconds: float = 120.0
    """The same where nothing answers and nothing ever has: a trainer loads its libraries before it opens its port."""

    worker_loss_seconds: float = 60.0
    """The trainer notices a dead actor and exits with 75; after this it is stopped."""

    stop_margin_seconds: float = 60.0
    """On top of the job's termination grace, before something that does not stop is taken away."""

    claim_wait_seconds: float = 20.0
    """Before a claim that is Pending without a Warning event is called trouble."""

    init_wait_seconds: float = 120.0
    """Before the wait of an init container is called trouble."""

    silence_seconds: float = 60.0
    """Before a RayCluster without any status is called trouble."""

    stop_again_seconds: float = 15.0
    """Between two stop calls for the same trainer."""

    fresh_seconds: float = 60.0
    """What the pollers saw longer ago says nothing about now."""

    rejoin_seconds: float = 180.0
    """After a head came back its former workers restart; those that have not are waited for so long."""

    recheck_seconds: float = 5.0
    """Look again when something is awaited that sends no event."""
