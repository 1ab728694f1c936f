"""Typed models of RLHFJob v1alpha1."""

from rlhf_api.spec.data import DatasetSpec, DataSpec
from rlhf_api.spec.job import JobSpec, Metadata, RLHFJob
from rlhf_api.spec.models import CriticSpec, ModelSpec, ModelsSpec, ReferenceSpec, ValueModelSpec
from rlhf_api.spec.outputs import CheckpointSpec, EvaluationSpec, LoggingSpec
from rlhf_api.spec.placement import Colocation, PlacementSpec, RolePlacement, RolloutPlacement
from rlhf_api.spec.rl import (
    GROUP_ESTIMATORS,
    AdvantageSpec,
    Aggregation,
    CorrectionSpec,
    Estimator,
    FunctionSpec,
    KlEstimator,
    KlSpec,
    OverlongSpec,
    PolicyLossSpec,
    Preset,
    RewardSourceSpec,
    RewardSpec,
    RlSpec,
    RolloutSpec,
    TruncationSpec,
    ValueLossSpec,
)
from rlhf_api.spec.training import DeepspeedSpec, LearningRateSpec, OptimizerSpec, ScheduleSpec, TrainingSpec

__all__ = [
    "GROUP_ESTIMATORS",
    "AdvantageSpec",
    "Aggregation",
    "CheckpointSpec",
    "Colocation",
    "CorrectionSpec",
    "CriticSpec",
    "DataSpec",
    "DatasetSpec",
    "DeepspeedSpec",
    "Estimator",
    "EvaluationSpec",
    "FunctionSpec",
    "JobSpec",
    "KlEstimator",
    "KlSpec",
    "LearningRateSpec",
    "LoggingSpec",
    "Metadata",
    "ModelSpec",
    "ModelsSpec",
    "OptimizerSpec",
    "OverlongSpec",
    "PlacementSpec",
    "PolicyLossSpec",
    "Preset",
    "RLHFJob",
    "ReferenceSpec",
    "RewardSourceSpec",
    "RewardSpec",
    "RlSpec",
    "RolePlacement",
    "RolloutPlacement",
    "RolloutSpec",
    "ScheduleSpec",
    "TrainingSpec",
    "TruncationSpec",
    "ValueLossSpec",
    "ValueModelSpec",
]
