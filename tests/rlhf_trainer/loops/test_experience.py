"""From rollouts to training rows: where advantages land, what is left out of the backward pass, which forwards are needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlhf_api.resolve import derive, resolve
from rlhf_api.spec import RLHFJob, RlSpec
from rlhf_trainer.loops.experience import attach_advantages, carries_gradient, needs_old_logprobs
from rlhf_trainer.loops.outputs import evaluation_metrics
from rlhf_trainer.loops.step_metrics import explained_variance, rollout_metrics, throughput, update_metrics
from rlhf_trainer.types import Prompt, Reward, Rollout, token_row


def rl_spec(algorithm: str = "grpo", **rl: Any) -> RlSpec:
    raw = {
        "apiVersion": "rlhf.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": "x"},
        "spec": {
            "rl": {"algorithm": algorithm, "reward": {"sources": [{"function": {"file": "r.py"}}]}, **rl},
            "models": {"actor": {"path": "a"}},
            "data": {"datasets": [{"path": "d.jsonl"}]},
        },
    }
    return derive(RLHFJob.model_validate(resolve(raw))).spec.rl


def rollout(group: int, sample: int, response: int, *, prompt: int = 3, truncated: bool = False) -> Rollout:
    length = prompt + response
    mask = np.arange(length) >= prompt
    return Rollout(
        group_id=group,
        sample_index=sample,
        prompt=Prompt("d", group, "p", tuple(range(prompt))),
        ids=np.arange(length, dtype=np.int32),
        action_mask=mask,
        engine_logprobs=np.where(mask, np.float32(-0.5), np.float32(0)),
        weight_version=np.where(mask, 0, -1).astype(np.int32),
        finish_reason="length" if truncated else "stop",
        truncated=truncated,
        response_text="r",
    )


def attach(rollouts: list[Rollout], values: list[float | None], rl: RlSpec) -> Any:
    rewards = [Reward(value, value) for value in values]
    return attach_advantages(rollouts, rewards, [token_row(each, i) for i, each in enumerate(rollouts)], rl, rl.kl.coef)


def test_group_advantages_stand_on_action_tokens_only() -> None:
    rollouts = [rollout(7, i, 2 + i) for i in range(4)]
    result = attach(rollouts, [1.0, 0.0, 0.0, 0.0], rl_spec())
    for row, expected in zip(result.rows, [1.5, -0.5, -0.5, -0.5], strict=True):
        assert row.fields["advantages"][row.mask] == pytest.approx(expected)
        assert not row.fields["advantages"][~row.mask].any()


def test_rc53_groups_go_by_id_whatever_the_order() -> None:
    rollouts = [rollout(1, 0, 2), rollout(2, 0, 2), rollout(1, 1, 2), rollout(2, 1, 2)]
    result = attach(rollouts, [1.0, 5.0, 0.0, 5.0], rl_spec())
    firsts = [row.fields["advantages"][row.mask][0] for row in result.rows]
    assert firsts == pytest.approx([2**-0.5, 0.0, -(2**-0.5), 0.0], abs=1e-6)
    assert result.zero_signal_groups == 1


def test_rc41_an_empty_rollout_has_no_loss_but_counts_in_its_group() -> None:
    result = attach([rollout(0, 0, 0), rollout(0, 1, 2)], [10.0, 0.0], rl_spec())
    assert result.has_loss.tolist() == [False, True]
    assert result.rows[1].fields["advantages"][result.rows[1].mask] == pytest.approx(-(2**-0.5))


def test_a_dropped_rollout_has_neither_loss_nor_weight_in_the_statistics() -> None:
    result = attach([rollout(0, i, 2) for i in range(3)], [1.0, None, 0.0], rl_spec())
    assert result.has_loss.tolist() == [True, False, True]
    assert result.rows[0].fields["advantages"][result.rows[0].mask] == pytest.approx(2**-0.5)
    assert np.isnan(result.shaped[1])


def test_masked_truncation_keeps_the_statistics_and_loses_the_loss() -> None:
    rl = rl_spec(reward={"sources": [{"function": {"file": "r.py"}}], "truncation": {"mask": True}})
    result = attach([rollout(0, 0, 2, truncated=True), rollout(0, 1, 2)], [1.0, 0.0], rl)
    assert result.has_loss.tolist() == [False, True]
    assert result.rows[1].fields["advantages"][result.rows[1].mask] == pytest.approx(-(2**-0.5))


@pytest.mark.parametrize(
    ("algorithm", "rl", "updates", "needed"),
    [
        ("grpo", {}, 1, False),
        ("grpo", {}, 2, True),
        ("ppo", {}, 1, True),
        ("dr-grpo", {}, 1, False),
        ("rloo", {"kl": {"coef": 0.0}}, 1, False),
    ],
)
def test_old_logprobs_are_computed_where_the_update_cannot_give_them(
    algorithm: str, rl: dict[str, Any], updates: int, needed: bool
) -> None:
    assert needs_old_logprobs(rl_spec(algorithm, **rl), updates) is needed


def test_rows_without_advantage_are_left_out_only_where_no_other_term_has_a_gradient() -> None:
    row = token_row(rollout(0, 0, 2), 0)
    row.fields["advantages"] = np.zeros(len(row.mask), np.float32)
    assert not carries_gradient(row, rl_spec("dr-grpo"))
    assert carries_gradient(row, rl_spec("grpo"))
    assert carries_gradient(row, rl_spec("dr-grpo", policyLoss={"entropyCoef": 0.01}))
    row.fields["advantages"][row.mask] = 0.1
    assert carries_gradient(row, rl_spec("dr-grpo"))


def test_rollout_metrics_count_action_tokens_truncation_and_drops() -> None:
    rollouts = [rollout(0, 0, 4, truncated=True), rollout(0, 1, 0), rollout(0, 2, 2)]
    rewards = [Reward(1.0, 0.5, {"a": 1.0, "b": None}), Reward(None, None, {"a": None}), Reward(0.0, 0.0, {"a": 3.0}, {"note": 2.0})]
    metrics = rollout_metrics(rollouts, rewards, max_length=7)
    assert metrics["rollout/reward_mean"] == 0.5
    assert metrics["rollout/response_length_mean"] == 2.0
    assert metrics["rollout/truncated_share"] == pytest.approx(1 / 3)
    assert metrics["rollout/length_clip_share"] == pytest.approx(1 / 3)
    assert (metrics["rollout/empty_rows"], metrics["rollout/dropped"]) == (1.0, 1.0)
    assert (metrics["reward/a"], metrics["reward/extra/note"]) == (2.0, 2.0)


def test_a_mean_over_no_values_is_absent() -> None:
    rollouts = [rollout(0, 0, 4), rollout(0, 1, 2)]
    metrics = rollout_metrics(rollouts, [Reward(None, None, {"a": None}), Reward(None, None, {"a": None})], max_length=7)
    assert not [key for key in metrics if key.startswith("reward/")]
    assert not {"rollout/reward_mean", "rollout/reward_std", "rollout/score_mean"} & set(metrics)
    assert metrics["rollout/dropped"] == 2.0
    one_known = rollout_metrics(rollouts, [Reward(1.0, 1.0, {"a": 1.0, "b": None}), Reward(1.0, 1.0, {"a": 1.0, "b": None})], max_length=7)
    assert one_known["reward/a"] == 1.0
    assert "reward/b" not in one_known


def test_update_metrics_are_means_over_the_steps_tokens() -> None:
    rl = rl_spec("dr-grpo")
    experience = attach([rollout(0, 0, 2), rollout(0, 1, 2)], [1.0, 0.0], rl)
    stats = {
        "updates": 2.0, "loss": 4.0, "grad_norm": 6.0, "learning_rate": 0.1, "rows_computed": 2.0, "tokens": 8.0,
        "clipped_low": 1.0, "clipped_high": 3.0, "approx_kl_sum": 0.8, "ratio_max": 1.5, "entropy_sum": 16.0,
        "gap_sum": 0.0, "gap_abs_sum": 4.0, "gap_max": 0.9, "gap_k3_sum": 0.0, "prob_difference_sum": 0.8, "prob_difference_max": 0.2,
    }  # fmt: skip
    metrics = update_metrics(stats, experience)
    assert (metrics["actor/loss"], metrics["actor/grad_norm"], metrics["actor/clip_share"]) == (2.0, 3.0, 0.5)
    assert (metrics["actor/entropy"], metrics["rollout/logprob_gap_abs_mean"], metrics["rollout/logprob_gap_max"]) == (2.0, 0.5, 0.9)


def test_explained_variance_is_one_for_exact_values_and_zero_for_the_mean() -> None:
    returns = np.array([0.0, 1.0, 2.0, 3.0])

    def sums(values: np.ndarray) -> dict[str, float]:
        residual = returns - values
        return {
            "critic_tokens": 4.0,
            "critic_return_sum": float(returns.sum()),
            "critic_return_square_sum": float((returns**2).sum()),
            "critic_residual_sum": float(residual.sum()),
            "critic_residual_square_sum": float((residual**2).sum()),
        }

    assert explained_variance(sums(returns)) == pytest.approx(1.0)
    assert explained_variance(sums(np.full(4, returns.mean()))) == pytest.approx(0.0)


def test_throughput_divides_by_the_seconds_of_its_own_phases() -> None:
    timing = {"timing_s/rollout": 2.0, "timing_s/experience": 1.0, "timing_s/update": 3.0, "timing_s/sync": 4.0}
    rates = throughput(timing, {"all": 100, "sampled": 40})
    assert rates == {"perf/tokens_per_second": 10.0, "perf/rollout_tokens_per_second": 20.0, "perf/train_tokens_per_second": 25.0}


def test_f14_evaluation_reports_unbiased_pass_at_k_per_prompt() -> None:
    from rlhf_api.spec import DatasetSpec, EvaluationSpec

    evaluation = EvaluationSpec(datasets=[DatasetSpec(path="d")], samples_per_prompt=4, temperature=1.0, pass_at=[1, 2])
    rollouts = [rollout(group, i, 2) for group in (0, 1) for i in range(4)]
    metrics = evaluation_metrics("d", rollouts, [1, 0, 0, 0, 1, 1, 0, 0], evaluation)
    assert metrics["eval/d/pass@1"] == pytest.approx((0.25 + 0.5) / 2)
    assert metrics["eval/d/pass@2"] == pytest.approx((0.5 + 0.833333) / 2, abs=1e-6)


def test_rc67_an_unscored_evaluation_sample_is_counted_and_not_a_zero() -> None:
    from rlhf_api.spec import DatasetSpec, EvaluationSpec

    evaluation = EvaluationSpec(datasets=[DatasetSpec(path="d")])
    metrics = evaluation_metrics("d", [rollout(0, 0, 2), rollout(1, 0, 2)], [1.0, None], evaluation)
    assert (metrics["eval/d/score_mean"], metrics["eval/d/unscored"], metrics["eval/d/pass@1"]) == (1.0, 1.0, 0.5)
