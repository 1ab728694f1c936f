from __future__ import annotations

import pytest

from rlhf_api.spec import RolloutSpec
from rlhf_trainer.errors import DataError
from rlhf_trainer.rollout.sampling import budget, request_seed, requests
from rlhf_trainer.types import Prompt, PromptGroup


def group(length: int, group_id: int = 3) -> PromptGroup:
    return PromptGroup(group_id=group_id, prompt=Prompt(dataset="d", row=7, text="", ids=tuple(range(length))))


def spec(**fields: object) -> RolloutSpec:
    return RolloutSpec(**({"prompts_per_step": 1, "samples_per_prompt": 4, "max_new_tokens": 16} | fields))  # type: ignore[arg-type]


def test_seeds_are_stable_and_differ_by_job_group_and_sample() -> None:
    assert request_seed(42, 0, 0) == request_seed(42, 0, 0) == 640108759
    seeds = {request_seed(job, group_id, sample) for job in range(3) for group_id in range(50) for sample in range(8)}
    assert len(seeds) == 3 * 50 * 8
    assert all(0 <= seed < 2**31 - 1 for seed in seeds)


@pytest.mark.parametrize(("length", "room"), [(10, 16), (48, 16), (50, 14), (63, 1)])
def test_no_request_exceeds_the_window(length: int, room: int) -> None:
    made = requests(group(length), spec(), samples=2, seed=1, max_length=64)
    assert [request.sampling.max_tokens for request in made] == [room, room]
    assert budget(16, 64, length) == room


def test_prompt_without_room_is_a_data_error_that_names_the_row() -> None:
    with pytest.raises(DataError, match=r"data set d, row 7: a prompt of 64 tokens"):
        requests(group(64), spec(), samples=1, seed=1, max_length=64)


def test_requests_carry_tags_seeds_and_stops() -> None:
    made = requests(group(4), spec(stop=["END"], stop_token_ids=[5, 2]), samples=3, seed=9, max_length=64, eos_ids=(2, 8))
    assert [request.tag for request in made] == [(3, 0), (3, 1), (3, 2)]
    assert [request.sampling.seed for request in made] == [request_seed(9, 3, i) for i in range(3)]
    assert made[0].sampling.stop == ("END",)
    assert made[0].sampling.stop_token_ids == (5, 2, 8)


def test_greedy_requests_have_no_seed() -> None:
    evaluation = spec().model_copy(update={"temperature": 0.0})
    assert requests(group(4), evaluation, samples=1, seed=9, max_length=64)[0].sampling.seed is None
