from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def rollout_ray() -> Iterator[None]:
    from engine_support import local_ray

    with local_ray():
        yield
