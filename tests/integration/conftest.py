"""The control lane: a real API server, controller-manager and KubeRay; pods are marked by a helper."""

from __future__ import annotations

import os

from e2e.kit import waiting
from e2e.kit.budgets import SLOW

pytest_plugins = ["e2e.kit.fixtures"]

waiting.patience = float(os.environ.get(SLOW) or 1)
