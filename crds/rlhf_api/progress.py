"""``GET /progress`` of a running driver: what the operator writes into the status, and what any client may show."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from rlhf_api.base import Strict

MESSAGE_MAX = 4096
LAST_WORD = "rlhf-progress "
"""Begins the line with which a driver ends its log on a cluster: its final report as JSON. Whoever polls misses the last moments."""


STEPS_MAX = 2**31 - 1
"""A larger number of steps is none: a report that has one can't be read, instead of hiding every real step after it."""
Steps = Annotated[int, Field(ge=0, le=STEPS_MAX)]


def _cut(text: object) -> object:
    """Long evidence (a traceback) is cut on a character border, so a status stays small enough to be stored."""
    if isinstance(text, str) and len(text) > MESSAGE_MAX:
        return text[: MESSAGE_MAX - 1] + "…"
    return text


class Reported(Strict):
    """Fields that a newer trainer adds are ignored, so that an older operator can read it."""

    model_config = ConfigDict(
        extra="ignore", strict=True, frozen=True, alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )


class CommittedCheckpoint(Reported):
    step: Steps
    """Rollout steps that the checkpoint holds."""

    path: str
    """Folder."""

    committed_at: str
    """RFC 3339, UTC."""


class BestEvaluation(Reported):
    step: Steps
    """Rollout steps that were done; 0 = before training."""

    metric: str
    """Its key in metrics.jsonl."""

    value: float
    """Its value there."""


class TrainedModel(Reported):
    step: Steps
    """Rollout steps that the weights hold."""

    path: str
    """Hugging Face folder."""


class Updates(Reported):
    """Optimizer updates of the whole job; the learning-rate schedule's horizon is `planned`."""

    planned: int = Field(0, ge=0, lt=2**53)
    """All updates of the job."""

    done: int = Field(0, ge=0, lt=2**53)
    """Updates so far."""


class Failure(Reported):
    exit_code: int = Field(ge=0, le=255)
    """What the driver is about to exit with, see `rlhf_api.exit_codes`."""

    stage: str
    """Phase in which it happened."""

    message: Annotated[str, BeforeValidator(_cut)]
    """One line for people, evidence below it; at most 4096 characters, secrets masked."""


class Progress(Reported):
    stage: str = "starting"
    """Phase that is running: prepare, load, rollout, reward, advantage, update, sync, evaluate, save, …"""

    step: Steps = 0
    """Rollout steps done."""

    total_steps: Steps = 0
    """Rollout steps of the whole job; 0 = not known yet."""

    epoch: Steps = 0
    """Passes over the data that are complete."""

    attempt: int = Field(1, ge=1, le=STEPS_MAX)
    """Attempt that serves this."""

    job_uid: str
    """UID of the job; a client that expects another one talks to the wrong driver."""

    metrics: dict[str, float | None] = Field(default_factory=dict)
    """Metrics of the last step, keys as in metrics.jsonl; null = not a finite number."""

    checkpoint: CommittedCheckpoint | None = None
    """The last complete checkpoint."""

    best: BestEvaluation | None = None
    """The best evaluation so far, by the first data set's score."""

    model: TrainedModel | None = None
    """The final model, once it is complete; null = not yet, or `checkpoint.exportHuggingFace` is false."""

    heartbeat_age_seconds: float = Field(0.0, ge=0.0)
    """Since the driver last made progress inside its phase."""

    updates: Updates = Field(default_factory=lambda: Updates())
    """Optimizer updates planned and done."""

    eta: float | None = Field(None, ge=0.0)
    """Seconds to the end at the present pace; null = not known yet."""

    counts: dict[str, int] = Field(default_factory=dict)
    """Totals over the job that no step shows: filtered prompts, failed rewards, dropped rollouts."""

    failure: Failure | None = None
    """Set when the job is about to end in failure."""
