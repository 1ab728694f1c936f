from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from rlhf_trainer.algorithms.aggregation import denominators
from rlhf_trainer.errors import ConfigError, JobError
from rlhf_trainer.training import state
from rlhf_trainer.training.batching import plan

STAGES = [0, 1, 2, 3]
FP32 = [(stage, "fp32") for stage in STAGES]
RESUMES = [*FP32, (0, "bf16"), pytest.param(1, "bf16", marks=pytest.mark.slow), (2, "bf16")]
MOVES = [*FP32, (0, "bf16"), (2, "bf16"), (3, "bf16")]
EXPORTS = [("qwen2-tied", 0), ("qwen2-untied", 0), ("llama-tied", 2), ("llama-untied", 2), ("qwen2-tied", 3), ("llama-untied", 3)]
RL = {"policyLoss": {"entropyCoef": 0.01}, "kl": {"coef": 0.1}}


def counted(rows):
    return denominators([row.mask for row in rows], "token-mean")


def update(worker, rows, rl, *, micro_batch_size=4, learning_rate=0.05):
    micro_batches = plan(rows, 1, micro_batch_size=micro_batch_size)[0]
    return worker.update_actor(micro_batches, counted(rows), rl.kl.coef, learning_rate, rl)


def assert_close(got, expected, tolerance=1e-5):
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(got[name], tensor, atol=tolerance, err_msg=name)


def moved(before, after):
    return max(float(np.abs(after[name] - before[name]).max()) for name in before)


def test_zero_stages_agree_for_any_number_of_micro_batches(make_job, worker_of, weights, make_training_rows):
    rows = make_training_rows()
    results = []
    for stage in STAGES:
        for micro_batch_size in (12, 3):
            job = make_job(stage=stage, rl=RL, maxGradNorm=0.5)
            worker = worker_of(job, "actor")
            before = weights(worker)
            stats = [update(worker, rows, job.spec.rl, micro_batch_size=micro_batch_size) for _ in range(2)]
            after = weights(worker)
            assert moved(before, after) > 1e-3
            results.append((stats, after))
    for stats, after in results[1:]:
        for got, expected in zip(stats, results[0][0], strict=True):
            assert got["grad_norm"] > 0.5
            assert got == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert_close(after, results[0][1])


def test_two_ranks_equal_one(make_job, worker_of, weights, make_training_rows, run_ranks, tmp_path):
    """Stages 0, 2 and 3 in one pair of processes; one rank starts with an empty micro-batch, and one step has no action token."""
    rows = make_training_rows()
    rl = make_job(rl=RL).spec.rl
    jobs = [make_job(stage=stage, rl=RL) for stage in (0, 2, 3)]
    split = plan(rows, 2, micro_batch_size=2)
    split[1].insert(0, [])
    split[0].append([])
    calls = [
        [
            ("update_actor", (micro, counted(rows), 0.1, 0.05, rl)),
            ("update_actor", ([[], []], denominators([], "token-mean"), 0.1, 0.05, rl)),
            ("update_actor", (micro, counted(rows), 0.1, 0.05, rl)),
            ("weights", ("actor",)),
            ("save", ("actor", str(tmp_path / "two"))),
        ]
        for micro in split
    ]
    ranks = run_ranks(jobs, ("actor",), calls)
    single = worker_of(make_job(rl=RL), "actor")
    first, second = update(single, rows, rl), update(single, rows, rl)
    expected = weights(single)
    for per_job in zip(*ranks, strict=True):
        for rank in per_job:
            assert_close(rank[3], expected)
            assert rank[0]["grad_norm"] == pytest.approx(first["grad_norm"], rel=1e-5)
        for number, one in ((0, first), (2, second)):
            assert sum(rank[number]["loss"] for rank in per_job) == pytest.approx(one["loss"], abs=1e-5)
            assert sum(rank[number]["tokens"] for rank in per_job) == one["tokens"]
    with pytest.raises(ConfigError, match=r"spec\.placement\.actor.*2 ranks, ZeRO stage 2.*1 ranks, ZeRO stage 2"):
        worker_of(jobs[1], "actor", resume=str(tmp_path / "two-1"))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_two_ranks_resume_bit_for_bit(make_job, make_training_rows, run_ranks, tmp_path, stage):
    rows, job = make_training_rows(), make_job(stage=stage, rl=RL, optimizer={"eps": 1e-8})
    folder = str(tmp_path / "two")
    calls = []
    for micro in plan(rows, 2, micro_batch_size=2):
        step = ("update_actor", (micro, counted(rows), 0.1, 0.05, job.spec.rl))
        reload = ("load", ("actor", 10, f"{folder}-0"))
        calls.append([step, ("save", ("actor", folder)), step, ("weights", ("actor",)), reload, step, ("weights", ("actor",))])
    for (results,) in run_ranks([job], ("actor",), calls):
        assert results[5] == results[2]
        assert all(np.array_equal(results[6][name], results[3][name]) for name in results[3])


