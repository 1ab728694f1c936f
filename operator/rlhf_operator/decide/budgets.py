"""What an ended attempt costs, and what follows: another attempt, on the same cluster or a new one, or the end of the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rlhf_api.reasons import Reason
from rlhf_api.spec.lifecycle import LifecycleSpec
from rlhf_api.status import MAX_CHARGES, Charge, Counters, Evidence, Failure
from rlhf_operator.decide.classify import GPU_FAULT, NODE_REASONS, Judgement
from rlhf_operator.decide.evidence import KILLED_EXIT_CODE
from rlhf_operator.decide.settings import DecideSettings
from rlhf_operator.decide.texts import doubled, moment_of, stamp


@dataclass(frozen=True, slots=True)
class Limit:
    """A budget that is used up."""

    reason: Reason
    message: str
    restarts: int
    """How many it allowed."""


def delay_seconds(counters: Counters, settings: DecideSettings) -> float:
    """10 s, doubled with each attempt in a row that made no step, at most 5 min."""
    return doubled(settings.retry_min_seconds, counters.without_step - 1, settings.retry_max_seconds)


def counted(counters: Counters, judgement: Judgement, made_step: bool) -> Counters:
    """``counters`` after one more attempt. Making room for others says nothing about the cluster the job runs on."""
    own = judgement.class_ in ("User", "Infra")
    return Counters(
        user=counters.user + (judgement.class_ == "User"),
        infra=counters.infra + (judgement.class_ == "Infra"),
        preempted=counters.preempted + (judgement.class_ == "Preempted"),
        without_step=0 if made_step else counters.without_step + own,
        in_place=0 if made_step else counters.in_place + own,
    )


def remembered(charges: Sequence[Charge], step: int, now: datetime, settings: DecideSettings) -> list[Charge]:
    """Charges that still count: those of the last day, and older ones that no newer step followed."""
    horizon = now - timedelta(seconds=settings.charge_window_seconds)
    return [charge for charge in charges if charge.step >= step or (moment_of(charge.at) or now) > horizon]


def charged(charges: Sequence[Charge], step: int, now: datetime) -> list[Charge]:
    """One charge more; the two oldest become one where there would be too many."""
    grown = [*charges, Charge(at=stamp(now), step=step)]
    if len(grown) > MAX_CHARGES:
        first, second, *rest = grown
        grown = [second.model_copy(update={"count": first.count + second.count}), *rest]
    return grown


def used_up(judgement: Judgement, counters: Counters, charges: Sequence[Charge], lifecycle: LifecycleSpec) -> Limit | None:
    """The budget that does not allow another attempt; None when one may follow."""
    if judgement.class_ == "User" and counters.user > lifecycle.backoff_limit:
        limit = lifecycle.backoff_limit
        return Limit(Reason.BACKOFF_LIMIT, f"lifecycle.backoffLimit allows {limit} restarts after failures of the job itself", limit)
    infra = sum(charge.count for charge in charges)
    if judgement.class_ == "Infra" and infra > lifecycle.max_infra_restarts:
        limit = lifecycle.max_infra_restarts
        return Limit(Reason.RESTART_LIMIT, f"lifecycle.maxInfraRestarts allows {limit} restarts after failures of the cluster", limit)
    return None


def suspect_node(evidence: Sequence[Evidence], avoided: Sequence[str], settings: DecideSettings) -> str | None:
    """A node on which pods died in several attempts, of what can be the node's fault."""
    places = {(found.node, found.attempt) for found in evidence if found.node and _blames_node(found)}
    counts = Counter(node for node, _ in places if node is not None and node not in avoided)
    node, count = max(sorted(counts.items()), key=lambda pair: pair[1], default=("", 0))
    return node if count >= settings.node_failures else None


def _blames_node(found: Evidence) -> bool:
    """Not preemption, the job's own memory use, a pod that somebody deleted, or a container that ended because its head did."""
    killed = found.exit_code == KILLED_EXIT_CODE and found.reason != "OOMKilled"
    return killed or found.reason in NODE_REASONS or found.reason == "Evicted" or GPU_FAULT.search(found.message) is not None


def memory_before(failures: Sequence[Failure], step: int, settings: DecideSettings) -> bool:
    """Whether an earlier attempt ran out of memory at about this step."""
    return any(failure.reason == Reason.OUT_OF_MEMORY and abs((failure.step or 0) - step) <= settings.same_step for failure in failures)


def preempted_before(failures: Sequence[Failure], made_step: bool) -> str:
    """The pod's reason when the last failure was a preemption and no step was made since; empty otherwise."""
    if not failures or made_step or failures[-1].reason != Reason.PREEMPTED:
        return ""
    return failures[-1].message.split(":", 1)[0]
