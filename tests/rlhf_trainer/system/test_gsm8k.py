"""Real data and a real model: a few GRPO steps on GSM8K with SmolLM2, as the example's comment says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DATA = Path(os.environ.get("RLHF_GSM8K", ROOT.parent / "shared" / "data" / "gsm8k-train.jsonl"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_file(), reason=f"GSM8K is not here: {DATA} (set RLHF_GSM8K to gsm8k-train.jsonl)"),
]


def test_grpo_takes_steps_on_gsm8k_with_the_answer_reward(jobs) -> None:
    quickstart = ROOT / "examples" / "quickstart"
    subprocess.run([sys.executable, str(quickstart / "get_model.py")], check=True, timeout=600)
    run = jobs.run_file(
        ROOT / "examples" / "gsm8k" / "rlhfjob.yaml",
        "gsm8k-grpo",
        f"models.actor.path={quickstart / 'model'}",
        f"data.datasets=[{{path: {DATA}}}]",
        "data.maxSamples=64",
        "data.maxLength=384",
        "placement.actor.gpusPerNode=1",
        "placement.rollout.engines=1",
        "rl.rollout.promptsPerStep=4",
        "rl.rollout.samplesPerPrompt=4",
        "rl.rollout.maxNewTokens=48",
        "training.globalBatchSize=16",
        "training.maxTokensPerMicroBatch=1024",
        "training.maxSteps=2",
        "training.deepspeed.zeroStage=0",
        "training.gradientCheckpointing=false",
        "evaluation=null",
        "checkpoint.exportHuggingFace=false",
    )
    assert run.code == 0, run.output
    assert len(run.metrics) == 2
    assert run.series("rollout/response_length_mean")[0] > 10
    assert max(run.series("rollout/probability_gap_mean")) < 0.05
