"""Who is on the GPU when engines and trainers share it (``colocate: all``). Pure, but for ``on_cluster``.

Each turn names what it needs resident. Going to another turn gives memory back first and takes it second, so that at no
moment more than one turn's needs are there. On CPU, and where engines have GPUs of their own, nothing moves.

vLLM (0.32.0) sleeps as a whole and wakes in parts, and a half-awake engine ignores ``sleep``. Level 1 keeps its weights in
host memory, so that an evaluation can follow without a sync.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Turn = Literal["rollout", "experience", "update", "sync", "checkpoint"]

WEIGHTS, KV_CACHE = "engine weights", "engine kv_cache"
ENGINE = (WEIGHTS, KV_CACHE)
TRAINED = ("actor", "critic")
SLEEP_LEVEL = 1


@dataclass(frozen=True)
class Action:
    """``target`` is "engine" or a role; ``verb`` is sleep or wake (engine), offload or onload (role)."""

    target: str
    verb: Literal["sleep", "wake", "offload", "onload"]
    tag: str | None = None
    """What an engine wakes: weights or kv_cache."""

    def __str__(self) -> str:
        return " ".join(part for part in (self.target, self.verb, self.tag) if part)


def needs(turn: Turn, roles: Iterable[str]) -> frozenset[str]:
    """What must be resident: roles, and parts of the engine.

    The actor is needed whole for a sync although its optimizer is not: workers move a role as one.
    """
    if turn == "rollout":
        return frozenset(ENGINE)
    if turn == "sync":
        return frozenset({WEIGHTS, "actor"})
    if turn == "experience":
        return frozenset(roles)
    return frozenset(role for role in roles if role in TRAINED)


def actions(resident: frozenset[str], wanted: frozenset[str]) -> list[Action]:
    """From one set of residents to another: releases first, then what is missing."""
    # Roles go before the engine does: an engine that must wake fully before it may sleep needs room.
    steps = [Action(role, "offload") for role in sorted(resident - wanted) if role not in ENGINE]
    awake = {part for part in ENGINE if part in resident}
    if awake - wanted:
        steps += [_wake(part) for part in ENGINE if part not in awake]
        steps.append(Action("engine", "sleep"))
        awake = set()
    steps += [_wake(part) for part in ENGINE if part in wanted - awake]
    return steps + [Action(role, "onload") for role in sorted(wanted - resident) if role not in ENGINE]


def _wake(part: str) -> Action:
    return Action("engine", "wake", part.removeprefix("engine "))


class Turns:
    """Keeps track of what is resident. ``take(turn)`` does nothing when it is that turn already.

    To begin with, engines are asleep and every role is loaded: start engines, put them to sleep, then load the roles.
    """

    def __init__(self, roles: Sequence[str], *, active: bool, perform: Callable[[Action], Any]) -> None:
        """``active``: engines and trainers share GPUs. ``perform`` carries out one action on all processes, and waits."""
        self.roles = tuple(roles)
        self.active = active
        self.perform = perform
        self.resident = frozenset(roles)

    def take(self, turn: Turn) -> list[Action]:
        """Make ``turn`` possible; returns the actions, in order, after they are done."""
        if not self.active:
            return []
        wanted = needs(turn, self.roles)
        steps = actions(self.resident, wanted)
        for step in steps:
            self.perform(step)
        self.resident = wanted
        return steps


def on_cluster(engines: Sequence[Any], groups: Mapping[str, Any], timeout_seconds: float) -> Callable[[Action], None]:
    """``perform`` over Ray handles of engines and the worker group of each role."""
    from rlhf_trainer.placement.groups import gather

    def perform(action: Action) -> None:
        if action.target != "engine":
            groups[action.target].call(action.verb, action.target, timeout_seconds=timeout_seconds)
            return
        argument: Any = SLEEP_LEVEL if action.verb == "sleep" else [action.tag]
        refs = [getattr(engine, action.verb).remote(argument) for engine in engines]
        gather(refs, [f"engine {index}" for index in range(len(engines))], str(action), timeout_seconds)

    return perform
