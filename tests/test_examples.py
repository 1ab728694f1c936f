"""The examples' data, rewards and manifests. Whether they learn is shown in the slow lane."""

import importlib.util
import json
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from rlhf_api import manifest, rules

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
MANIFESTS = sorted(EXAMPLES.glob("*/*.yaml"))


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_example_manifest_is_valid(path: Path) -> None:
    loaded = manifest.load(path)
    assert loaded.job.metadata.name


@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "reinforce++", "reinforce++-baseline", "rloo", "dr-grpo"])
def test_tiny_folder_has_an_example_of_each_preset(algorithm: str) -> None:
    loaded = manifest.load(EXAMPLES / "tiny" / f"{algorithm}.yaml")
    assert loaded.job.spec.rl.algorithm == algorithm


TINY = [path for path in MANIFESTS if path.parent.name == "tiny" and path.stem != "ppo-reward-model"]


@pytest.mark.parametrize("path", TINY, ids=lambda path: path.stem)
def test_tiny_example_is_complete_in_one_file_and_fit_for_a_cluster(path: Path) -> None:
    loaded = manifest.load(path)
    assert rules.check_cluster(loaded.job) == []
    assert loaded.files == manifest.load(TINY[0]).files
    assert loaded.files["reward.py"] == (EXAMPLES / "tiny" / "reward.py").read_text()
    assert {json.loads(line)["prompt"][0] for line in loaded.files["data/heldout.jsonl"].splitlines()} == {"#", "@"}


def test_gsm8k_overrides_for_this_machine_are_valid_as_the_comment_gives_them() -> None:
    path = EXAMPLES / "gsm8k" / "rlhfjob.yaml"
    comment = "\n".join(line.removeprefix("#").rstrip("\\ ") for line in path.read_text().splitlines() if line.startswith("#"))
    words = shlex.split(comment.split("rlhf run examples/gsm8k/rlhfjob.yaml")[-1])
    job = manifest.load(path, [word for word in words if word != "--set"]).job
    assert job.spec.training.max_steps == 3
    assert job.spec.evaluation is None


def problem(row: dict[str, str]) -> tuple[str, frozenset[int]]:
    left, operation, right, _ = row["prompt"].rsplit("\n", 1)[-1].split(" ")
    return operation, frozenset((int(left), int(right)))


def test_held_out_arithmetic_is_apart_from_training_also_commuted_and_from_the_worked_examples() -> None:
    make_data = load(EXAMPLES / "quickstart" / "make_data.py")
    train, held_out = make_data.problems(seed=0)
    shown = {(operation, frozenset(pair)) for operation, pairs in make_data.EXAMPLES.items() for pair in pairs}
    assert len(held_out) == len({problem(row) for row in held_out}) == 200
    assert not {problem(row) for row in held_out} & ({problem(row) for row in train} | shown)
    assert make_data.problems(seed=0) == (train, held_out)
    assert make_data.problems(seed=1) != (train, held_out)


def test_arithmetic_labels_are_right() -> None:
    train, held_out = load(EXAMPLES / "quickstart" / "make_data.py").problems(seed=0)
    for row in train + held_out:
        question = row["prompt"].rsplit("\n", 1)[-1].removesuffix(" =")
        assert int(row["answer"]) == eval(question) >= 0


@pytest.mark.parametrize(
    ("response", "cut", "reward", "score"),
    [
        (" 12<|im_end|>", False, 1.1, 1.0),
        (" 12\n", False, 1.1, 1.0),
        (" 13\n", False, 0.1, 0.0),
        (" 12", True, 0.1, 0.0),
        (" twelve\n", False, 0.0, 0.0),
        ("", False, 0.0, 0.0),
    ],
)
def test_arithmetic_reward(response: str, cut: bool, reward: float, score: float) -> None:
    reward_func = load(EXAMPLES / "quickstart" / "reward.py").reward_func
    assert reward_func(["7 + 5 =" + response], ["7 + 5 ="], ["12"], truncated=[cut]) == {"rewards": [reward], "scores": [score]}


@pytest.mark.parametrize(
    ("response", "reward", "score"),
    [
        ("48 + 24 is 72.\n#### 72<|im_end|>", 1.0, 1.0),
        ("The answer is 72.", 1.0, 1.0),
        ("#### $1,072.50", 0.1, 0.0),
        ("#### 71, not 72", 0.1, 0.0),
        ("I do not know", 0.0, 0.0),
    ],
)
def test_gsm8k_reward_reads_the_marked_number_before_the_last_one(response: str, reward: float, score: float) -> None:
    reward_func = load(EXAMPLES / "gsm8k" / "reward.py").reward_func
    given = (["Q 5?" + response], ["Q 5?"], ["Half of 144 is <<144/2=72>>72.\n#### 72"])
    assert reward_func(*given, truncated=[False]) == {"rewards": [reward], "scores": [score]}


def test_tiny_reward_counts_the_kind_that_the_prompt_asks_for_and_no_special_token() -> None:
    reward_func = load(EXAMPLES / "tiny" / "reward.py").reward_func
    queries = ["#x1?" + "1" * 16, "#x1?" + "a" * 16, "@x1?" + "aA1" + "</s>", "@x1?"]
    assert reward_func(queries, ["#x1?", "#x1?", "@x1?", "@x1?"], [None] * 4)["rewards"] == [1.0, 0.0, 2 / 16, 0.0]
