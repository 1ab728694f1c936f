from __future__ import annotations

import numpy as np
import pytest
import torch

from rlhf_api.spec import ModelSpec
from rlhf_trainer.models.heads import PolicyModel
from rlhf_trainer.models.load import load_actor
from rlhf_trainer.models.packing import pack
from rlhf_trainer.types import TokenRow

LENGTHS, PROMPTS = [[3, 7, 1], [5], [0, 9]], [4, 6, 3]
FORMS = {
    "one row a rollout": {"packing": False},
    "packed": {"share_prompt": False},
    "shared prompt": {"share_prompt": True},
    "several packed rows": {"share_prompt": True, "row_tokens": 16},
}


def policy(root, name, attention="sdpa"):
    return PolicyModel(load_actor(ModelSpec(path=name), root, torch.float32, attention)).eval()


def forward(module, packed, temperature=1.0):
    return module(**packed.inputs(), targets=packed.targets, temperature=temperature, want_entropy=True)


def alone(module, row: TokenRow) -> np.ndarray:
    """Plain transformers on one sequence: shifted log-probs, zero outside the mask."""
    ids = torch.from_numpy(row.ids.astype(np.int64))[None]
    with torch.no_grad():
        logits = module.model(input_ids=ids).logits[0, :-1].float()
    logp = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0].numpy()
    return np.where(row.mask, logp, 0.0)


@pytest.mark.parametrize("name", ["qwen2-tied", "llama-untied"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gaps", [False, True])
def test_packed_logprobs_equal_each_sequence_alone(tiny_models, make_rows, name, attention, form, gaps):
    rows = make_rows(LENGTHS, PROMPTS, gaps=gaps)
    module = policy(tiny_models, name, attention)
    packed = pack(rows, attention=attention, **FORMS[form])
    with torch.no_grad():
        logp, _ = forward(module, packed)
    for row, got in zip(rows, packed.scatter(rows, logp), strict=True):
        np.testing.assert_allclose(got, alone(module, row), atol=2e-6)


@pytest.mark.parametrize("name", ["qwen2-tied", "llama-untied"])
def test_shared_prompt_has_the_gradient_of_the_plain_way(tiny_models, make_rows, name):
    rows = make_rows(LENGTHS, PROMPTS)
    gradients = []
    for form in FORMS.values():
        module = policy(tiny_models, name)
        packed = pack(rows, **form)
        logp, _ = forward(module, packed)
        weights = torch.linspace(-1, 1, packed.mask.numel()).view(packed.mask.shape)
        (packed.to_rows(logp) * weights).sum().backward()
        gradients.append({key: parameter.grad for key, parameter in module.named_parameters()})
    for other in gradients[1:]:
        for key, gradient in gradients[0].items():
            torch.testing.assert_close(other[key], gradient, atol=1e-5, rtol=1e-5)


def test_shared_prompt_is_computed_once_and_last_ids_never(make_rows):
    rows = make_rows([[4, 4, 4]], [10])
    assert pack(rows, share_prompt=False).input_ids.numel() == 3 * (10 + 3)
    assert pack(rows, share_prompt=True).input_ids.numel() == 10 + 3 * 3


def test_rows_with_another_prompt_do_not_share(make_rows):
    rows = make_rows([[4], [4]], [10, 10])
    rows[1].group_id = rows[0].group_id
    assert pack(rows, share_prompt=True).input_ids.numel() == 2 * 13


def test_varlen_attention_gets_one_row_positions_that_restart_and_no_mask(make_rows):
    rows = make_rows([[2, 2], [3]], [3, 2])
    packed = pack(rows, attention="flash_attention_2", share_prompt=True)
    assert packed.attention_mask is None
    assert packed.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]]


@pytest.mark.parametrize("lengths", [[[0, 0]], []])
def test_rc52_nothing_to_predict_gives_a_connected_graph_with_zero_gradient(tiny_models, make_rows, lengths):
    rows = make_rows(lengths, [4] * len(lengths))
    module = policy(tiny_models, "qwen2-tied")
    packed = pack(rows)
    logp, _ = forward(module, packed)
    torch.where(packed.mask, packed.to_rows(logp), 0.0).sum().backward()
    assert not packed.mask.any()
    assert all(bool((parameter.grad == 0).all()) for parameter in module.parameters())
    assert all(bool((values == 0).all()) for values in packed.scatter(rows, logp))


def test_rc16_masks_ignore_what_ids_look_like(tiny_models, make_rows):
    rows = make_rows([[4, 4]], [5])
    pad = eos = 3
    for row in rows:
        row.ids[2] = pad  # inside the prompt
        row.ids[-1] = eos  # the end the policy sampled
    module = policy(tiny_models, "qwen2-tied")
    packed = pack(rows, packing=False)
    with torch.no_grad():
        logp, _ = forward(module, packed)
    for row, got in zip(rows, packed.scatter(rows, logp), strict=True):
        assert got[-1] != 0
        np.testing.assert_allclose(got, alone(module, row), atol=2e-6)


def test_reading_at_the_last_id_gives_one_prediction_a_row(make_rows):
    rows = make_rows([[2, 0]], [3])
    packed = pack(rows, read="last")
    assert packed.rows_of.tolist() == [0, 1]
    assert packed.input_ids.flatten()[packed.predict_index].tolist() == [int(row.ids[-1]) for row in rows]
