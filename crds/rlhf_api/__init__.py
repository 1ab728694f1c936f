"""The RLHFJob contract: typed models, rules, presets, and the ``rlhf`` command.

Imports pydantic and pyyaml only, so that the operator, the trainer and a laptop can all use it.
"""

API_VERSION = "rlhf.dev/v1alpha1"
KIND = "RLHFJob"
__version__ = "0.1.0"
