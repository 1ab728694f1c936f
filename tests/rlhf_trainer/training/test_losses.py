from __future__ import annotations

import numpy as np
import pytest
import torch

from rlhf_api.spec import ModelSpec
from rlhf_trainer.algorithms.aggregation import denominators
from rlhf_trainer.errors import JobError
from rlhf_trainer.models.heads import PolicyModel
from rlhf_trainer.models.load import load_actor
from rlhf_trainer.models.packing import pack
from rlhf_trainer.training.losses import actor_loss, critic_loss, merge

AGGREGATIONS = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "token-sum"]
FORMS = {"padded": {"packing": False}, "packed": {"share_prompt": False}, "shared prompt": {}}


def rl_of(make_job, **policy_loss):
    loss = {"entropyCoef": 0.01, **policy_loss}
    return make_job(rl={"policyLoss": loss, "kl": {"coef": 0.1}, "correction": {"mode": "clip"}, "rollout": {"temperature": 0.8}}).spec.rl


def gradients(root, rl, rows, micro_batches, form):
    module = PolicyModel(load_actor(ModelSpec(path="qwen2-tied"), root, torch.float32, "sdpa"))
    counted = denominators([row.mask for row in rows], rl.policy_loss.aggregation, 16)
    sums = []
    for micro in micro_batches:
        packed = pack(micro, **FORMS[form])
        logp, entropy = module(
            **packed.inputs(), targets=packed.targets, temperature=rl.rollout.temperature, want_entropy=True, entropy_gradient=True
        )
        result = actor_loss(logp, entropy, packed, micro, counted, rl.kl.coef, rl)
        result.loss.backward()
        sums.append(result.sums)
    return merge(sums), {name: parameter.grad for name, parameter in module.named_parameters()}


def cut(rows, parts):
    """Uneven micro-batches."""
    return [list(part) for part in np.array_split(np.array(rows, dtype=object), parts)] if parts > 1 else [rows]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_gradient_does_not_depend_on_accumulation_or_packing(model_root, make_job, make_training_rows, aggregation):
    rl, rows = rl_of(make_job, aggregation=aggregation), make_training_rows()
    expected_sums, expected = gradients(model_root, rl, rows, [rows], "padded")
    for form in FORMS:
        for parts in (1, 2, 4):
            sums, got = gradients(model_root, rl, rows, cut(rows, parts), form)
            for name, gradient in expected.items():
                torch.testing.assert_close(got[name], gradient, atol=1e-5, rtol=1e-5)
            assert sums == pytest.approx(expected_sums, rel=1e-4, abs=1e-4)


def test_masked_rows_and_empty_micro_batches_change_nothing(model_root, make_job, make_training_rows):
    rl, rows = rl_of(make_job), make_training_rows()
    masked = make_training_rows([[4, 4]], seed=1)
    for row in masked:
        row.mask = np.zeros_like(row.mask)
    _, expected = gradients(model_root, rl, rows, [rows], "shared prompt")
    for micro_batches in ([[*rows, *masked]], [rows, masked], [rows, []]):
        for form in FORMS:
            _, got = gradients(model_root, rl, rows, micro_batches, form)
            for name, gradient in expected.items():
                torch.testing.assert_close(got[name], gradient, atol=1e-6, rtol=1e-5)


def test_rc52_everything_masked_gives_zero_loss_and_finite_zero_gradients(model_root, make_job, make_training_rows):
    rl, rows = rl_of(make_job), make_training_rows()
    for row in rows:
        row.mask = np.zeros_like(row.mask)
    for aggregation in AGGREGATIONS:
        sums, got = gradients(model_root, rl_of(make_job, aggregation=aggregation), rows, [rows], "shared prompt")
        assert sums["loss"] == 0
        assert all(np.isfinite(value) for value in sums.values())
        assert all(bool((gradient == 0).all()) for gradient in got.values())
    assert rl.kl.coef > 0


def test_without_old_logprobs_the_forward_pass_is_the_old_policy(model_root, make_job, make_training_rows):
    rl = make_job(rl={"kl": {"coef": 0.0}}).spec.rl
    rows = make_training_rows()
    _, with_own = gradients(model_root, rl, rows, [rows], "padded")
    module = PolicyModel(load_actor(ModelSpec(path="qwen2-tied"), model_root, torch.float32, "sdpa"))
    packed = pack(rows)
    with torch.no_grad():
        logp, _ = module(**packed.inputs(), targets=packed.targets, temperature=1.0, want_entropy=False)
    for row, values in zip(rows, packed.scatter(rows, logp), strict=True):
        row.fields["old_logprobs"] = values
    _, explicit = gradients(model_root, rl, rows, [rows], "shared prompt")
    for row in rows:
        del row.fields["old_logprobs"]
    sums, absent = gradients(model_root, rl, rows, [rows], "shared prompt")
    assert sums["ratio_max"] == 1.0
    assert sums["approx_kl_sum"] == 0.0
    for name, gradient in explicit.items():
        torch.testing.assert_close(absent[name], gradient, atol=1e-6, rtol=1e-4)
        assert bool(torch.isfinite(with_own[name]).all())


def test_gradient_is_the_finite_difference_of_the_loss(model_root, make_job, make_training_rows):
    rl, rows = rl_of(make_job, clipLow=1.0, clipHigh=10.0), make_training_rows()
    counted = denominators([row.mask for row in rows], "token-mean")
    packed = pack(rows)
    logp = packed.to_rows(torch.full((len(packed.targets),), -4.9, dtype=torch.float64))[packed.mask].requires_grad_()
    entropy = torch.zeros(len(packed.targets), dtype=torch.float64)

    def loss(values):
        return actor_loss(values, entropy, packed, rows, counted, rl.kl.coef, rl).loss

    assert torch.autograd.gradcheck(loss, logp, eps=1e-6, atol=1e-6)


def test_non_finite_value_at_an_action_token_names_the_row(make_job, make_training_rows):
    rl, rows = rl_of(make_job), make_training_rows()
    packed = pack(rows)
    logp = torch.full((len(packed.targets),), -4.0)
    at = int(((packed.rows_of == 5) & (packed.columns == 1)).nonzero())
    logp[at] = float("nan")
    counted = denominators([row.mask for row in rows], "token-mean")
    with pytest.raises(JobError, match=r"nan at row 5 \(group 1\), position 1"):
        actor_loss(logp, logp.new_empty(0), packed, rows, counted, 0.0, rl)


def test_critic_loss_is_half_the_squared_error_of_the_step(make_job, make_training_rows):
    rl = make_job(rl={"valueLoss": {"clip": None}}).spec.rl
    rows = make_training_rows()
    packed = pack(rows)
    values = torch.zeros(len(packed.targets))
    counted = denominators([row.mask for row in rows], "token-mean")
    result = critic_loss(values, packed, rows, counted, rl)
    returns = np.concatenate([row.fields["returns"][row.mask] for row in rows]).astype(np.float64)
    assert float(result.loss) == pytest.approx(0.5 * np.mean(returns**2), rel=1e-6)
    assert result.sums["residual_square_sum"] == pytest.approx(np.sum(returns**2), rel=1e-6)


def test_merge_adds_sums_and_keeps_maxima():
    assert merge([{"a": 1.0, "b_max": 2.0}, {"a": 2.0, "b_max": -1.0}, {"a": 0.5}]) == {"a": 3.5, "b_max": 2.0}
