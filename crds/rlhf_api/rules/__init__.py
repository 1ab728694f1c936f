"""Every cross-field rule of the API, once. ``rlhf validate``, the operator, the driver and the CRD all use these."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rlhf_api.clusterplan import for_cluster
from rlhf_api.rules import algorithms, batches, data, placement, pods, rewards, templates, volumes
from rlhf_api.rules.registry import RULES, Cel, Finding, Rule, rule
from rlhf_api.rules.trace import broken_by, watch
from rlhf_api.spec import RLHFJob
from rlhf_api.violations import Violation

__all__ = [
    "RULES",
    "Cel",
    "Finding",
    "Rule",
    "algorithms",
    "batches",
    "check",
    "check_cluster",
    "check_world",
    "data",
    "placement",
    "pods",
    "rewards",
    "rule",
    "templates",
    "volumes",
    "warnings",
]


def check(job: RLHFJob, unknown: Collection[str] = ()) -> list[Violation]:
    """Every broken rule of ``job``, derived or not.

    ``unknown`` are paths (``spec.training.globalBatchSize``) whose values are placeholders because the schema refused
    what stood there: a rule that read one of them is not reported, since its verdict would be about the placeholder.
    """
    return _run(job, unknown, [rule for rule in RULES if not rule.warning and not rule.cluster])


def check_cluster(job: RLHFJob, unknown: Collection[str] = ()) -> list[Violation]:
    """Every broken rule of ``job`` on a cluster: those of ``check`` with ``accelerator: auto`` as gpu, and those of clusters."""
    return _run(for_cluster(job), unknown, [rule for rule in RULES if not rule.warning])


def warnings(job: RLHFJob) -> list[Violation]:
    """What is legal and probably not meant."""
    return _run(job, (), [rule for rule in RULES if rule.warning])


def check_world(job: RLHFJob, gpus: int) -> list[Violation]:
    """The rules once it is known how many GPUs Ray sees, so that ``accelerator: auto`` means one thing."""
    accelerator = job.spec.placement.accelerator
    if accelerator == "gpu" and gpus == 0:
        rule_text = "accelerator: gpu needs at least one GPU that Ray can see (0 seen)"
        return [Violation("spec.placement.accelerator", "gpu", rule_text, "accelerator: cpu, or auto")]
    known = accelerator if accelerator != "auto" else "gpu" if gpus else "cpu"
    placed = job.spec.placement.model_copy(update={"accelerator": known})
    return check(job.model_copy(update={"spec": job.spec.model_copy(update={"placement": placed})}))


def _run(job: RLHFJob, unknown: Collection[str], chosen: Sequence[Rule]) -> list[Violation]:
    violations = []
    for each in chosen:
        spec, reads = watch(job.spec, "spec")
        findings = list(each.check(spec))
        if broken_by(unknown, reads):
            continue
        for finding in findings:
            text = f"{each.text} ({finding.detail})" if finding.detail else each.text
            violations.append(Violation(f"spec.{finding.field}", finding.value, text, finding.nearest))
    return violations