@pytest.mark.parametrize("stage", STAGES)
def test_rc52_step_without_action_tokens_moves_nothing(make_job, worker_of, weights, make_training_rows, stage):
    rows = make_training_rows()
    for row in rows:
        row.mask = np.zeros_like(row.mask)
    job = make_job(stage=stage, rl=RL)
    worker = worker_of(job, "actor")
    before = weights(worker)
    stats = update(worker, rows, job.spec.rl)
    assert (stats["loss"], stats["grad_norm"]) == (0.0, 0.0)
    assert moved(before, weights(worker)) == 0


def test_non_finite_gradient_stops_before_the_weights_move(make_job, worker_of, weights, make_training_rows):
    job = make_job(rl=RL)
    worker = worker_of(job, "actor")
    before = weights(worker)
    rows = make_training_rows()
    rows[0].fields["advantages"][rows[0].mask] = 3e38
    with pytest.raises(JobError, match=r"gradient norm is|is inf|is nan"):
        update(worker, rows, job.spec.rl)
    assert moved(before, weights(worker)) == 0


def test_weight_decay_spares_norms_and_biases(make_job, worker_of, weights, make_training_rows):
    rows = make_training_rows()
    for row in rows:
        row.fields = {"advantages": np.zeros(len(row.mask), np.float32)}
    job = make_job(rl={"policyLoss": {"entropyCoef": None}})
    worker = worker_of(job, "actor")
    before = weights(worker)
    update(worker, rows, job.spec.rl, learning_rate=0.5)
    after = weights(worker)
    for name, tensor in before.items():
        decay = 0.5 * 0.1 if tensor.ndim == 2 else 0.0
        np.testing.assert_allclose(after[name], tensor * (1 - decay), rtol=1e-5)


def test_forward_passes_do_not_depend_on_micro_batches(make_job, worker_of, make_training_rows):
    rows = make_training_rows()
    worker = worker_of(make_job(), "actor")
    whole = sorted(worker.logprobs("actor", [rows], 0.7, True))
    for micro_batch_size in (1, 3):
        parts = sorted(worker.logprobs("actor", plan(rows, 1, micro_batch_size=micro_batch_size)[0], 0.7, True))
        for (row_id, logp, entropy), (other_id, other_logp, other_entropy) in zip(whole, parts, strict=True):
            assert row_id == other_id
            np.testing.assert_allclose(other_logp, logp, atol=2e-6)
            np.testing.assert_allclose(other_entropy, entropy, atol=2e-6)
            assert (logp[~rows[row_id].mask] == 0).all()


def test_gradient_checkpointing_changes_nothing(make_job, worker_of, weights, make_training_rows):
    rows = make_training_rows()
    after = []
    for stage, checkpointing in ((0, False), (0, True), (3, True)):
        job = make_job(stage=stage, rl=RL, gradientCheckpointing=checkpointing)
        worker = worker_of(job, "actor")
        update(worker, rows, job.spec.rl)
        after.append(weights(worker))
    assert_close(after[1], after[0], 1e-6)
    assert_close(after[2], after[0], 1e-5)


def test_frozen_roles_answer_alike_whole_and_sharded(make_job, worker_of, make_training_rows):
    rows = make_training_rows()
    models = {"reward": {"path": "value"}}
    answers = []
    for stage in (0, 3):
        worker = worker_of(make_job(stage=stage, models=models), "reference", "reward")
        logp = np.concatenate([values for _, values, _ in worker.logprobs("reference", [rows, []], 1.0)])
        answers.append((logp, [score for _, score in worker.scores("reward", [rows])]))
    np.testing.assert_allclose(answers[1][0], answers[0][0], atol=1e-6)
    np.testing.assert_allclose(answers[1][1], answers[0][1], atol=1e-6)


def test_critic_learns_its_returns(make_job, worker_of, make_training_rows):
    rows = make_training_rows()
    job = make_job(
        rl={"algorithm": "grpo", "advantage": {"estimator": "gae"}, "valueLoss": {"clip": None}},
        models={"critic": {"path": "qwen2-tied"}},
        optimizer={"eps": 1e-8},
    )
    worker = worker_of(job, "critic")
    first = worker.values("critic", [rows])
    assert all((values == 0).all() for _, values in first)
    losses = [worker.update_critic([rows[:5], rows[5:]], counted(rows), 3e-3, job.spec.rl)["loss"] for _ in range(20)]
    assert losses[-1] < 0.5 * losses[0]


