from __future__ import annotations

import doctest
from types import ModuleType

import numpy as np
import pytest

from rlhf_trainer.algorithms import aggregation, passk, schedule


@pytest.mark.parametrize("module", [aggregation, passk, schedule])
def test_examples_in_docstrings_hold(module: ModuleType) -> None:
    result = doctest.testmod(module, extraglobs={"np": np})
    assert result.attempted > 0
    assert result.failed == 0
