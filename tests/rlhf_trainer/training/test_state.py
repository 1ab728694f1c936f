from types import SimpleNamespace

import pytest
import torch

from rlhf_trainer.training import state


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checksum_of_weights_is_the_same_with_any_number_of_threads(threads, dtype):
    module = torch.nn.Linear(1000, 997, bias=False, dtype=dtype)
    with torch.no_grad():
        module.weight.copy_(torch.randn(997, 1000, generator=torch.Generator().manual_seed(0)))
    sums = set()
    for count in (1, 2, 3, 7):
        threads(count)
        sums.add(state._checksum(SimpleNamespace(module=module)))
    assert len(sums) == 1
    with torch.no_grad():
        module.weight[3, 5] = torch.nextafter(module.weight[3, 5], torch.tensor(9.0, dtype=dtype))
    assert state._checksum(SimpleNamespace(module=module)) not in sums


def test_checksum_takes_an_empty_shard():
    empty = SimpleNamespace(ds_tensor=torch.empty(0))
    assert state._checksum(SimpleNamespace(module=SimpleNamespace(parameters=lambda: [empty]))) == 0
