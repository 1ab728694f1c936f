"""Policies for what the job consists of: what must be there first, what is created, and what creation is answered."""

from __future__ import annotations

from rlhf_api import quantity
from rlhf_api.reasons import Reason
from rlhf_operator.decide.actions import (
    Action,
    DeleteCluster,
    EnsureClaim,
    EnsureCluster,
    EnsureConfig,
    EnsureDisruptionBudget,
    EnsureNetworkPolicy,
    EnsureToken,
)
from rlhf_operator.decide.case import Case
from rlhf_operator.decide.deadlines import wait_for
from rlhf_operator.decide.observation import ActResult
from rlhf_operator.decide.outcome import add_failure, fail
from rlhf_operator.decide.texts import few, one_line
from rlhf_operator.decide.waiting import QUOTA, Trouble

KINDS = {
    "EnsureConfig": "ConfigMap",
    "EnsureToken": "Secret",
    "EnsureClaim": "PersistentVolumeClaim",
    "EnsureNetworkPolicy": "NetworkPolicy",
    "EnsureDisruptionBudget": "PodDisruptionBudget",
    "EnsureCluster": "RayCluster",
}

NEEDS = frozenset({Reason.OBJECT_MISSING, Reason.VOLUME_MISSING, Reason.VOLUME_UNSUITABLE})
"""What somebody else must bring about before anything is made."""


def former_job_leaves(case: Case) -> bool:
    """Children of another UID are never adopted; the job waits until they are gone."""
    cluster = case.seen.cluster
    if cluster is None or cluster.owned:
        return False
    going = "is being deleted" if cluster.deleting else f"exists; if it is not needed: kubectl delete raycluster {cluster.name}"
    return wait_for(case, Trouble(Reason.FORMER_JOB, f"RayCluster {cluster.name} of another owner {going}"))


def needs_are_met(case: Case) -> bool:
    """What the pods refer to must exist before GPUs are taken for them."""
    if case.cluster is not None:
        return False
    trouble = _missing(case) or _unsuitable(case)
    if trouble is not None:
        return wait_for(case, trouble)
    if case.condition_reason("ClusterReady") in NEEDS:
        # What was missing is there: the pods get the whole time that pods may take, not what the search has left of it.
        case.set(provisioning_since=None)
    return False


def _missing(case: Case) -> Trouble | None:
    missing = case.seen.missing if "missing" not in case.seen.unread else ()
    own = case.terms.existing_claim if case.terms is not None else None
    if own is not None and case.seen.claim is None and "claim" not in case.seen.unread:
        missing = (*missing, f"PersistentVolumeClaim {own}")
    missing = tuple(dict.fromkeys(missing))
    if not missing:
        return None
    claims = all(name.startswith("PersistentVolumeClaim") for name in missing)
    message = f"not found in namespace {case.seen.job.namespace}: {few(list(missing), 8)}"
    return Trouble(Reason.VOLUME_MISSING if claims else Reason.OBJECT_MISSING, message)


def _unsuitable(case: Case) -> Trouble | None:
    claim = case.seen.claim
    if claim is None or "claim" in case.seen.unread:
        return None
    if claim.phase == "Lost":
        return Trouble(Reason.VOLUME_MISSING, f"PersistentVolumeClaim {claim.name} has lost its volume: {one_line(claim.message)}")
    asked = case.terms.claim_size if case.terms is not None else ""
    if asked and claim.size_bytes is not None and claim.size_bytes < quantity.parse(asked):
        message = (
            f"PersistentVolumeClaim {claim.name} was there before this job and has {claim.size_bytes} bytes, less than "
            f"checkpoint.volume.create.size {asked}: let it grow, delete it if nothing on it is needed, or ask for less in a new job"
        )
        return Trouble(Reason.VOLUME_UNSUITABLE, message)
    modes = claim.access_modes
    if not modes or "ReadWriteMany" in modes:
        return None
    # With one worker pod, ReadWriteOnce works where head and worker share a node; where not, FailedAttachVolume shows.
    if "ReadWriteOnce" in modes and case.seen.job.worker_pods <= 1:
        return None
    message = (
        f"PersistentVolumeClaim {claim.name} has access modes {', '.join(modes)}, but the head and {case.seen.job.worker_pods} worker pods "
        "write to it: use a claim with ReadWriteMany"
    )
    return Trouble(Reason.VOLUME_UNSUITABLE, message)


