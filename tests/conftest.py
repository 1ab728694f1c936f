"""Settings that must stand before torch, Ray or vLLM is imported."""

import os

# Results are compared bit for bit, and two cores are shared by trainer, engine and driver.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from hypothesis import settings

# The same examples each time: a red test is a change of the code, not of luck.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
