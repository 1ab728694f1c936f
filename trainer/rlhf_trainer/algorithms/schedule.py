"""How many optimizer updates a job makes, and the learning rate of each."""

from __future__ import annotations

import math

from rlhf_api.spec import ScheduleSpec


def total_steps(num_prompts: int, prompts_per_step: int, epochs: int, max_steps: int | None = None) -> int:
    """Rollout steps of the job: ``epochs ceil(prompts / P)``, at most ``max_steps``."""
    steps = epochs * math.ceil(num_prompts / prompts_per_step)
    return steps if max_steps is None else min(steps, max_steps)


def total_updates(
    num_prompts: int,
    *,
    prompts_per_step: int,
    samples_per_prompt: int,
    global_batch_size: int,
    epochs: int,
    update_epochs: int,
    max_steps: int | None = None,
) -> int:
    """Optimizer updates of the job, the horizon of the schedule.

    ``epochs ceil(prompts / P) updateEpochs ceil(P n / globalBatchSize)``; the last step of an epoch may be short of prompts
    and then counts the updates it really has, so that the minimum rate falls on the last update and not after it.

    >>> total_updates(8, prompts_per_step=8, samples_per_prompt=4, global_batch_size=8, epochs=2, update_epochs=1)
    8
    """
    steps = total_steps(num_prompts, prompts_per_step, epochs, max_steps)
    full, rest = divmod(num_prompts, prompts_per_step)
    full_updates = math.ceil(prompts_per_step * samples_per_prompt / global_batch_size)
    rest_updates = math.ceil(rest * samples_per_prompt / global_batch_size)
    whole_epochs, last_steps = divmod(steps, full + (rest > 0)) if steps else (0, 0)
    return update_epochs * (whole_epochs * (full * full_updates + rest_updates) + last_steps * full_updates)


def warmup_updates(total: int, spec: ScheduleSpec) -> int:
    """``ceil(warmupRatio total)``; the product is rounded first, because 0.07 * 100 is 7.000000000000001."""
    return math.ceil(round(spec.warmup_ratio * total, 9))


def rate(update: int, total: int, peak: float, spec: ScheduleSpec) -> float:
    """Learning rate of 0-based ``update`` out of ``total``.

    Rises linearly to ``peak`` at the last warm-up update, then falls to ``minRatio peak`` at the last update (``constant``
    stays at the peak). Updates past the horizon keep the last rate.
    """
    warmup = warmup_updates(total, spec)
    if update < warmup:
        return peak * (update + 1) / warmup
    if spec.type == "constant":
        return peak
    progress = min((update + 1 - warmup) / max(total - warmup, 1), 1.0)
    left = 0.5 * (1.0 + math.cos(math.pi * progress)) if spec.type == "cosine" else 1.0 - progress
    return peak * (spec.min_ratio + (1.0 - spec.min_ratio) * left)