def cluster_is_replaced(case: Case) -> bool:
    """A cluster that did not help makes room before another is made."""
    replacing, cluster = case.status.replacing, case.cluster
    if replacing is None:
        return False
    if cluster is None or cluster.uid != replacing:
        case.set(replacing=None)
        return False
    if not cluster.deleting:
        case.after.append(DeleteCluster(cluster.uid))
    result = case.result("DeleteCluster")
    failed = f"; deleting it failed: {one_line(result.message)}" if result is not None and not result.ok else ""
    return wait_for(case, Trouble(Reason.RECREATING, f"the old RayCluster {cluster.name} is going away{failed}"))


def children_exist(case: Case) -> bool:
    """ConfigMap, Secret, claim, NetworkPolicy, PodDisruptionBudget, then the RayCluster; a refusal that will not change ends the job.

    What failed is asked for again each time: the runtime keeps its answer for so long, and spaces the calls.
    """
    wanted = _absent(case)
    if case.cluster is None:
        wanted.append(EnsureCluster(tuple(case.status.avoid_nodes)))
    if not wanted:
        return False
    kinds = [type(action).__name__ for action in wanted]
    result = next((each for each in map(case.result, kinds) if each is not None and not each.ok), None)
    if result is not None and _refuses(case, result):
        return True
    case.after.extend(wanted)
    if result is None and case.cluster is not None:
        return False
    return wait_for(
        case, _answer(case, result) if result is not None else Trouble(Reason.PROVISIONING, f"{KINDS[kinds[0]]} is being created")
    )


def restore(case: Case) -> None:
    """Small children that somebody deleted under a running attempt. Last of all actions: a failure must keep none from being taken."""
    if not case.finished:
        case.after.extend(_absent(case))


def _absent(case: Case) -> list[Action]:
    seen, terms = case.seen, case.terms
    absent: list[Action] = []
    if not seen.config and "config" not in seen.unread:
        absent.append(EnsureConfig())
    if not seen.token and "token" not in seen.unread:
        absent.append(EnsureToken())
    if terms is not None and terms.creates_claim and seen.claim is None and "claim" not in seen.unread:
        absent.append(EnsureClaim())
    if terms is not None and terms.isolate and not seen.network_policy and "network_policy" not in seen.unread:
        absent.append(EnsureNetworkPolicy())
    if seen.disruption_budget == "" and "disruption_budget" not in seen.unread:
        absent.append(EnsureDisruptionBudget())
    return absent


def _refuses(case: Case, result: ActResult) -> bool:
    """Whether the API server's answer is final. A quota, a namespace's end and another owner's object can go away by themselves."""
    message = result.message.lower()
    if not result.permanent or result.code == 409 or any(word in message for word in QUOTA) or "being terminated" in message:
        return False
    trouble = _answer(case, result)
    case.condition("ClusterReady", "False", trouble.reason, trouble.message)
    add_failure(case, "Config", trouble.reason, trouble.message)
    fail(case, trouble.reason, trouble.message)
    return True


def _answer(case: Case, result: ActResult) -> Trouble:
    kind = KINDS[result.action]
    words = f"{kind} cannot be created: {f'HTTP {result.code}: ' if result.code else ''}{one_line(result.message) or 'no answer'}"
    if result.code == 409:
        return Trouble(Reason.FORMER_JOB, f"{words}; the job waits until it is gone")
    if any(word in result.message.lower() for word in QUOTA):
        return Trouble(Reason.QUOTA_EXCEEDED, words)
    if result.permanent:
        hint = "; is KubeRay installed?" if result.action == "EnsureCluster" and result.code == 404 else ""
        return Trouble(Reason.ADMISSION_DENIED, words + hint)
    return Trouble(Reason.API_ERROR, f"{words}; failed {result.failures} times, tried again")