def test_rc02_reward_model_reads_at_an_appended_eos_that_no_row_keeps(make_job, worker_of, model_root, make_training_rows):
    rows = make_training_rows([[3, 5]])
    rows[1].ids[-1] = 3  # this one ended by itself
    before = [row.ids.copy() for row in rows]
    worker = worker_of(make_job(models={"reward": {"path": "value"}}), "reward")
    scores = dict(worker.scores("reward", [rows, []]))
    reference = AutoModelForSequenceClassification.from_pretrained(model_root / "value", num_labels=1).eval()
    for row in rows:
        ids = [*row.ids.tolist(), *([3] if row.ids[-1] != 3 else [])]
        with torch.no_grad():
            hidden = reference.base_model(torch.tensor([ids])).last_hidden_state[0, -1]
            expected = float(reference.score(hidden))
        assert scores[row.row_id] == pytest.approx(expected, abs=1e-6)
    assert all((row.ids == ids).all() for row, ids in zip(rows, before, strict=True))


@pytest.mark.parametrize(("name", "stage"), EXPORTS)
def test_rc23_exported_folder_loads_with_the_trained_logits(make_job, worker_of, make_training_rows, tmp_path, stage, name):
    from safetensors import safe_open

    rows = make_training_rows()
    job = make_job(name, stage=stage, rl=RL)
    worker = worker_of(job, "actor")
    update(worker, rows, job.spec.rl)
    worker.export_hf("actor", str(tmp_path / "final"))
    with safe_open(tmp_path / "final" / "model.safetensors", "pt") as file:
        assert ("lm_head.weight" in file.keys()) is name.endswith("untied")  # noqa: SIM118 - not a mapping
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "final").eval()
    assert model.config.use_cache
    ids = torch.from_numpy(rows[1].ids.astype(np.int64))[None]
    with torch.no_grad():
        logp = model(ids).logits[0, :-1].float().log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0].numpy()
    ((_, got, _),) = worker.logprobs("actor", [[rows[1]]], 1.0)
    np.testing.assert_allclose(got[rows[1].mask], logp[rows[1].mask], atol=2e-6)
    assert AutoTokenizer.from_pretrained(tmp_path / "final").decode([8]) == "#"
    assert json.loads((tmp_path / "final" / "generation_config.json").read_text())["eos_token_id"] == 3


def test_exported_critic_is_a_sequence_classification_folder(make_job, worker_of, weights, tmp_path):
    worker = worker_of(make_job(models={"critic": {"path": "value"}}), "critic")
    worker.export_hf("critic", str(tmp_path / "critic"))
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "critic")
    assert model.config.num_labels == 1
    np.testing.assert_array_equal(model.score.weight.detach().numpy(), weights(worker, "critic")["score.weight"])


@pytest.mark.parametrize(
    ("stage", "precision"), [(0, "fp32"), (1, "fp32"), (2, "fp32"), (3, "fp32"), (0, "bf16"), (1, "bf16"), (2, "bf16")]
)
def test_resume_continues_bit_for_bit(make_job, worker_of, weights, make_training_rows, tmp_path, stage, precision):
    rows, job = make_training_rows(), make_job(stage=stage, precision=precision, rl=RL, optimizer={"eps": 1e-8})
    worker = worker_of(job, "actor")
    update(worker, rows, job.spec.rl)
    worker.save("actor", str(tmp_path / "early"))
    expected_stats = update(worker, rows, job.spec.rl)
    expected = weights(worker)
    torch.manual_seed(7)
    again = worker_of(job, "actor", resume=str(tmp_path / "early"))
    assert update(again, rows, job.spec.rl) == expected_stats
    after = weights(again)
    assert all(np.array_equal(after[name], expected[name]) for name in expected)
    assert again.roles["actor"].updates == 2


@pytest.mark.parametrize("stage", [2, 3])
def test_rc73_the_checkpoint_asked_for_is_the_one_loaded(make_job, worker_of, weights, make_training_rows, tmp_path, stage):
    rows, job = make_training_rows(), make_job(stage=stage, rl=RL)
    worker = worker_of(job, "actor")
    update(worker, rows, job.spec.rl)
    early = weights(worker)
    worker.save("actor", str(tmp_path / "early"))
    update(worker, rows, job.spec.rl)
    worker.save("actor", str(tmp_path / "late"))
    (tmp_path / "early" / "latest").write_text("nowhere")
    got = weights(worker_of(job, "actor", resume=str(tmp_path / "early")))
    assert all(np.array_equal(got[name], early[name]) for name in early)


