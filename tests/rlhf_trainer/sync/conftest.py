from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

for _folder in (Path(__file__).parent, Path(__file__).parents[1] / "rollout"):
    sys.path.insert(0, str(_folder))


@pytest.fixture(scope="module")
def sync_ray() -> Iterator[None]:
    from engine_support import local_ray

    with local_ray():
        yield
