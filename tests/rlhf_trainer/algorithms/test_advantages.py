"""Estimators against closed forms. Faults F3, F5, F8, F10, F17, F18, cases RC-10, RC-41, RC-53."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.resolve import derive, resolve
from rlhf_api.spec import GROUP_ESTIMATORS, AdvantageSpec, KlSpec, RewardSpec, RLHFJob
from rlhf_trainer.algorithms.advantages import ESTIMATORS, AdvantageBatch, Advantages, compute
from rlhf_trainer.algorithms.finite import NonFiniteError

THIRD = 1 / 3
NO_CLIP = RewardSpec(clip=None)

# (whiten, std_norm) of a resolved spec, as in the contract's table of estimators.
DEFAULTS: dict[str, tuple[str, bool | None]] = {
    "gae": ("batch", True),
    "reinforce": ("batch", True),
    "reinforce_baseline": ("batch", True),
    "rloo": ("none", None),
    "group_norm": ("none", True),
    "dr_grpo": ("none", False),
}


def one_token_batch(rewards: Any, group_ids: list[int] | None = None, dtype: torch.dtype = torch.float64, **fields: Any) -> AdvantageBatch:
    """One action token a row, so the advantage is the row's scalar."""
    values = torch.tensor(rewards, dtype=dtype)
    n = len(values)
    given: dict[str, Any] = {
        "rewards": values,
        "valid": torch.ones(n, dtype=torch.bool),
        "group_ids": torch.tensor(group_ids or [0] * n),
        "mask": torch.ones(n, 1, dtype=torch.bool),
    }
    return AdvantageBatch(**(given | fields))


def estimate(batch: AdvantageBatch, estimator: str, kl: KlSpec | None = None, reward: RewardSpec = NO_CLIP, **fields: Any) -> Advantages:
    whiten, std_norm = DEFAULTS[estimator]
    spec = AdvantageSpec(**({"estimator": estimator, "whiten": whiten, "std_norm": std_norm} | fields))
    return compute(batch, spec, reward, kl or KlSpec(placement="loss"))


def scalars(batch: AdvantageBatch, estimator: str, **fields: Any) -> list[float]:
    return estimate(batch, estimator, **fields).advantages[:, 0].tolist()


def test_every_estimator_of_the_api_is_registered() -> None:
    for name in ("gae", "reinforce", "reinforce_baseline", "group_norm", "dr_grpo", "rloo"):
        assert (ESTIMATORS[name].scope == "group") == (name in GROUP_ESTIMATORS)


@pytest.mark.parametrize("estimator", DEFAULTS)
def test_resolved_defaults_are_those_of_the_table(estimator: str) -> None:
    raw = {
        "apiVersion": "rlhf.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": "job"},
        "spec": {
            "rl": {"algorithm": "grpo", "advantage": {"estimator": estimator}},
            "models": {"actor": {"path": "model"}},
            "data": {"datasets": [{"path": "prompts.jsonl"}]},
        },
    }
    advantage = derive(RLHFJob.model_validate(resolve(raw))).spec.rl.advantage
    assert (advantage.whiten, advantage.std_norm) == DEFAULTS[estimator]


def test_unresolved_spec_is_refused() -> None:
    for spec in (AdvantageSpec(estimator="gae"), AdvantageSpec(estimator="dr_grpo", whiten="none")):
        with pytest.raises(ValueError, match="not resolved"):
            compute(one_token_batch([1, 0]), spec, NO_CLIP, KlSpec(placement="loss"))


