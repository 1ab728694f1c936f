"""The container images of a test cluster: built from `images/`, kept once in the cache, pushed into the cluster's registry.

references = ensure(["operator", "trainer"], cluster)
references["trainer"]        # 10.200.0.1:5000/rlhf-trainer:4f0c…
"""

from __future__ import annotations

from e2e.images.provide import build, ensure
from e2e.images.recipes import IMAGES, Recipe

__all__ = ["IMAGES", "Recipe", "build", "ensure"]
