"""Estimators, losses, KL, correction: combinations that mean nothing or do nothing are refused."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_api.rules.registry import Cel, Finding, effective, rule
from rlhf_api.spec import GROUP_ESTIMATORS, JobSpec, KlSpec, ValueLossSpec

DISCOUNTING_ESTIMATORS = ("gae", "reinforce")
"""Estimators that walk over tokens; the others give a rollout one constant advantage."""

_ESTIMATOR = effective("advantage.estimator")
_GROUP = ", ".join(f"'{name}'" for name in sorted(GROUP_ESTIMATORS))
_AGGREGATION = effective("policyLoss.aggregation")
_COEF = effective("kl.coef")
_KL_PLACEMENT = effective("kl.placement")
_HORIZON: int = KlSpec.model_fields["horizon"].default
_VALUE_CLIP: float = ValueLossSpec.model_fields["clip"].default


@rule(
    "critic-needs-gae", "a critic belongs to estimator gae", cel=Cel(f"!has(self.models.critic) || {_ESTIMATOR} == 'gae'", "models.critic")
)
def critic_needs_gae(spec: JobSpec) -> Iterator[Finding]:
    estimator = spec.rl.advantage.estimator
    if estimator != "gae" and spec.models.critic is not None:
        nearest = "no models.critic, or rl.algorithm: ppo"
        yield Finding("models.critic", spec.models.critic.path or None, nearest, f"the estimator is {estimator}")


@rule(
    "group-estimator-needs-samples",
    "group estimators compare the samples of a prompt, so samplesPerPrompt is at least 2",
    cel=Cel(f"!({_ESTIMATOR} in [{_GROUP}]) || {effective('rollout.samplesPerPrompt')} > 1", "rl.rollout.samplesPerPrompt"),
)
def group_estimator_needs_samples(spec: JobSpec) -> Iterator[Finding]:
    estimator, samples = spec.rl.advantage.estimator, spec.rl.rollout.samples_per_prompt
    if estimator in GROUP_ESTIMATORS and samples < 2:
        nearest = "samplesPerPrompt: 8, or rl.algorithm: reinforce++"
        yield Finding("rl.rollout.samplesPerPrompt", samples, nearest, f"the estimator is {estimator}")


@rule(
    "gamma-needs-recursion",
    "gamma other than 1 needs estimator gae or reinforce; the others give all tokens of a rollout one advantage",
    cel=Cel(f"self.rl.advantage.gamma == 1.0 || {_ESTIMATOR} in ['gae', 'reinforce']", "rl.advantage.gamma"),
)
def gamma_needs_recursion(spec: JobSpec) -> Iterator[Finding]:
    advantage = spec.rl.advantage
    if advantage.gamma != 1.0 and advantage.estimator not in DISCOUNTING_ESTIMATORS:
        yield Finding("rl.advantage.gamma", advantage.gamma, "gamma: 1.0", f"the estimator is {advantage.estimator}")


@rule(
    "lambda-needs-gae",
    "lambda other than 1 has an effect with estimator gae only",
    cel=Cel(f"self.rl.advantage.lambda == 1.0 || {_ESTIMATOR} == 'gae'", "rl.advantage.lambda"),
)
def lambda_needs_gae(spec: JobSpec) -> Iterator[Finding]:
    advantage = spec.rl.advantage
    if advantage.lambda_ != 1.0 and advantage.estimator != "gae":
        yield Finding("rl.advantage.lambda", advantage.lambda_, "lambda: 1.0", f"the estimator is {advantage.estimator}")


@rule(
    "rloo-has-no-std",
    "stdNorm has no meaning for estimator rloo, which divides by no standard deviation",
    cel=Cel(f"!has(self.rl.advantage.stdNorm) || {_ESTIMATOR} != 'rloo'", "rl.advantage.stdNorm"),
)
def rloo_has_no_std(spec: JobSpec) -> Iterator[Finding]:
    advantage = spec.rl.advantage
    if advantage.estimator == "rloo" and advantage.std_norm is not None:
        yield Finding("rl.advantage.stdNorm", advantage.std_norm, "no stdNorm, or estimator: group_norm")


@rule("dr-grpo-aggregation", "dr_grpo is unbiased only with aggregation seq-mean-token-sum-norm", warning=True)
def dr_grpo_aggregation(spec: JobSpec) -> Iterator[Finding]:
    aggregation = spec.rl.policy_loss.aggregation
    if spec.rl.advantage.estimator == "dr_grpo" and aggregation != "seq-mean-token-sum-norm":
        yield Finding("rl.policyLoss.aggregation", aggregation, "aggregation: seq-mean-token-sum-norm")


@rule(
    "norm-length-needs-sum-norm",
    "normLength has an effect with aggregation seq-mean-token-sum-norm only",
    cel=Cel(f"!has(self.rl.policyLoss.normLength) || {_AGGREGATION} == 'seq-mean-token-sum-norm'", "rl.policyLoss.normLength"),
)
def norm_length_needs_sum_norm(spec: JobSpec) -> Iterator[Finding]:
    loss = spec.rl.policy_loss
    if loss.norm_length is not None and loss.aggregation != "seq-mean-token-sum-norm":
        nearest = "no normLength, or aggregation: seq-mean-token-sum-norm"
        yield Finding("rl.policyLoss.normLength", loss.norm_length, nearest, f"the aggregation is {loss.aggregation}")


@rule("value-loss-needs-gae", "valueLoss has an effect with estimator gae only")
def value_loss_needs_gae(spec: JobSpec) -> Iterator[Finding]:
    value_loss, estimator = spec.rl.value_loss, spec.rl.advantage.estimator
    if estimator == "gae":
        return
    if value_loss.clip != _VALUE_CLIP:
        yield Finding("rl.valueLoss.clip", value_loss.clip, "no valueLoss", f"the estimator is {estimator}")
    if value_loss.warmup_steps:
        yield Finding("rl.valueLoss.warmupSteps", value_loss.warmup_steps, "no valueLoss", f"the estimator is {estimator}")


@rule(
    "k1-loss-has-no-gradient",
    "k1 as a loss has no gradient in expectation",
    cel=Cel(
        f"!({_KL_PLACEMENT} == 'loss' && {effective('kl.estimator')} == 'k1') || self.rl.kl.unbiasedGradient || {_COEF} == 0.0",
        "rl.kl.estimator",
    ),
)
def k1_loss_has_no_gradient(spec: JobSpec) -> Iterator[Finding]:
    kl = spec.rl.kl
    if kl.coef > 0 and kl.placement == "loss" and kl.estimator == "k1" and not kl.unbiased_gradient:
        yield Finding("rl.kl.estimator", "k1", "estimator: k3, or unbiasedGradient: true")


@rule(
    "unbiased-gradient-needs-loss",
    "unbiasedGradient needs kl.placement: loss; in the reward the KL has no gradient",
    cel=Cel(f"!self.rl.kl.unbiasedGradient || {_KL_PLACEMENT} == 'loss'", "rl.kl.unbiasedGradient"),
)
def unbiased_gradient_needs_loss(spec: JobSpec) -> Iterator[Finding]:
    kl = spec.rl.kl
    if kl.unbiased_gradient and kl.placement != "loss":
        yield Finding("rl.kl.unbiasedGradient", True, "placement: loss, or unbiasedGradient: false")


@rule(
    "adaptive-kl-needs-coef",
    "an adaptive KL multiplies kl.coef, so with kl.target the coefficient is above 0",
    cel=Cel(f"!has(self.rl.kl.target) || {_COEF} > 0.0", "rl.kl.coef"),
)
def adaptive_kl_needs_coef(spec: JobSpec) -> Iterator[Finding]:
    kl = spec.rl.kl
    if kl.target is not None and kl.coef == 0:
        yield Finding("rl.kl.coef", kl.coef, "coef: 0.01, or no target", f"target is {kl.target}")


@rule(
    "horizon-needs-target",
    "kl.horizon has an effect with kl.target only",
    cel=Cel(f"has(self.rl.kl.target) || self.rl.kl.horizon == {_HORIZON}", "rl.kl.horizon"),
)
def horizon_needs_target(spec: JobSpec) -> Iterator[Finding]:
    kl = spec.rl.kl
    if kl.target is None and kl.horizon != _HORIZON:
        yield Finding("rl.kl.horizon", kl.horizon, "no horizon, or a target such as 0.1")


@rule(
    "return-to-go-needs-group-reward",
    "returnToGo: false has an effect for group estimators with kl.placement: reward only",
    cel=Cel(f"self.rl.kl.returnToGo || ({_KL_PLACEMENT} == 'reward' && {_ESTIMATOR} in [{_GROUP}])", "rl.kl.returnToGo"),
)
def return_to_go_needs_group_reward(spec: JobSpec) -> Iterator[Finding]:
    kl, estimator = spec.rl.kl, spec.rl.advantage.estimator
    if not kl.return_to_go and not (kl.placement == "reward" and estimator in GROUP_ESTIMATORS):
        yield Finding("rl.kl.returnToGo", False, "no returnToGo", f"the estimator is {estimator}, the placement {kl.placement}")


@rule("unused-reference", "models.reference is not loaded while kl.coef is 0", warning=True)
def unused_reference(spec: JobSpec) -> Iterator[Finding]:
    if spec.models.reference is not None and spec.rl.kl.coef == 0:
        yield Finding("models.reference", spec.models.reference.path or None, "no models.reference, or a kl.coef above 0")


@rule(
    "correction-bounds",
    "correction.low is below correction.high",
    cel=Cel("!has(self.rl.correction) || self.rl.correction.low < self.rl.correction.high", "rl.correction.low"),
)
def correction_bounds(spec: JobSpec) -> Iterator[Finding]:
    correction = spec.rl.correction
    if correction is not None and correction.low >= correction.high:
        yield Finding("rl.correction.low", correction.low, "low: 0.5", f"high is {correction.high}")


@rule(
    "truncated-sampling-is-asked-for",
    "topP, topK and minP cut the distribution that log-probs refer to, so training needs allowTruncatedSampling: true",
    cel=Cel(
        "self.rl.rollout.allowTruncatedSampling"
        " || (self.rl.rollout.topP == 1.0 && self.rl.rollout.topK == 0 && self.rl.rollout.minP == 0.0)",
        "rl.rollout",
    ),
)
def truncated_sampling_is_asked_for(spec: JobSpec) -> Iterator[Finding]:
    rollout = spec.rl.rollout
    if rollout.allow_truncated_sampling:
        return
    for name, value, off in (("topP", rollout.top_p, 1.0), ("topK", rollout.top_k, 0), ("minP", rollout.min_p, 0.0)):
        if value != off:
            yield Finding(f"rl.rollout.{name}", value, f"{name}: {off}, or allowTruncatedSampling: true with rl.correction")


@rule(
    "truncated-sampling-needs-correction",
    "allowTruncatedSampling needs rl.correction, which weighs the difference of the two distributions",
    cel=Cel("!self.rl.rollout.allowTruncatedSampling || has(self.rl.correction)", "rl.rollout.allowTruncatedSampling"),
)
def truncated_sampling_needs_correction(spec: JobSpec) -> Iterator[Finding]:
    if spec.rl.rollout.allow_truncated_sampling and spec.rl.correction is None:
        yield Finding("rl.rollout.allowTruncatedSampling", True, "correction: {mode: clip, low: 0.5, high: 5.0}")


@rule("adam-betas", "each of optimizer.betas is at least 0 and below 1")
def adam_betas(spec: JobSpec) -> Iterator[Finding]:
    for index, beta in enumerate(spec.training.optimizer.betas):
        if not 0.0 <= beta < 1.0:
            yield Finding(f"training.optimizer.betas[{index}]", beta, "betas: [0.9, 0.95]")
