"""The GSM8K recipe from its data on: prepared, graded, and a few GRPO steps with SmolLM2, as the example's comment says.

The problems are generated in the data set's own form; RLHF_GSM8K names a file of the real ones (train.jsonl) to take instead.
"""

from __future__ import annotations

import json
import os
import random
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "examples" / "gsm8k"
NUM_PROBLEMS = 96


def problems(seed: int) -> Iterator[dict[str, str]]:
    """Word problems of two or three steps with calculations in <<>> and the answer behind ####; large numbers with a comma, as there."""
    draw = random.Random(seed)
    while True:
        who, thing = draw.choice(["Amira", "Boris", "Chen", "Dalia"]), draw.choice(["pencils", "apples", "stickers", "marbles"])
        boxes, each = draw.randint(3, 60), draw.randint(4, 40)
        total = boxes * each
        if draw.random() < 0.5:
            gone = draw.randint(1, total - 1)
            question = f"{who} buys {boxes} boxes with {each} {thing} in each and gives {gone} of them away. How many {thing} are left?"
            steps = [
                f"{who} buys {boxes} x {each} = <<{boxes}*{each}={total}>>{total} {thing}.",
                f"After the gifts {total} - {gone} = <<{total}-{gone}={total - gone}>>{total - gone} {thing} are left.",
            ]
            result = total - gone
        else:
            price, cost = draw.randint(2, 9), draw.randint(1, total)
            sales = total * price
            question = (
                f"A shop has {boxes} boxes of {each} {thing} and sells every one of them for ${price}. It paid ${cost} for all of them. "
                f"How much does it earn?"
            )
            steps = [
                f"There are {boxes}*{each} = <<{boxes}*{each}={total}>>{total} {thing}.",
                f"They bring {total} * {price} = $<<{total}*{price}={sales}>>{sales}.",
                f"The shop earns {sales} - {cost} = $<<{sales}-{cost}={sales - cost}>>{sales - cost}.",
            ]
            result = sales - cost
        yield {"question": question, "answer": "\n".join([*steps, f"#### {result:,}"])}


def write(path: Path, seed: int) -> Path:
    found = problems(seed)
    path.write_text("".join(json.dumps(next(found)) + "\n" for _ in range(NUM_PROBLEMS)))
    return path


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """The example's folder with its data in place, as its own script writes them."""
    folder = tmp_path / "gsm8k"
    shutil.copytree(RECIPE, folder, ignore=shutil.ignore_patterns("data", "runs", "__pycache__"))
    real = os.environ.get("RLHF_GSM8K")
    train = Path(real).resolve() if real else write(tmp_path / "train.jsonl", seed=1)
    test = write(tmp_path / "test.jsonl", seed=2)
    command = [sys.executable, str(folder / "prepare.py"), "--train", str(train), "--test", str(test)]
    subprocess.run(command, check=True, timeout=120)
    return folder


def test_solutions_of_the_data_earn_the_whole_reward_and_wrong_ones_the_forms_share(recipe: Path) -> None:
    rows = [json.loads(line) for split in ("train", "test") for line in (recipe / "data" / f"{split}.jsonl").read_text().splitlines()]
    labels = [row["answer"] for row in rows]
    assert all(set(row) == {"question", "answer"} and re.search(r"\n#### -?[\d,.]+$", row["answer"]) for row in rows)
    prompts = [row["question"] for row in rows]
    number = len(rows)
    reward_func = runpy.run_path(str(recipe / "reward.py"))["reward_func"]

    def rewards(responses: list[str]) -> set[float]:
        queries = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
        return set(reward_func(queries, prompts, labels, [False] * number)["rewards"])

    assert rewards(labels) == {1.0}
    assert rewards([label.rpartition("\n")[2].replace(",", "") for label in labels]) == {1.0}
    assert rewards(["#### -1" for _ in labels]) == {0.1}
    assert rewards(["I cannot tell." for _ in labels]) == {0.0}


def test_generated_calculations_are_right() -> None:
    found = problems(seed=3)
    answers = [next(found)["answer"] for _ in range(200)]
    calculations = [calculation for answer in answers for calculation in re.findall(r"<<(\d+)([*-])(\d+)=(\d+)>>(\d+)", answer)]
    assert len(calculations) == sum(answer.count("<<") for answer in answers) > 400
    for left, sign, right, result, shown in calculations:
        assert int(result) == int(shown) == (int(left) * int(right) if sign == "*" else int(left) - int(right))
    assert all(answer.rpartition("#### ")[2].replace(",", "") == re.findall(r">>(\d+)", answer)[-1] for answer in answers)
    assert any("," in answer.rpartition("#### ")[2] for answer in answers)


@pytest.mark.slow
@pytest.mark.nightly
def test_grpo_takes_steps_on_gsm8k_with_the_answer_reward(jobs, recipe: Path) -> None:
    quickstart = ROOT / "examples" / "quickstart"
    subprocess.run([sys.executable, str(quickstart / "get_model.py")], check=True, timeout=600)
    run = jobs.run_file(
        recipe / "rlhfjob.yaml",
        "gsm8k-grpo",
        f"models.actor.path={quickstart / 'model'}",
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
