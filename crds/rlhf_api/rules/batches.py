"""Batches and steps: nothing is dropped, no rank waits, no micro-batch is empty."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_api.rules.registry import Cel, Finding, effective, rule
from rlhf_api.spec import CheckpointSpec, JobSpec

_STEP = f"self.rl.rollout.promptsPerStep * {effective('rollout.samplesPerPrompt')}"
_RANKS = "self.placement.actor.nodes * self.placement.actor.gpusPerNode"


def step_size(spec: JobSpec) -> int:
    """Rollouts of one step."""
    return spec.rl.rollout.prompts_per_step * spec.rl.rollout.samples_per_prompt


def batch_unit(spec: JobSpec) -> int:
    """What an optimizer batch must be a multiple of: one micro-batch on every actor rank (one rollout with a token budget)."""
    training, actor = spec.training, spec.placement.actor
    micro = 1 if training.max_tokens_per_micro_batch is not None else training.micro_batch_size
    return micro * actor.nodes * actor.gpus_per_node


def nearest_batches(batch: int, step: int, unit: int) -> list[int]:
    """Divisors of ``step`` that are multiples of ``unit``: the nearest at or below ``batch`` and the nearest above."""
    small = [d for d in range(1, int(step**0.5) + 1) if step % d == 0]
    legal = sorted({d for s in small for d in (s, step // s) if d % unit == 0})
    below = [d for d in legal if d <= batch]
    above = [d for d in legal if d > batch]
    return below[-1:] + above[:1]


def _advice(spec: JobSpec) -> str:
    batch, step, unit = spec.training.global_batch_size, step_size(spec), batch_unit(spec)
    legal = nearest_batches(batch, step, unit)
    if legal:
        return f"globalBatchSize: {' or '.join(map(str, legal))}"
    samples = spec.rl.rollout.samples_per_prompt
    prompts = next(p for p in range(max(1, -(-unit // samples)), unit + 1) if p * samples % unit == 0)
    return f"promptsPerStep: a multiple of {prompts}, and a globalBatchSize that is a multiple of {unit}"


@rule(
    "batch-within-step",
    "globalBatchSize is at most promptsPerStep x samplesPerPrompt",
    cel=Cel(f"self.training.globalBatchSize <= {_STEP}", "training.globalBatchSize"),
)
def batch_within_step(spec: JobSpec) -> Iterator[Finding]:
    rollout = spec.rl.rollout
    step = step_size(spec)
    if spec.training.global_batch_size > step:
        detail = f"{rollout.prompts_per_step} x {rollout.samples_per_prompt} = {step}"
        yield Finding("training.globalBatchSize", spec.training.global_batch_size, _advice(spec), detail)


@rule(
    "batch-divides-step",
    "globalBatchSize divides promptsPerStep x samplesPerPrompt; only a last step with fewer prompts has a smaller last batch",
    cel=Cel(f"self.training.globalBatchSize > {_STEP} || ({_STEP}) % self.training.globalBatchSize == 0", "training.globalBatchSize"),
)
def batch_divides_step(spec: JobSpec) -> Iterator[Finding]:
    batch, step = spec.training.global_batch_size, step_size(spec)
    if batch <= step and step % batch:
        yield Finding("training.globalBatchSize", batch, _advice(spec), f"{step} / {batch} leaves {step % batch}")


@rule(
    "batch-divides-ranks",
    "globalBatchSize is a multiple of microBatchSize x actor ranks, so that every rank has whole micro-batches",
    cel=Cel(
        f"has(self.training.maxTokensPerMicroBatch) || self.training.globalBatchSize % (self.training.microBatchSize * {_RANKS}) == 0",
        "training.globalBatchSize",
    ),
)
def batch_divides_ranks(spec: JobSpec) -> Iterator[Finding]:
    training, actor = spec.training, spec.placement.actor
    if training.max_tokens_per_micro_batch is None and training.global_batch_size % batch_unit(spec):
        ranks = actor.nodes * actor.gpus_per_node
        detail = f"{training.micro_batch_size} x {ranks} = {batch_unit(spec)}"
        yield Finding("training.globalBatchSize", training.global_batch_size, _advice(spec), detail)


@rule(
    "batch-fills-ranks",
    "globalBatchSize gives every actor rank at least one rollout",
    cel=Cel(f"!has(self.training.maxTokensPerMicroBatch) || self.training.globalBatchSize >= {_RANKS}", "training.globalBatchSize"),
)
def batch_fills_ranks(spec: JobSpec) -> Iterator[Finding]:
    training, actor = spec.training, spec.placement.actor
    ranks = actor.nodes * actor.gpus_per_node
    if training.max_tokens_per_micro_batch is not None and training.global_batch_size < ranks:
        yield Finding("training.globalBatchSize", training.global_batch_size, _advice(spec), f"{ranks} ranks")


@rule(
    "token-budget-needs-packing",
    "maxTokensPerMicroBatch needs packing: true",
    cel=Cel("!has(self.training.maxTokensPerMicroBatch) || self.training.packing", "training.maxTokensPerMicroBatch"),
)
def token_budget_needs_packing(spec: JobSpec) -> Iterator[Finding]:
    budget = spec.training.max_tokens_per_micro_batch
    if budget is not None and not spec.training.packing:
        yield Finding("training.maxTokensPerMicroBatch", budget, "packing: true, or microBatchSize instead of a token budget")


@rule(
    "token-budget-holds-a-row", "maxTokensPerMicroBatch holds the longest row, data.maxLength; a longer one exceeds it alone", warning=True
)
def token_budget_holds_a_row(spec: JobSpec) -> Iterator[Finding]:
    budget = spec.training.max_tokens_per_micro_batch
    if budget is not None and budget < spec.data.max_length:
        yield Finding("training.maxTokensPerMicroBatch", budget, f"maxTokensPerMicroBatch: {spec.data.max_length}")


@rule(
    "warmup-ends",
    "valueLoss.warmupSteps is below training.maxSteps, or the actor is never trained",
    cel=Cel("!has(self.training.maxSteps) || self.rl.valueLoss.warmupSteps < self.training.maxSteps", "rl.valueLoss.warmupSteps"),
)
def warmup_ends(spec: JobSpec) -> Iterator[Finding]:
    warmup, steps = spec.rl.value_loss.warmup_steps, spec.training.max_steps
    if steps is not None and warmup >= steps:
        yield Finding("rl.valueLoss.warmupSteps", warmup, f"warmupSteps: {steps - 1}", f"maxSteps is {steps}")


@rule("save-step-reached", "a job that ends before checkpoint.everySteps saves only its last step", warning=True)
def save_step_reached(spec: JobSpec) -> Iterator[Finding]:
    every, steps = spec.checkpoint.every_steps, spec.training.max_steps
    default = CheckpointSpec.model_fields["every_steps"].default
    if steps is not None and every > steps and every != default:
        yield Finding("checkpoint.everySteps", every, f"everySteps: {steps}", f"maxSteps is {steps}")


@rule("evaluation-step-reached", "a job that ends before evaluation.everySteps evaluates only at its start and end", warning=True)
def evaluation_step_reached(spec: JobSpec) -> Iterator[Finding]:
    steps = spec.training.max_steps
    every = spec.evaluation.every_steps if spec.evaluation is not None else None
    if steps is not None and every is not None and every > steps:
        yield Finding("evaluation.everySteps", every, f"everySteps: {steps}", f"maxSteps is {steps}")
