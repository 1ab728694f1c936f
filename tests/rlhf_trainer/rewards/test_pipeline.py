import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_api.spec import RewardSpec
from rlhf_trainer.errors import ConfigError, DataError
from rlhf_trainer.rewards.pipeline import RewardPipeline
from rlhf_trainer.types import Prompt, Rollout


def rollout_of(index: int, label: Any = "", text: str = "yes", **metadata: Any) -> Rollout:
    prompt = Prompt("sums", 10 + index, f"prompt {index}:", (1, 2), label=label, metadata=metadata)
    ids = np.array([1, 2, 5 + index], dtype=np.int32)
    mask = np.array([False, False, True])
    return Rollout(index // 2, index % 2, prompt, ids, mask, np.zeros(3, np.float32), np.full(3, -1, np.int32), "stop", False, text)


def rollouts_of(*labels: Any) -> list[Rollout]:
    return [rollout_of(index, label) for index, label in enumerate(labels)]


@pytest.fixture
def pipeline_of(tmp_path):
    made: list[RewardPipeline] = []

    def make(*bodies: str, scorer=None, sources: list[dict] | None = None, **function: Any) -> RewardPipeline:
        """One source a body; ``sources`` are further fields of each."""
        specs = []
        for index, body in enumerate(bodies):
            name = f"judge{index}.py"
            (tmp_path / name).write_text("def reward_func(queries, prompts, labels):\n" + textwrap.indent(textwrap.dedent(body), "    "))
            specs.append({"function": {"file": name, **function}, **(sources[index] if sources else {})})
        if scorer is not None:
            specs.append({"model": "reward", **(sources[-1] if sources else {})})
        made.append(RewardPipeline(RewardSpec.model_validate({"sources": specs}), tmp_path, scorer))
        return made[-1]

    yield make
    for pipeline in made:
        pipeline.close()


def values(pipeline: RewardPipeline, rollouts: list[Rollout]) -> list[float | None]:
    return [reward.value for reward in pipeline.score(rollouts)]


@pytest.fixture(scope="module")
def evaluating(tmp_path_factory):
    """Returns whatever the first label says."""
    folder = tmp_path_factory.mktemp("evaluating")
    (folder / "evaluating.py").write_text("import numpy\ndef reward_func(queries, prompts, labels):\n    return eval(labels[0])\n")
    pipeline = RewardPipeline(RewardSpec.model_validate({"sources": [{"function": {"file": "evaluating.py"}}]}), folder, None)
    yield pipeline
    pipeline.close()


FLOATS = "return [float(label) for label in labels]"


def test_rewards_scores_and_logs_of_one_function(pipeline_of):
    pipeline = pipeline_of("return {'rewards': [1, 2], 'scores': [0, 1], 'extra_logs': {'length': [3, None], 'step': 7}}")
    pipeline.start()
    first, second = pipeline.score(rollouts_of("", ""))
    assert (first.value, first.score, first.parts, first.extra_logs) == (1.0, 0.0, {"judge0": 1.0}, {"length": 3.0, "step": 7.0})
    assert second.extra_logs == {"step": 7.0}


def test_scores_default_to_rewards(pipeline_of):
    assert [reward.score for reward in pipeline_of(FLOATS).score(rollouts_of("0.5", "2"))] == [0.5, 2.0]


def test_weighted_sum_of_applicable_sources(pipeline_of):
    pipeline = pipeline_of("return [1.0, None, 3.0]", "return [10.0, 20.0, None]", sources=[{"weight": 2.0}, {"weight": -0.5}])
    rewards = pipeline.score(rollouts_of("", "", ""))
    assert [reward.value for reward in rewards] == [2.0 - 5.0, -10.0, 6.0]
    assert rewards[1].parts == {"judge0": None, "judge1": 20.0}
    assert pipeline.counts["not_applicable"] == 2


def test_explicit_scores_of_several_sources_are_averaged_by_weight(pipeline_of):
    pipeline = pipeline_of(
        "return {'rewards': [5], 'scores': [1]}",
        "return {'rewards': [5], 'scores': [0]}",
        "return [100]",
        sources=[{"weight": 3.0}, {"weight": -1.0}, {}],
    )
    assert pipeline.score(rollouts_of(""))[0].score == 0.75


def test_reward_model_as_a_source(pipeline_of):
    pipeline = pipeline_of(FLOATS, scorer=lambda rollouts: [len(r.ids) for r in rollouts], sources=[{}, {"weight": 0.1}])
    (reward,) = pipeline.score(rollouts_of("1"))
    assert reward.value == pytest.approx(1.3)
    assert reward.parts == {"judge0": 1.0, "model": 3.0}


def test_reward_model_faults_are_named(pipeline_of):
    with pytest.raises(DataError, match="gave nan for row 10 of sums"):
        pipeline_of(scorer=lambda rollouts: [float("nan")]).score(rollouts_of(""))
    with pytest.raises(DataError, match="gave 1 scores for 2 rollouts"):
        pipeline_of(scorer=lambda rollouts: [1.0]).score(rollouts_of("", ""))


def test_columns_reach_the_function_by_name(tmp_path):
    (tmp_path / "judge.py").write_text(
        "def reward_func(level, answer, completions, response_ids, finish_reasons, truncated, metadata):\n"
        "    assert metadata == [{'level': 3}] and finish_reasons == ['stop'] and truncated == [False] and completions == ['yes']\n"
        "    return [level[0] * 100 + int(answer[0]) * 10 + response_ids[0][0]]\n"
    )
    spec = RewardSpec.model_validate({"sources": [{"function": {"file": "judge.py"}}]})
    pipeline = RewardPipeline(spec, tmp_path, None, label_key="answer")
    try:
        assert values(pipeline, [rollout_of(0, "4", level=3)]) == [345.0]
    finally:
        pipeline.close()


@pytest.mark.parametrize(
    ("returned", "received"),
    [
        ("[1.0]", "a list of 1"),
        ("1.0", r"a single float \(1.0\)"),
        ("[1.0] * 7", "a list of 7"),
        ("[1.0] * 9", "a list of 9"),
        ("[]", "a list of 0"),
        ("{'reward': [1.0] * 8}", "without the key 'rewards'"),
        ("{'rewards': [1.0] * 8, 'scores': [1.0]}", "scores of reward_func: .*a list of 1"),
    ],
)
def test_rc08_wrong_count_stops_the_step(evaluating, returned, received):
    with pytest.raises(DataError, match=received) as caught:
        evaluating.score(rollouts_of(returned, *[""] * 7))
    assert "evaluating.py" in str(caught.value)
    if "key" not in received:
        assert "expected 8 numbers" in str(caught.value)


@pytest.mark.parametrize("on_error", ["zero", "drop"])
def test_rc08_wrong_count_is_never_tolerated(pipeline_of, on_error):
    with pytest.raises(DataError, match=r"expected 8 numbers.*a list of 1"):
        pipeline_of("return [1.0]", onError=on_error).score(rollouts_of(*[""] * 8))


def test_rc08_arrays_and_lists_give_the_same_numbers(evaluating):
    expected = [float(index) for index in range(8)]
    for returned in ("list(range(8))", "numpy.arange(8)", "numpy.arange(8).reshape(1, 8)"):
        assert values(evaluating, rollouts_of(returned, *[""] * 7)) == expected


BAD_ROW = "return [1 / int(label) for label in labels]"


def test_failing_row_is_named_with_file_line_and_traceback(pipeline_of):
    with pytest.raises(DataError) as caught:
        pipeline_of(BAD_ROW).score(rollouts_of("1", "2", "0", "4"))
    text = str(caught.value)
    for part in ("spec.rl.reward.sources[0].function", "judge0.py, line 2: ZeroDivisionError", "row 12 of sums", "Traceback"):
        assert part in text


@pytest.mark.parametrize(("on_error", "bad", "count"), [("zero", 0.0, "zeroed"), ("drop", None, "dropped")])
def test_one_bad_row_does_not_poison_the_batch(pipeline_of, on_error, bad, count):
    pipeline = pipeline_of(BAD_ROW, onError=on_error)
    assert values(pipeline, rollouts_of("1", "0", "4")) == [1.0, bad, 0.25]
    assert pipeline.counts == {"errors": 1, count: 1}


NOTHING = {"errors": 0, "timeouts": 0, "zeroed": 0, "dropped": 0, "unscored": 0}


def test_facts_of_a_batch_are_those_of_the_last_training_call(pipeline_of):
    pipeline = pipeline_of(BAD_ROW, onError="zero")
    assert pipeline.last_batch == NOTHING
    pipeline.score(rollouts_of("0", "0", "4"))
    assert pipeline.last_batch == NOTHING | {"errors": 2, "zeroed": 2}
    pipeline.score(rollouts_of("0"), update_statistics=False)
    assert pipeline.last_batch == NOTHING | {"errors": 2, "zeroed": 2}
    assert pipeline.counts == {"errors": 2, "zeroed": 2}
    pipeline.score(rollouts_of("1"))
    assert pipeline.last_batch == NOTHING
    assert pipeline.counts == {"errors": 2, "zeroed": 2}


def test_a_rollout_is_zeroed_once_and_errors_count_by_source(pipeline_of):
    pipeline = pipeline_of(BAD_ROW, BAD_ROW, onError="zero")
    pipeline.score(rollouts_of("0", "1"))
    assert pipeline.last_batch == NOTHING | {"errors": 2, "zeroed": 1}


def test_fault_that_no_row_shows_alone_names_the_batch(pipeline_of):
    with pytest.raises(DataError, match=r"only together.*Row: the batch that begins with row 10 of sums"):
        pipeline_of("if len(labels) > 1: raise ValueError('only together')\nreturn [1.0]").score(rollouts_of("", ""))


def test_numbers_that_are_not_finite_name_file_and_row(pipeline_of):
    failing, dropping = pipeline_of(FLOATS), pipeline_of(FLOATS, onError="drop")
    for number in ("nan", "inf", "-inf"):
        with pytest.raises(DataError, match=rf"judge\d.py: reward_func returned {number}. Row: row 11 of sums"):
            failing.score(rollouts_of("1", number))
        assert values(dropping, rollouts_of("1", number)) == [1.0, None]


def test_rc19_hanging_row_costs_its_own_reward_only(pipeline_of):
    pipeline = pipeline_of("while 'hang' in labels: pass\nreturn [1.0] * len(labels)", timeoutSeconds=1.0, onError="zero")
    assert values(pipeline, rollouts_of("", "hang", "")) == [1.0, 0.0, 1.0]
    assert pipeline.counts == {"timeouts": 1, "zeroed": 1}


def test_rc19_hanging_reward_fails_with_file_row_and_limit(pipeline_of):
    with pytest.raises(DataError, match=r"judge0.py: .*took longer than 0.\d+ s and was stopped. Row: row 11 of sums"):
        pipeline_of("while 'hang' in labels: pass\nreturn [1.0] * len(labels)", timeoutSeconds=0.8).score(rollouts_of("", "hang"))


def test_rc67_unscored_is_not_zero(pipeline_of):
    body = "return [None if label == 'never' else -1.0 for label in labels]"
    rollouts = rollouts_of("never", "tried")
    with pytest.raises(DataError, match="no source scores row 10 of sums"):
        pipeline_of(body).score(rollouts)
    dropping = pipeline_of(body, onError="drop")
    assert values(dropping, rollouts) == [None, -1.0]
    assert dropping.counts == {"not_applicable": 1, "unscored": 1, "dropped": 1}
    zeroing = pipeline_of(body, onError="zero")
    assert values(zeroing, rollouts) == [0.0, -1.0]
    assert zeroing.counts["unscored"] == 1


def test_normalize_uses_running_statistics_and_keeps_raw_scores(pipeline_of):
    pipeline = pipeline_of(FLOATS, sources=[{"normalize": True}])
    rewards = pipeline.score(rollouts_of("1", "3"))
    assert [(reward.value, reward.score, reward.parts["judge0"]) for reward in rewards] == [(-1.0, 1.0, 1.0), (1.0, 3.0, 3.0)]
    held_out = pipeline.score(rollouts_of("4"), update_statistics=False)
    assert held_out[0].value == 2.0
    resumed = pipeline_of(FLOATS, sources=[{"normalize": True}])
    resumed.load_state_dict(pipeline.state_dict())
    assert values(resumed, rollouts_of("5", "6")) == values(pipeline, rollouts_of("5", "6"))


def test_two_functions_of_one_file_have_two_names(tmp_path):
    (tmp_path / "judge.py").write_text("def a(queries): return [1.0]\ndef b(queries): return [2.0]\n")
    sources = [{"function": {"file": "judge.py", "name": name}} for name in ("a", "b", "a")]
    pipeline = RewardPipeline(RewardSpec.model_validate({"sources": sources}), tmp_path, None)
    try:
        assert pipeline.score(rollouts_of(""))[0].parts == {"judge.a": 1.0, "judge.b": 2.0, "judge.a-2": 1.0}
    finally:
        pipeline.close()


def test_missing_file_names_the_nearest(tmp_path):
    (tmp_path / "reward.py").write_text("")
    spec = RewardSpec.model_validate({"sources": [{"function": {"file": "rewards.py"}}]})
    with pytest.raises(DataError, match=r"sources\[0\].function.file: 'rewards.py'(.|\n)*Nearest: reward.py"):
        RewardPipeline(spec, Path(tmp_path), None)


def test_a_job_without_a_usable_source_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="needs a source"):
        RewardPipeline(RewardSpec(), tmp_path, None)
    with pytest.raises(ConfigError, match="no reward model"):
        RewardPipeline(RewardSpec.model_validate({"sources": [{"model": "reward"}]}), tmp_path, None)
