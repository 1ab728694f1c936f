"""``spec.rl``: what is optimised, from which rollouts, with which rewards."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlhf_api.base import Pair, Strict, preset_field

Preset = Literal["ppo", "grpo", "reinforce++", "reinforce++-baseline", "rloo", "dr-grpo"]
Estimator = Literal["gae", "reinforce", "reinforce_baseline", "group_norm", "dr_grpo", "rloo"]
Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "token-sum"]
KlEstimator = Literal["k1", "k2", "k3"]

GROUP_ESTIMATORS: frozenset[str] = frozenset({"reinforce_baseline", "group_norm", "dr_grpo", "rloo"})
"""Estimators whose baseline is the group's own rewards, so they need at least two samples a prompt."""


class AdvantageSpec(Strict):
    estimator: Estimator = preset_field("group_norm")
    """How advantages are computed from rewards."""

    gamma: float = Field(1.0, ge=0.0, le=1.0)
    """Discount per action token (no unit). Only `gae` and `reinforce` accept a value other than 1."""

    lambda_: float = Field(1.0, ge=0.0, le=1.0, alias="lambda")
    """GAE trace decay per action token (no unit). Has an effect with `gae` only."""

    std_norm: bool | None = None
    """Divide by the standard deviation. Default by estimator: false for `dr_grpo`, true for the others; refused for `rloo`."""

    whiten: Literal["none", "batch"] | None = None
    """Whiten advantages over every action token of the step. Default by estimator: `batch` for gae, reinforce and reinforce_baseline."""


class PolicyLossSpec(Strict):
    type: Literal["ppo"] = "ppo"
    """Per-token policy loss."""

    clip_low: float = Field(0.2, gt=0.0, le=1.0)
    """The ratio is clipped below at 1 - clipLow (no unit)."""

    clip_high: float = Field(0.2, gt=0.0, le=10.0)
    """The ratio is clipped above at 1 + clipHigh (no unit)."""

    dual_clip: float | None = Field(None, gt=1.0, le=100.0)
    """Bound c of dual clip for negative advantages (no unit); absent = off. arXiv 1912.09729."""

    aggregation: Aggregation = preset_field("token-mean")
    """How per-token losses become one number, over the whole optimizer step."""

    norm_length: int | None = Field(None, ge=1, le=10_000_000)
    """Constant length C of `seq-mean-token-sum-norm`, in tokens. Default: rollout.maxNewTokens."""

    entropy_coef: float | None = Field(0.0, ge=0.0, le=10.0)
    """Weight of the entropy bonus. 0 logs the entropy only; null does not compute it."""


class ValueLossSpec(Strict):
    clip: float | None = Field(0.5, gt=0.0, le=1000.0)
    """New values stay within this distance of the old ones (reward units); null = no clip."""

    warmup_steps: int = Field(0, ge=0, le=1_000_000)
    """The actor is frozen for this many first steps while the critic learns."""


class KlSpec(Strict):
    coef: float = preset_field(0.01, ge=0.0, le=100.0)
    """Weight of the KL term; 0 loads no reference model."""

    estimator: KlEstimator = preset_field("k3")
    """Per-token estimator of KL(policy, reference)."""

    placement: Literal["reward", "loss"] = preset_field("loss")
    """`reward`: subtracted per token before advantages. `loss`: added to the policy loss."""

    target: float | None = Field(None, gt=0.0, le=1000.0)
    """Adaptive controller: the coefficient moves so that the mean k3 nears this value (nats a token). Absent = fixed."""

    horizon: int = Field(10_000, ge=1, le=1_000_000_000)
    """Adaptive controller: rollouts over which it reacts."""

    unbiased_gradient: bool = False
    """Use the importance-weighted reverse-KL gradient; the value is unchanged. Needs placement `loss`."""

    return_to_go: bool = True
    """Group estimators with placement `reward`: a token carries its own and all later KL terms; false = its own only."""


class CorrectionSpec(Strict):
    level: Literal["token"] = "token"
    """Where the trainer/engine weight is formed."""

    mode: Literal["clip", "mask"] = "clip"
    """`clip` bounds the weight; `mask` drops tokens whose weight is out of bounds."""

    low: float = Field(0.5, ge=0.0, le=1.0)
    """Lower bound of the weight pi_old/pi_roll (no unit)."""

    high: float = Field(5.0, ge=1.0, le=1000.0)
    """Upper bound of the weight (no unit)."""


