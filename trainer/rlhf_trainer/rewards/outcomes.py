"""One function source over one batch: an outcome for each rollout, with bad rows told apart from good ones."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlhf_trainer.rewards.function_host import Answer, FunctionHost, RewardContractError, RewardError, RewardTimeoutError
from rlhf_trainer.rewards.shape_check import Received, Scalar, ShapeError, scalars

Columns = Mapping[str, Sequence[Any]]
Kind = Literal["ok", "not_applicable", "error", "timeout"]

SLOW_ROW_SHARE = 0.25
"""One row on its own may take this share of the time limit of a whole batch, and at least ``SLOW_ROW_SECONDS``."""
SLOW_ROW_SECONDS = 1.0
SEARCH_LIMITS = 2.0
"""The search for bad rows ends after this many time limits spent in calls; rows not reached by then count as failed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one source says about one rollout."""

    kind: Kind
    value: Scalar = None
    score: Scalar = None
    """None: the function gave no scores."""
    extra_logs: Mapping[str, float] = field(default_factory=dict)
    problem: RewardError | None = None
    """Of ``error`` and ``timeout``."""


def evaluate(host: FunctionHost, columns: Columns, stop_at_first: bool, row_names: Sequence[str]) -> list[Outcome]:
    """One call for the batch; after an exception or time-out each row alone, within a bound.

    ``stop_at_first``: the first bad row is all the caller wants to know; later rows are left as failed.
    ``row_names`` go into messages. Raises ``RewardContractError`` when the answer has the wrong form: then no row of it can be trusted.
    """
    size = len(columns["queries"])
    try:
        return _outcomes(host, host.call(columns), size, row_names)
    except RewardContractError:
        raise
    except RewardError as error:
        if size == 1:
            return [_failed(error, row_names[0])]
        return _row_by_row(host, columns, error, stop_at_first, row_names)


def _row_by_row(
    host: FunctionHost, columns: Columns, batch_error: RewardError, stop_at_first: bool, row_names: Sequence[str]
) -> list[Outcome]:
    size = len(columns["queries"])
    row_limit = min(host.timeout_seconds, max(host.timeout_seconds * SLOW_ROW_SHARE, SLOW_ROW_SECONDS))
    seconds_left = host.timeout_seconds * SEARCH_LIMITS
    outcomes: list[Outcome] = []
    for row in range(size):
        if seconds_left <= 0 or (stop_at_first and outcomes and outcomes[-1].problem):
            break
        one = {name: values[row : row + 1] for name, values in columns.items()}
        host.start()
        begin = time.monotonic()
        try:
            outcomes += _outcomes(host, host.call(one, row_limit), 1, [row_names[row]])
        except RewardContractError:
            raise
        except RewardError as error:
            outcomes.append(_failed(error, row_names[row]))
        seconds_left -= time.monotonic() - begin
    rest = _failed(batch_error, f"the batch that begins with {row_names[0]}")
    if stop_at_first and all(outcome.problem is None for outcome in outcomes):
        # Only the batch as a whole fails, so no row is to blame.
        return [rest] * size
    return outcomes + [rest] * (size - len(outcomes))


def _failed(error: RewardError, where: str) -> Outcome:
    kind: Kind = "timeout" if isinstance(error, RewardTimeoutError) else "error"
    return Outcome(kind, problem=type(error)(f"{error}. Row: {where}", error.evidence))


def _outcomes(host: FunctionHost, answer: Answer, size: int, row_names: Sequence[str]) -> list[Outcome]:
    values = _checked(host, answer.rewards, size, "rewards")
    scores = [None] * size if answer.scores is None else _checked(host, answer.scores, size, "scores")
    logs = _logs(host, answer.extra_logs, size)
    outcomes = []
    for row, (value, score) in enumerate(zip(values, scores, strict=True)):
        bad = next((x for x in (value, score) if x is not None and not math.isfinite(x)), None)
        if bad is not None:
            outcomes.append(_failed(RewardError(f"{host.path}: {host.name} returned {bad}"), row_names[row]))
        elif value is None:
            outcomes.append(Outcome("not_applicable", extra_logs=logs[row]))
        else:
            outcomes.append(Outcome("ok", value, score, logs[row]))
    return outcomes


def _checked(host: FunctionHost, received: Received, size: int, what: str) -> list[Scalar]:
    try:
        return scalars(received, size)
    except ShapeError as error:
        raise RewardContractError(f"{host.path}: {what} of {host.name}: {error}") from error


def _logs(host: FunctionHost, extra_logs: Mapping[str, Received], size: int) -> list[dict[str, float]]:
    """A single number counts for each rollout; numbers that are not finite are left out."""
    logs: list[dict[str, float]] = [{} for _ in range(size)]
    for key, received in extra_logs.items():
        is_single = received.shape == ()
        wrapped = Received(received.type_name, (1,), [received.values]) if is_single else received
        values = _checked(host, wrapped, 1 if is_single else size, f"extra_logs[{key!r}]")
        for row in range(size):
            value = values[0 if is_single else row]
            if value is not None and math.isfinite(value):
                logs[row][key] = value
    return logs


def count(outcomes: Sequence[Outcome]) -> Counter[str]:
    """``errors``, ``timeouts`` and ``not_applicable`` rows."""
    names = {"error": "errors", "timeout": "timeouts", "not_applicable": "not_applicable"}
    return Counter(names[outcome.kind] for outcome in outcomes if outcome.kind in names)