def test_rc73_weights_of_another_checkpoint_are_noticed(make_job, worker_of, make_training_rows, tmp_path):
    rows, job = make_training_rows(), make_job(rl=RL)
    worker = worker_of(job, "actor")
    worker.save("actor", str(tmp_path / "early"))
    update(worker, rows, job.spec.rl)
    worker.save("actor", str(tmp_path / "late"))
    name = "mp_rank_00_model_states.pt"
    (tmp_path / "early" / "state" / name).write_bytes((tmp_path / "late" / "state" / name).read_bytes())
    with pytest.raises(JobError, match="after 1 updates, the checkpoint is of 0"):
        worker_of(job, "actor", resume=str(tmp_path / "early"))


def test_rc22_another_layout_is_refused_with_both(make_job, worker_of, tmp_path):
    worker = worker_of(make_job(stage=2), "actor")
    worker.save("actor", str(tmp_path))
    with pytest.raises(ConfigError, match=r"zeroStage.*1 ranks, ZeRO stage 2, float32.*1 ranks, ZeRO stage 3, float32"):
        worker_of(make_job(stage=3), "actor", resume=str(tmp_path))
    saved = state.read_layout(tmp_path)
    wanted = state.Layout(role="actor", world_size=4, zero_stage=2, dtype="float32", updates=0)
    with pytest.raises(ConfigError, match=r"spec\.placement\.actor.*1 ranks.*4 ranks"):
        state.check_layout(saved, wanted, tmp_path)


@pytest.mark.parametrize(
    ("stage", "precision"), [(0, "fp32"), (1, "fp32"), (2, "fp32"), (3, "fp32"), (0, "bf16"), (2, "bf16"), (3, "bf16")]
)
def test_rc74_states_survive_a_move_bit_for_bit(make_job, worker_of, weights, make_training_rows, stage, precision):
    """The moves themselves, on the CPU: two parameter groups, called between steps."""
    rows, job = make_training_rows(), make_job(stage=stage, precision=precision, rl=RL)
    after = []
    for sleeps in (False, True):
        worker = worker_of(job, "actor")
        update(worker, rows, job.spec.rl)
        if sleeps:
            before = weights(worker)
            engine = worker.roles["actor"].training
            engine.offload()
            engine.onload()
            assert moved(before, weights(worker)) == 0
        stats = update(worker, rows, job.spec.rl)
        after.append((stats, weights(worker)))
    assert after[0][0] == after[1][0]
    assert all(np.array_equal(after[0][1][name], after[1][1][name]) for name in after[0][1])


def test_rc74_unsupported_moves_are_refused_at_load(make_job, model_root):
    from rlhf_trainer.training.worker import ModelWorker, WorkerSettings

    job = make_job(stage=1, precision="bf16")
    worker = ModelWorker(WorkerSettings(job=job, base_dir=str(model_root), roles=("actor",), rank=0, world_size=1, offloads=True))
    with pytest.raises(ConfigError, match=r"zeroStage: 1 with bf16.*Nearest: zeroStage: 2"):
        worker.load("actor")


def test_offload_on_the_cpu_says_that_there_is_nothing_to_move(make_job, worker_of):
    worker = worker_of(make_job(), "actor", "reference")
    for role in ("actor", "reference"):
        assert "host memory" in worker.offload(role)
        assert worker.onload(role) == "on its device already"


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("name", ["llama-tied", "llama-untied"])
def test_buckets_hold_every_tensor_once_within_their_size(make_job, worker_of, stage, name):
    worker = worker_of(make_job(name, stage=stage), "actor")
    limit = 20_000
    seen = []
    for bucket in worker.iter_buckets("actor", limit):
        size = sum(tensor.numel() * tensor.element_size() for _, tensor in bucket)
        assert size <= limit or len(bucket) == 1
        seen += [(key, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for key, tensor in bucket]
    assert seen == worker.weight_metadata("actor")
    assert ("lm_head.weight" in {key for key, _, _ in seen}) is name.endswith("untied")


def test_bf16_keeps_fp32_master_weights_at_every_stage(make_job, worker_of, weights, make_training_rows):
    """Steps far below the spacing of bf16 must add up."""
    rows = make_training_rows()
    results = []
    for stage in STAGES:
        job = make_job(stage=stage, precision="bf16", rl=RL, optimizer={"eps": 1e-8})
        worker = worker_of(job, "actor")
        before = weights(worker)
        for _ in range(3):
            update(worker, rows, job.spec.rl, micro_batch_size=12, learning_rate=2e-3)
        results.append({name: tensor - before[name] for name, tensor in weights(worker).items()})
    for other in results[1:]:
        assert_close(other, results[0], 4e-3)
    norm = "model.layers.0.input_layernorm.weight"
    assert np.abs(results[0][norm]).max() > 0
