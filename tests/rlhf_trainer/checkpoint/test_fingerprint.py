from rlhf_api.spec import RLHFJob
from rlhf_trainer.checkpoint.fingerprint import differences, fingerprint

BASE = {
    "rl": {"algorithm": "grpo", "rollout": {"temperature": 1.0}},
    "models": {"actor": {"path": "model"}},
    "data": {"datasets": [{"path": "a.jsonl"}]},
}


def prints(precision: str = "fp32", **changes) -> dict:
    raw = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "job"}, "spec": {**BASE, **changes}}
    return fingerprint(RLHFJob.model_validate(raw), precision)


def texts(saved: dict, current: dict) -> list[str]:
    return [str(difference) for difference in differences(saved, current)]


def test_equal_jobs_do_not_differ():
    assert texts(prints(), prints()) == []


def test_where_it_runs_and_what_it_keeps_may_change():
    changed = prints(
        checkpoint={"everySteps": 1, "keepLast": 9},
        logging={"tensorboard": False},
        placement={"rollout": {"engines": 2}, "colocate": "none"},
        evaluation={"datasets": [{"path": "b.jsonl"}]},
    )
    assert texts(prints(), changed) == []


def test_each_learning_field_counts_and_is_named_as_in_the_manifest():
    for changes, text in (
        ({"rl": {"algorithm": "grpo", "rollout": {"temperature": 0.7}}}, "spec.rl.rollout.temperature: saved with 1.0, now 0.7"),
        ({"rl": {"algorithm": "rloo", "rollout": {"temperature": 1.0}}}, 'spec.rl.algorithm: saved with "grpo", now "rloo"'),
        ({"models": {"actor": {"path": "other"}}}, 'spec.models.actor.path: saved with "model", now "other"'),
        ({"data": {"datasets": [{"path": "b.jsonl"}]}}, 'spec.data.datasets[0].path: saved with "a.jsonl", now "b.jsonl"'),
        ({"training": {"seed": 1}}, "spec.training.seed: saved with 42, now 1"),
        ({"training": {"epochs": 3}}, "spec.training.epochs: saved with 1, now 3"),
        ({"training": {"maxSteps": 3}}, "spec.training.maxSteps: saved with null, now 3"),
    ):
        assert texts(prints(), prints(**changes)) == [text]


def test_alias_is_used_where_python_needs_another_name():
    changed = prints(rl={"algorithm": "grpo", "rollout": {"temperature": 1.0}, "advantage": {"lambda": 0.5}})
    assert texts(prints(), changed) == ["spec.rl.advantage.lambda: saved with 1.0, now 0.5"]


def test_ranks_and_zero_stage_are_part_of_the_layout():
    saved = prints(placement={"actor": {"nodes": 1, "gpusPerNode": 2}})
    assert texts(saved, prints(placement={"actor": {"nodes": 2, "gpusPerNode": 1}})) == []
    fewer = prints(placement={"actor": {"nodes": 1, "gpusPerNode": 1}})
    assert texts(saved, fewer) == ["spec.placement.actor: saved with 2 ranks, now 1 rank"]
    assert texts(prints(), prints(training={"deepspeed": {"zeroStage": 3}})) == ["spec.training.deepspeed.zeroStage: saved with 2, now 3"]


def test_type_chosen_on_this_machine_counts():
    assert texts(prints("bf16"), prints("fp32")) == ['spec.training.precision: saved with "bf16", now "fp32"']


def test_switched_on_section_is_shown_as_a_whole():
    changed = prints(rl={"algorithm": "grpo", "rollout": {"temperature": 1.0}, "reward": {"overlong": {"bufferTokens": 8}}})
    (text,) = texts(prints(), changed)
    assert text.startswith('spec.rl.reward.overlong: saved with null, now {"bufferTokens": 8')


def test_added_data_set_is_a_difference():
    (text,) = texts(prints(), prints(data={"datasets": [{"path": "a.jsonl"}, {"path": "b.jsonl"}]}))
    assert text.startswith("spec.data.datasets: saved with [")


def test_field_of_a_newer_release_that_is_off_is_no_difference():
    saved = prints()
    del saved["spec.training"]["maxSteps"]
    assert texts(saved, prints()) == []
    assert texts(saved, prints(training={"maxSteps": 3})) == ["spec.training.maxSteps: saved with absent, now 3"]
