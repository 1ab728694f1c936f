from __future__ import annotations

import pytest
import torch
from torch import nn

from rlhf_trainer.models.logprobs import entropy_of, logged_entropy, token_logprobs


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(16, 50, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.randn(50, 16, generator=generator))
    hidden = torch.randn(37, 16, generator=generator, requires_grad=True)
    return head, hidden, torch.randint(0, 50, (37,), generator=generator)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
def test_values_are_log_softmax_at_the_temperature(problem, temperature):
    head, hidden, targets = problem
    expected = (head(hidden).double() / temperature).log_softmax(-1)
    logp, entropy = token_logprobs(hidden, targets, head, temperature, want_entropy=True)
    torch.testing.assert_close(logp.double(), expected.gather(1, targets[:, None])[:, 0], atol=2e-6, rtol=0)
    torch.testing.assert_close(entropy.double(), -(expected.exp() * expected).sum(-1), atol=2e-6, rtol=0)


@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_chunked_equals_plain_in_value_and_gradient(problem, entropy_gradient):
    head, hidden, targets = problem
    results = []
    for whole_logits_bytes in (1 << 30, 0):
        hidden.grad = head.weight.grad = None
        logp, entropy = token_logprobs(
            hidden,
            targets,
            head,
            0.7,
            want_entropy=True,
            entropy_gradient=entropy_gradient,
            chunk_tokens=8,
            whole_logits_bytes=whole_logits_bytes,
        )
        assert entropy.requires_grad is entropy_gradient
        (logp.sum() + 0.1 * entropy.sum()).backward()
        results.append((logp, entropy, hidden.grad.clone(), head.weight.grad.clone()))
    for plain, chunked in zip(*results, strict=True):
        torch.testing.assert_close(chunked, plain, atol=1e-6, rtol=1e-6)


def test_without_gradient_values_are_the_same(problem):
    head, hidden, targets = problem
    plain, _ = token_logprobs(hidden, targets, head, 1.0)
    with torch.no_grad():
        chunked, entropy = token_logprobs(hidden, targets, head, 1.0, chunk_tokens=8)
    assert entropy.numel() == 0
    torch.testing.assert_close(chunked, plain, atol=1e-6, rtol=0)


def test_logged_entropy_equals_the_one_with_a_gradient_also_where_ids_are_forbidden():
    logits = torch.randn(40, 300, generator=torch.Generator().manual_seed(3)) * 4
    logits[3, 10:] = float("-inf")
    torch.testing.assert_close(logged_entropy(logits), entropy_of(logits), atol=2e-6, rtol=0)
