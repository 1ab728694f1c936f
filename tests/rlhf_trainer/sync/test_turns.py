from __future__ import annotations

from itertools import product
from typing import get_args

from rlhf_trainer.sync.turns import ENGINE, Action, Turn, Turns, actions, needs

ROLES = ("actor", "critic", "reference", "reward")
TURNS = get_args(Turn)


def walk(turns: Turns, *names: Turn) -> list[list[str]]:
    return [[str(action) for action in turns.take(name)] for name in names]


def test_order_of_a_step_lets_memory_fit() -> None:
    recorded: list[str] = []
    turns = Turns(("actor", "reference"), active=True, perform=lambda action: recorded.append(str(action)))
    first, rollout, experience, update, sync, again = walk(turns, "sync", "rollout", "experience", "update", "sync", "rollout")
    assert first == ["reference offload", "engine wake weights"]
    assert rollout == ["actor offload", "engine wake kv_cache"]
    assert experience == ["engine sleep", "actor onload", "reference onload"]
    assert update == ["reference offload"]
    assert sync == ["engine wake weights"]
    assert again == rollout
    assert recorded == [*first, *rollout, *experience, *update, *sync, *again]


def test_evaluation_and_checkpoint_after_a_sync_keep_the_engines_weights() -> None:
    turns = Turns(("actor",), active=True, perform=lambda action: None)
    steps = walk(turns, "sync", "rollout", "checkpoint", "rollout")
    assert steps[1:] == [
        ["actor offload", "engine wake kv_cache"],
        ["engine sleep", "actor onload"],
        ["actor offload", "engine wake weights", "engine wake kv_cache"],
    ]


def test_half_awake_engine_wakes_fully_before_it_sleeps() -> None:
    turns = Turns(("actor",), active=True, perform=lambda action: None)
    assert walk(turns, "sync", "checkpoint")[1] == ["engine wake kv_cache", "engine sleep"]


def test_a_turn_taken_twice_moves_nothing() -> None:
    turns = Turns(ROLES, active=True, perform=lambda action: None)
    assert walk(turns, "update", "update")[1] == []


def test_nothing_moves_where_nothing_is_shared() -> None:
    recorded: list[Action] = []
    turns = Turns(ROLES, active=False, perform=recorded.append)
    assert walk(turns, *TURNS) == [[]] * len(TURNS)
    assert recorded == []


def test_memory_is_given_back_before_it_is_taken() -> None:
    """For every pair of turns: nothing is released after something of the new turn was taken, and its needs are met."""
    for before, after in product(TURNS, TURNS):
        held, wanted = needs(before, ROLES), needs(after, ROLES)
        steps = actions(held, wanted)
        releases = [i for i, step in enumerate(steps) if step.verb in ("offload", "sleep")]
        takes = [i for i, step in enumerate(steps) if i > max(releases, default=-1)]
        assert all(steps[i].verb in ("wake", "onload") for i in takes)
        assert all(step.verb != "onload" for step in steps[: max(releases, default=0)])
        assert replay(held, steps) == wanted


def replay(held: frozenset[str], steps: list[Action]) -> frozenset[str]:
    now = set(held)
    for step in steps:
        if step.verb == "sleep":
            assert set(ENGINE) <= now, "a half-awake engine ignores sleep"
            now -= set(ENGINE)
        elif step.verb == "wake":
            now.add(f"engine {step.tag}")
        elif step.verb == "offload":
            now.remove(step.target)
        else:
            now.add(step.target)
    return frozenset(now)
