"""The rules of the source tree: three roots, one package each, and who may import whom."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
ROOTS = {"operator": "rlhf_operator", "trainer": "rlhf_trainer", "crds": "rlhf_api"}


@pytest.mark.parametrize(("root", "package"), ROOTS.items())
def test_each_root_holds_exactly_one_package_and_no_loose_module(root: str, package: str) -> None:
    folder = REPOSITORY / root
    assert (folder / package / "__init__.py").is_file()
    packages = {path.name for path in folder.iterdir() if path.is_dir() and not path.name.endswith(".egg-info")} - {"__pycache__"}
    assert packages == {package}
    # An `__init__.py` or a loose `logging.py` here would hide the standard library's once the root is on the path.
    assert list(folder.glob("*.py")) == []


def test_import_operator_is_the_standard_library_with_the_roots_on_the_path() -> None:
    code = "import operator, collections; print(operator.__file__, operator.add(1, 2))"
    path = os.pathsep.join(str(REPOSITORY / root) for root in ROOTS)
    # From the repository root, too: there `operator/` is a namespace package candidate.
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    file, total = done.stdout.split()
    assert Path(file).parent == Path(os.__file__).parent
    assert total == "3"


def test_import_rules_hold() -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")
    path = os.pathsep.join(str(REPOSITORY / root) for root in ROOTS)
    done = subprocess.run(
        [lint_imports, "--no-cache"], cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_locks_pin_every_package_of_the_distribution_for_both_stacks() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    for stack in ("cpu", "gpu"):
        extras = project["optional-dependencies"]
        wanted = sum((extras[extra] for extra in ("operator", "trainer", "examples", "dev", "e2e", stack)), project["dependencies"])
        names = {re.split(r"[\[<>=; ]", requirement)[0] for requirement in wanted}
        if stack == "cpu":
            names.remove("torch")  # which build there is depends on the index; scripts/setup.sh pins the version
        lines = (REPOSITORY / f"images/trainer/{stack}.lock").read_text().splitlines()
        assert all("==" in line for line in lines)
        assert names <= {line.split("==")[0] for line in lines}
