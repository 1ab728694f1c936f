"""GPUs that Ray promises and this process cannot use."""

from __future__ import annotations

import pytest

from rlhf_trainer.errors import ConfigError, RetryError
from rlhf_trainer.gpus import CPU_ENGINE, check_gpu, is_installed, require_gpu


def test_an_image_for_cpus_is_the_users_to_change():
    with pytest.raises(ConfigError, match=r"node-3: Ray gives this job GPUs.*the build for CPUs") as found:
        require_gpu(True, 8, "node-3")
    assert "Nearest: the GPU build" in str(found.value)


def test_a_node_whose_driver_shows_no_gpu_is_infrastructure():
    with pytest.raises(RetryError, match=r"node-3: .* torch sees none"):
        require_gpu(False, 0, "node-3")


def test_nothing_is_said_where_all_is_well():
    require_gpu(False, 8, "node-3")
    check_gpu("cpu")


@pytest.mark.skipif(not is_installed(CPU_ENGINE), reason=f"{CPU_ENGINE} is not installed: this is a machine with GPUs")
@pytest.mark.parametrize("device", ["gpu", "cuda:0"])
def test_the_build_for_cpus_is_told_by_a_process_that_was_given_gpus(device: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RLHF_NODE_NAME", "node-3")
    with pytest.raises(ConfigError, match=r"node-3: .*the build for CPUs"):
        check_gpu(device)
