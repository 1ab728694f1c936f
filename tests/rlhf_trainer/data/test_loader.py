import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.spec import DataSpec
from rlhf_trainer.data.loader import PromptLoader, compare
from rlhf_trainer.errors import ConfigError
from rlhf_trainer.types import Prompt


def prompts_of(name: str, size: int, first: int = 0) -> list[Prompt]:
    return [Prompt(name, row, f"{name} {row}", (first + row,), label=row) for row in range(size)]


def loader_of(*sizes: int, weights: tuple[float, ...] = (), seed: int = 7, epochs: int | None = None, **data) -> PromptLoader:
    names = [f"set{index}" for index in range(len(sizes))]
    datasets = [{"path": f"{name}.jsonl", "weight": weight} for name, weight in zip(names, weights or (1.0,) * len(sizes), strict=True)]
    spec = DataSpec.model_validate({"datasets": datasets, **data})
    return PromptLoader({name: prompts_of(name, size) for name, size in zip(names, sizes, strict=True)}, spec, seed, epochs)


def drain(loader: PromptLoader, batch: int) -> list[list[tuple[str, int]]]:
    steps = []
    while groups := loader.take(batch):
        steps.append([(group.prompt.dataset, group.prompt.row) for group in groups])
    return steps


def test_rc29_ten_prompts_in_batches_of_four_lose_nothing():
    loader = loader_of(10, epochs=2)
    steps = drain(loader, 4)
    assert [len(step) for step in steps] == [4, 4, 2, 4, 4, 2]
    assert len(steps) == loader.total_steps(2, 4)
    for epoch in (steps[:3], steps[3:]):
        assert sorted(row for step in epoch for _, row in step) == list(range(10))


def test_rc29_fewer_prompts_than_a_batch():
    assert [len(step) for step in drain(loader_of(3, epochs=2), 8)] == [3, 3]


def test_order_depends_on_seed_and_epoch_only():
    first, second = drain(loader_of(20, epochs=2), 20)
    assert first != second
    assert drain(loader_of(20, epochs=2), 20) == [first, second]
    assert drain(loader_of(20, epochs=1, seed=8), 20) != [first]
    assert drain(loader_of(5, epochs=1, shuffle=False), 5) == [[("set0", row) for row in range(5)]]


def test_the_order_is_the_same_in_every_release():
    """Golden: a change here breaks the resume of every running job."""
    assert [row for _, row in drain(loader_of(8, epochs=1, seed=42), 8)[0]] == [4, 1, 3, 6, 0, 7, 2, 5]


@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 12), batch=st.integers(1, 7), epochs=st.integers(1, 3), stop=st.integers(0, 12), shuffle=st.booleans())
def test_rc11_resume_at_any_step_continues_the_same_sequence(size, batch, epochs, stop, shuffle):
    def make() -> PromptLoader:
        return loader_of(size, 3, weights=(1.0, 1.5), epochs=epochs, shuffle=shuffle)

    whole = make()
    expected = [whole.take(batch) for _ in range(whole.total_steps(epochs, batch))]
    assert whole.take(batch) == []
    before = make()
    done = [before.take(batch) for _ in range(min(stop, len(expected)))]
    state = json.loads(json.dumps(before.state_dict()))
    after = make()
    after.load_state_dict(state)
    rest = [after.take(batch) for _ in range(len(expected) - len(done))]
    assert done + rest == expected
    assert [group.group_id for step in expected for group in step] == list(range(whole.total_draws(epochs)))


def test_weights_give_whole_copies_and_a_part_drawn_anew():
    loader = loader_of(10, 4, weights=(2.3, 0.5), epochs=2)
    assert loader.draws_per_epoch == 23 + 2
    epochs = drain(loader, 25)
    for epoch in epochs:
        counts = Counter(epoch)
        assert sorted(count for (name, _), count in counts.items() if name == "set0") == [2] * 7 + [3] * 3
        assert sorted(count for (name, _), count in counts.items() if name == "set1") == [1] * 2
    parts = [{row for (name, row), count in Counter(epoch).items() if name == "set0" and count == 3} for epoch in epochs]
    assert parts[0] != parts[1]


def test_a_tiny_weight_still_draws_one():
    assert loader_of(10, 4, weights=(1.0, 0.001)).draws_per_epoch == 11


def test_rc53_equal_texts_with_other_labels_are_two_groups():
    twins = [Prompt("set0", 0, "same", (5,), label="a"), Prompt("set0", 1, "same", (5,), label="b")]
    groups = PromptLoader({"set0": twins}, DataSpec.model_validate({"datasets": [{"path": "x.jsonl"}]}), 0).take(2)
    assert {group.group_id for group in groups} == {0, 1}
    assert {group.prompt.label for group in groups} == {"a", "b"}


CHANGES = {
    "other file": lambda: loader_of(20),
    "fewer rows": lambda: loader_of(4),
    "two rows added": lambda: loader_of(12),
    "other seed": lambda: loader_of(10, seed=8),
    "other maxSamples": lambda: loader_of(10, maxSamples=10),
    "other filter": lambda: loader_of(10, maxLength=100),
    "other weight": lambda: loader_of(10, weights=(2.0,)),
    "no shuffle": lambda: loader_of(10, shuffle=False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_rc47_changed_data_is_refused_with_both_fingerprints(change):
    saved = loader_of(10)
    saved.take(6)
    other = CHANGES[change]()
    with pytest.raises(ConfigError) as caught:
        other.load_state_dict(saved.state_dict())
    text = str(caught.value)
    assert saved.fingerprint() in text
    assert other.fingerprint() in text
    assert "--fresh" in text
    assert "saved " in text


def test_rc47_same_rows_with_other_content_are_told_apart():
    spec = DataSpec.model_validate({"datasets": [{"path": "set0.jsonl"}]})
    one, two = (PromptLoader({"set0": prompts_of("set0", 3, first)}, spec, 0) for first in (0, 1))
    (difference,) = compare(one.fingerprint(), two.fingerprint())
    assert difference.startswith("datasets[0].sha256: saved ")
    assert compare(one.fingerprint(), one.fingerprint()) == []