class RolloutSpec(Strict):
    prompts_per_step: int = Field(128, ge=1, le=1_000_000)
    """Prompt groups sampled in one step."""

    samples_per_prompt: int = preset_field(8, ge=1, le=4096)
    """Responses sampled for each prompt."""

    max_new_tokens: int = Field(1024, ge=1, le=1_000_000)
    """Response limit in tokens."""

    temperature: float = Field(1.0, ge=0.01, le=2.0)
    """Sampling temperature (no unit). Log-probs are divided by it, so 0 is refused; vLLM raises anything below 0.01 in silence."""

    top_p: float = Field(1.0, gt=0.0, le=1.0)
    """Nucleus sampling. Below 1 needs allowTruncatedSampling."""

    top_k: int = Field(0, ge=0, le=1_000_000)
    """Sample among the k likeliest tokens; 0 = off. Above 0 needs allowTruncatedSampling."""

    min_p: float = Field(0.0, ge=0.0, lt=1.0)
    """Cut tokens below this share of the likeliest one. Above 0 needs allowTruncatedSampling."""

    allow_truncated_sampling: bool = False
    """Accept topP, topK or minP in training although the engine's log-probs then refer to the cut distribution; needs `rl.correction`."""

    stop: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(default_factory=list, max_length=16)
    """Strings that end a response. The tokens that spell them stay part of the response."""

    stop_token_ids: list[Annotated[int, Field(ge=0, le=2**31 - 1)]] = Field(default_factory=list, max_length=64)
    """Token ids that end a response, besides the model's end-of-sequence ids."""


class FunctionSpec(Strict):
    file: str = Field(min_length=1, max_length=1024)
    """Python file with the reward function; relative to the manifest's folder (locally) or the files mount (cluster)."""

    name: str = Field("reward_func", min_length=1, max_length=128)
    """Name of the function in the file."""

    timeout_seconds: float = Field(30.0, gt=0.0, le=86_400.0)
    """One call is stopped after this many seconds."""

    on_error: Literal["fail", "zero", "drop"] = "fail"
    """After an exception, a time-out or an unscored row: end the job, count 0.0, or drop the rollout from loss and statistics."""


class RewardSourceSpec(Strict):
    function: FunctionSpec | None = None
    """A Python function."""

    model: Literal["reward"] | None = None
    """The reward model of `models.reward`."""

    weight: float = Field(1.0, ge=-1000.0, le=1000.0)
    """Factor of this source in the sum."""

    normalize: bool = False
    """Normalise this source by its running mean and standard deviation before it is weighted."""


class OverlongSpec(Strict):
    buffer_tokens: int = Field(ge=1, le=10_000_000)
    """Length b of the soft zone before rollout.maxNewTokens, in tokens."""

    penalty_factor: float = Field(1.0, ge=0.0, le=1000.0)
    """Penalty at the end of the zone (reward units)."""


class TruncationSpec(Strict):
    penalty: float | None = Field(None, ge=-1000.0, le=1.0)
    """For truncated rollouts: 0..1 multiplies the reward, below 0 replaces it. Absent = off."""

    mask: bool = False
    """Truncated rollouts keep their place in the statistics and get no loss."""


class RewardSpec(Strict):
    sources: list[RewardSourceSpec] = Field(default_factory=list, max_length=16)
    """Where rewards come from; weighted and summed. Empty with `models.reward` set = that model."""

    clip: Pair | None = (-10.0, 10.0)
    """Bounds of the scalar reward; null = no clip."""

    clip_at: Literal["afterBaseline", "beforeBaseline"] = "afterBaseline"
    """Clip before or after the group baseline is subtracted."""

    overlong: OverlongSpec | None = None
    """Soft length penalty of DAPO (arXiv 2503.14476). Absent = off."""

    truncation: TruncationSpec = Field(default_factory=lambda: TruncationSpec())
    """What happens to responses that were cut at the length limit."""


class RlSpec(Strict):
    algorithm: Preset
    """Preset: a set of field values, each of which can be set by hand."""

    update_epochs: int = Field(1, ge=1, le=100)
    """Passes over one rollout batch."""

    advantage: AdvantageSpec = Field(default_factory=lambda: AdvantageSpec())
    """From rewards to advantages."""

    policy_loss: PolicyLossSpec = Field(default_factory=lambda: PolicyLossSpec())
    """The actor's loss."""

    value_loss: ValueLossSpec = Field(default_factory=lambda: ValueLossSpec())
    """The critic's loss; has an effect with estimator `gae` only."""

    kl: KlSpec = Field(default_factory=lambda: KlSpec())
    """Divergence from the reference model."""

    correction: CorrectionSpec | None = None
    """Weights against the trainer/engine log-prob mismatch. Absent = measured only."""

    rollout: RolloutSpec = Field(default_factory=lambda: RolloutSpec())
    """How responses are sampled."""

    reward: RewardSpec = Field(default_factory=lambda: RewardSpec())
    """Where rewards come from and how they are shaped."""
