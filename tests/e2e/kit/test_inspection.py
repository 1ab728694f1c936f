import json

import pytest

from e2e.kit.inspection import Event, Folder, overlaps, parse, repeated


def folder(*events: tuple[int, int, int]) -> Folder:
    """Of (second, attempt, step)."""
    made = [Event(f"2026-11-29T10:00:{second:02}.000Z", attempt, "step", step) for second, attempt, step in events]
    return Folder("", [], made, {}, [], None)


@pytest.mark.parametrize(
    ("events", "times_repeated", "num_overlaps"),
    [
        pytest.param([(1, 1, 1), (2, 1, 2)], 0, 0, id="one attempt"),
        pytest.param([(1, 1, 1), (2, 1, 2), (3, 1, 3), (9, 2, 3), (10, 2, 4)], 1, 0, id="one step lost"),
        pytest.param([(1, 1, 1), (2, 1, 2), (9, 2, 3)], 0, 0, id="nothing lost"),
        pytest.param([(1, 1, 1), (3, 1, 3), (2, 2, 2), (4, 2, 3)], 1, 1, id="the second began before the first ended"),
        pytest.param([(1, 1, 1), (2, 2, 1), (3, 1, 2), (4, 2, 2)], 2, 4, id="both at once"),
    ],
)
def test_the_log_tells_steps_made_twice_and_trainers_alive_at_once(
    events: list[tuple[int, int, int]], times_repeated: int, num_overlaps: int
) -> None:
    found = folder(*events)
    assert (repeated(found), len(overlaps(found))) == (times_repeated, num_overlaps)


def test_what_a_pod_prints_is_read_behind_other_output() -> None:
    answer = {
        "weights": "ab", "metrics": [{"step": 1, "actor/loss": 0.5}, {"step": 2, "actor/loss": None}], "claim": None,
        "events": [{"time": "2026-11-29T10:00:01Z", "attempt": 1, "event": "step", "step": 1}],
        "checkpoints": ["step-000001"], "loaded": None,
    }  # fmt: skip
    found = parse("a warning of some library\n" + json.dumps(answer) + "\n")
    assert (found.weights, found.claim, found.steps(1), found.series("actor/loss")) == ("ab", {}, [1], [0.5])