@pytest.mark.parametrize(
    ("estimator", "rewards", "expected"),
    [
        ("group_norm", [1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]),
        ("group_norm", [1, 1, 0, 0], [0.866025, 0.866025, -0.866025, -0.866025]),
        ("group_norm", [2, 1, 0.5, 0], [1.317465, 0.146385, -0.439155, -1.024695]),
        ("rloo", [1, 0, 0, 0], [1, -THIRD, -THIRD, -THIRD]),
        ("rloo", [2, 1, 0.5, 0], [1.5, 1 / 6, -0.5, -7 / 6]),
        ("dr_grpo", [1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
    ],
)
def test_golden_group_estimators(estimator: str, rewards: list[float], expected: list[float]) -> None:
    assert scalars(one_token_batch(rewards), estimator) == pytest.approx(expected, abs=1e-6)


def test_group_norm_closed_form() -> None:
    rewards = [2.0, 1.0, 0.5, 0.0]
    mean = sum(rewards) / 4
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / 3)
    assert scalars(one_token_batch(rewards), "group_norm") == pytest.approx([(r - mean) / (std + 1e-9) for r in rewards])


def test_f3_std_norm_false_gives_the_mean_only() -> None:
    batch = one_token_batch([1, 0, 0, 0])
    assert scalars(batch, "group_norm", std_norm=False) == [0.75, -0.25, -0.25, -0.25]
    assert scalars(batch, "dr_grpo") == [0.75, -0.25, -0.25, -0.25]
    assert scalars(batch, "dr_grpo", std_norm=True) == pytest.approx([1.5, -0.5, -0.5, -0.5])


def test_f3_std_norm_false_keeps_the_mean_subtraction_of_whitening() -> None:
    batch = one_token_batch([1, 2, 4], [0, 1, 2])
    assert scalars(batch, "reinforce", std_norm=False) == pytest.approx([-4 / 3, -1 / 3, 5 / 3])
    assert scalars(batch, "reinforce") == pytest.approx([-1.069045, -0.267261, 1.336306], abs=1e-6)
    assert scalars(batch, "reinforce", whiten="none") == [1, 2, 4]


def test_reinforce_baseline_is_group_centred_then_whitened_over_the_batch() -> None:
    result = scalars(one_token_batch([1, 0, 5, 3], [0, 0, 1, 1]), "reinforce_baseline")
    # Centred: +-.5 and +-1; biased variance over the batch (.25 + .25 + 1 + 1) / 4.
    scale = math.sqrt(2.5 / 4)
    assert result == pytest.approx([0.5 / scale, -0.5 / scale, 1 / scale, -1 / scale])


def test_constant_estimators_give_every_action_token_the_scalar() -> None:
    mask = torch.tensor([[False, True, True, False, True], [False, True, False, False, False]])
    result = estimate(one_token_batch([1, 0], mask=mask), "rloo")
    assert result.advantages.tolist() == [[0, 1, 1, 0, 1], [0, -1, 0, 0, 0]]


@pytest.mark.parametrize(("return_to_go", "expected"), [(True, [-0.56, -0.54, -0.53]), (False, [-0.52, -0.51, -0.53])])
@pytest.mark.parametrize("gap", [0, 2])
def test_f5_kl_in_reward_of_group_estimators(return_to_go: bool, expected: list[float], gap: int) -> None:
    mask = torch.tensor([[True] + [False] * gap + [True, True]] * 2)
    kl = torch.tensor([[0.2] + [float("nan")] * gap + [0.1, 0.3], [0.0] * (3 + gap)])
    batch = one_token_batch([0.0, 1.0], mask=mask, kl=kl, kl_coef=0.1)
    # Two rewards 0 and 1 under dr_grpo: outcome -0.5 for the first row.
    result = estimate(batch, "dr_grpo", KlSpec(placement="reward", estimator="k1", return_to_go=return_to_go))
    assert result.advantages[0][mask[0]].tolist() == pytest.approx(expected, abs=1e-6)
    assert result.advantages[1][mask[1]].tolist() == [0.5, 0.5, 0.5]


def test_kl_in_reward_of_reinforce_and_gae_is_paid_per_token() -> None:
    mask = torch.ones(1, 3, dtype=torch.bool)
    batch = one_token_batch([1.0], mask=mask, kl=torch.tensor([[0.2, 0.1, 0.3]]), kl_coef=0.1, values=torch.zeros(1, 3))
    kl = KlSpec(placement="reward", estimator="k1")
    for estimator in ("reinforce", "gae"):
        result = estimate(batch, estimator, kl, whiten="none", gamma=0.5)
        last = 1 - 0.03
        assert result.advantages[0].tolist() == pytest.approx([-0.02 + 0.5 * (-0.01 + 0.5 * last), -0.01 + 0.5 * last, last])


def test_kl_as_a_loss_leaves_the_reward_alone() -> None:
    batch = one_token_batch([1, 0], kl=torch.tensor([[9.0], [9.0]]), kl_coef=0.1)
    assert scalars(batch, "rloo", kl=KlSpec(placement="loss")) == [1, -1]


def test_live_coefficient_is_used_not_the_configured_one() -> None:
    batch = one_token_batch([1, 0], kl=torch.tensor([[1.0], [0.0]]), kl_coef=0.25)
    assert scalars(batch, "rloo", kl=KlSpec(placement="reward", coef=0.01)) == [0.75, -1]


def test_f8_truncated_row_is_paid_at_its_last_action_token() -> None:
    mask = torch.tensor([[False, True, True, True, False, False]])
    batch = one_token_batch([1.0], mask=mask, values=torch.zeros(1, 6))
    result = estimate(batch, "gae", whiten="none", gamma=0.0)
    assert result.advantages.tolist() == [[0, 0, 0, 1, 0, 0]]


def test_clip_comes_after_the_baseline_by_default() -> None:
    batch = one_token_batch([30, 0], None)
    assert scalars(batch, "dr_grpo", reward=RewardSpec()) == [10, -10]
    # beforeBaseline is done by reward_shaping.shape; nothing is clipped here.
    assert scalars(batch, "dr_grpo", reward=RewardSpec(clip_at="beforeBaseline")) == [15, -15]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_f10_statistics_of_low_precision_rewards_are_those_in_fp64(dtype: torch.dtype) -> None:
    rewards = torch.tensor([0.1, 0.7, 0.3, 0.35, 0.95], dtype=dtype)
    low = one_token_batch(rewards.tolist(), dtype=dtype)
    exact = one_token_batch(rewards.tolist())
    assert low.rewards.dtype == dtype
    for estimator in sorted(GROUP_ESTIMATORS):
        assert torch.equal(estimate(low, estimator).advantages, estimate(exact, estimator).advantages)


def test_f10_statistics_keep_what_fp32_would_round_away() -> None:
    assert scalars(one_token_batch([2.0**24 + 1, 2.0**24]), "rloo") == [1, -1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("estimator", sorted(GROUP_ESTIMATORS))
def test_f18_equal_rewards_give_no_rounding_noise(dtype: torch.dtype, estimator: str) -> None:
    for n in range(2, 33):
        for value in (0.1, 0.3, 1.1, -7.7):
            result = estimate(one_token_batch([value] * n, dtype=dtype), estimator)
            assert bool((result.advantages == 0).all())
            assert result.zero_signal_groups == 1


def test_f18_nearly_equal_rewards_give_no_rounding_noise() -> None:
    rewards = [0.1 + 0.2, 0.3, 0.3, 0.1 + 0.2]
    assert rewards[0] != rewards[1]
    assert scalars(one_token_batch(rewards), "group_norm") == pytest.approx([0] * 4, abs=1e-6)


@pytest.mark.parametrize("std_norm", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("estimator", ["gae", "reinforce", *sorted(GROUP_ESTIMATORS)])
@pytest.mark.parametrize("rewards", [[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0.1, 0.1, 0.1, 0.1]])
def test_rc10_no_division_by_almost_zero(rewards: list[float], estimator: str, dtype: torch.dtype, std_norm: bool) -> None:
    batch = one_token_batch(rewards, dtype=dtype, values=torch.zeros(4, 1))
    result = scalars(batch, estimator, std_norm=std_norm)
    assert all(math.isfinite(a) and abs(a) < 10 for a in result)
    # gae and reinforce without a scale have the mean subtraction of whitening only, which is 0 as well.
    if len(set(rewards)) == 1:
        assert result == pytest.approx([0.0] * 4, abs=1e-6)
    if estimator == "rloo" and rewards[0] != rewards[1]:
        assert result == pytest.approx([1, -THIRD, -THIRD, -THIRD])


@pytest.mark.parametrize("estimator", sorted(GROUP_ESTIMATORS))
def test_rc41_empty_response_counts_in_its_group_and_gets_nothing(estimator: str) -> None:
    mask = torch.tensor([[False, False, False], [False, True, True]])
    kl = torch.tensor([[5.0, 5.0, 5.0], [0.0, 0.0, 0.0]])
    batch = one_token_batch([10, 0], mask=mask, kl=kl, kl_coef=0.1)
    result = estimate(batch, estimator, KlSpec(placement="reward", estimator="k1"), whiten="none")
    assert result.advantages[0].tolist() == [0, 0, 0]
    peer = {"group_norm": -math.sqrt(0.5), "rloo": -10, "dr_grpo": -5, "reinforce_baseline": -5}[estimator]
    assert result.advantages[1].tolist() == pytest.approx([0, peer, peer])


@pytest.mark.parametrize("estimator", ["gae", "reinforce", *sorted(GROUP_ESTIMATORS)])
def test_rc41_only_response_is_empty(estimator: str) -> None:
    batch = one_token_batch([1.0, 0.0], mask=torch.zeros(2, 3, dtype=torch.bool), values=torch.full((2, 3), float("nan")))
    result = estimate(batch, estimator)
    assert result.advantages.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert result.returns.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_dropped_rollout_is_in_no_statistic() -> None:
    valid = torch.tensor([True, True, False])
    batch = one_token_batch([1, 0, float("nan")], valid=valid)
    result = estimate(batch, "rloo")
    assert result.advantages[:, 0].tolist() == [1, -1, 0]


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
def test_dropped_rollout_is_not_whitened_and_pays_no_kl(estimator: str) -> None:
    kl, values = torch.tensor([[0.1], [0.3], [9.0]]), torch.tensor([[0.1], [0.2], [7.0]])
    spec = KlSpec(placement="reward", estimator="k1")
    valid = torch.tensor([True, True, False])
    result = estimate(one_token_batch([1, 0, 5], valid=valid, kl=kl, kl_coef=0.1, values=values), estimator, spec)
    alone = estimate(one_token_batch([1, 0], kl=kl[:2], kl_coef=0.1, values=values[:2]), estimator, spec)
    assert torch.equal(result.advantages[:2], alone.advantages)
    assert result.advantages[2, 0] == 0
    assert result.returns[2, 0] == 0


def test_group_left_with_one_valid_reward_is_too_small() -> None:
    valid = torch.tensor([True, False, True, True, False, False])
    result = estimate(one_token_batch([1, 0, 1, 0, 1, 0], [0, 0, 1, 1, 2, 2], valid=valid), "group_norm")
    assert result.too_small_groups == 2
    assert result.zero_signal_groups == 0
    assert result.advantages[0, 0] == 0
    assert estimate(one_token_batch([1.0, 2.0], [0, 1]), "reinforce").too_small_groups == 0


def test_rc53_groups_are_by_id_not_by_position() -> None:
    together = scalars(one_token_batch([1, 0, 0, 7, 5, 3], [4, 4, 4, 9, 9, 9]), "dr_grpo")
    scattered = scalars(one_token_batch([7, 1, 5, 0, 3, 0], [9, 4, 9, 4, 9, 4]), "dr_grpo")
    assert [scattered[i] for i in (1, 3, 5, 0, 2, 4)] == together


def test_f17_unmasked_non_finite_input_stops_the_step_with_its_row() -> None:
    with pytest.raises(NonFiniteError, match=r"reward is nan at row 1"):
        estimate(one_token_batch([1, float("nan")]), "rloo")
    values = torch.tensor([[0.0, 1.0], [float("inf"), float("nan")]])
    mask = torch.tensor([[True, True], [False, True]])
    with pytest.raises(NonFiniteError, match=r"critic value is nan at row 1, position 1 \(1 such"):
        estimate(one_token_batch([1, 0], [0, 1], mask=mask, values=values), "gae")
    with pytest.raises(NonFiniteError, match="KL to the reference"):
        estimate(one_token_batch([1, 0], mask=mask, kl=values, kl_coef=0.1), "rloo", KlSpec(placement="reward"))


def test_missing_inputs_are_named() -> None:
    with pytest.raises(ValueError, match="critic"):
        estimate(one_token_batch([1.0]), "gae")
    with pytest.raises(ValueError, match="per-token KL"):
        estimate(one_token_batch([1, 0], kl_coef=0.1), "rloo", KlSpec(placement="reward"))


reward_lists = st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=8)


@settings(max_examples=40, deadline=None)
@given(groups=st.lists(reward_lists, min_size=1, max_size=4), estimator=st.sampled_from(sorted(ESTIMATORS)), data=st.data())
def test_permuting_rows_permutes_advantages(groups: list[list[float]], estimator: str, data: st.DataObject) -> None:
    rewards = [r for group in groups for r in group]
    ids = [i for i, group in enumerate(groups) for _ in group]
    order = data.draw(st.permutations(range(len(rewards))))
    values = torch.linspace(0, 1, len(rewards))[:, None]
    plain = estimate(one_token_batch(rewards, ids, values=values), estimator).advantages
    batch = one_token_batch([rewards[i] for i in order], [ids[i] for i in order], values=values[list(order)])
    torch.testing.assert_close(estimate(batch, estimator).advantages, plain[list(order)], atol=1e-5, rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(rewards=reward_lists, estimator=st.sampled_from(sorted(ESTIMATORS)), extra=st.integers(1, 3))
def test_fully_masked_rows_of_another_group_change_nothing(rewards: list[float], estimator: str, extra: int) -> None:
    n = len(rewards)
    values = torch.zeros(n, 1)
    plain = estimate(one_token_batch(rewards, values=values), estimator).advantages
    more = one_token_batch(
        rewards + [3.0] * extra,
        [0] * n + [1] * extra,
        mask=torch.tensor([[True]] * n + [[False]] * extra),
        values=torch.cat([values, torch.full((extra, 1), float("nan"))]),
    )
    result = estimate(more, estimator).advantages
    assert torch.equal(result[:n], plain)
    assert bool((result[n:] == 0).all())


@settings(max_examples=60, deadline=None)
@given(rewards=st.lists(st.integers(-8, 8), min_size=2, max_size=8), factor=st.floats(0.125, 64))
def test_scaling_a_groups_rewards_leaves_group_norm(rewards: list[int], factor: float) -> None:
    plain = scalars(one_token_batch(rewards), "group_norm")
    scaled = scalars(one_token_batch([r * factor for r in rewards]), "group_norm")
    assert scaled == pytest.approx(plain, abs=1e-5)
