"""Log-probs and entropy of target ids from hidden states, without the full fp32 logits where no gradient is needed.

``log pi(id) = logit - logsumexp`` of the fp32 logits, divided once by the temperature; entropy is that of the whole vocabulary at
that temperature.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

CHUNK_TOKENS = 256
ENTROPY_ROWS = 16
FORBIDDEN = -1e30
# With a gradient, whole logits are twice as fast as chunks that are computed again in the backward pass; above this size
# (fp32 logits of one micro-batch, of which autograd keeps about three) memory matters more.
WHOLE_LOGITS_BYTES = 1 << 30


def token_logprobs(
    hidden: Tensor,
    targets: Tensor,
    head: nn.Linear,
    temperature: float,
    *,
    want_entropy: bool = False,
    entropy_gradient: bool = False,
    chunk_tokens: int = CHUNK_TOKENS,
    whole_logits_bytes: int = WHOLE_LOGITS_BYTES,
) -> tuple[Tensor, Tensor]:
    """``hidden [P, H]``, ``targets [P]`` -> fp32 ``logprobs [P]`` and ``entropy [P]`` (empty unless ``want_entropy``).

    The entropy carries a gradient only with ``entropy_gradient``.
    """

    def piece(part: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(part).float()
        if temperature != 1.0:
            logits = logits / temperature
        logprobs = -F.cross_entropy(logits, ids, reduction="none")
        if not want_entropy:
            return logprobs, logprobs.new_empty(0)
        return logprobs, entropy_of(logits) if entropy_gradient else logged_entropy(logits.detach())

    keep_graph = torch.is_grad_enabled()
    if keep_graph and hidden.shape[0] * head.out_features * 4 <= whole_logits_bytes:
        return piece(hidden, targets)
    parts = [
        checkpoint(piece, part, ids, use_reentrant=False, preserve_rng_state=False) if keep_graph else piece(part, ids)
        for part, ids in zip(hidden.split(chunk_tokens), targets.split(chunk_tokens), strict=True)
    ]
    return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropy for _, entropy in parts])


def entropy_of(logits: Tensor) -> Tensor:
    """Entropy in nats of softmax(logits), over the last axis."""
    logits = logits - logits.logsumexp(-1, keepdim=True)
    # exp(-inf) * -inf would be NaN; a forbidden id adds nothing.
    return -torch.where(logits.isneginf(), 0.0, logits.exp() * logits).sum(-1)


def logged_entropy(logits: Tensor) -> Tensor:
    """The same without a gradient: several times faster, a few rows at a time that stay in the cache over all passes."""
    parts = []
    with torch.no_grad():
        for part in logits.split(ENTROPY_ROWS):
            logp = part - part.logsumexp(-1, keepdim=True)
            # A forbidden id (-inf) has p = 0; its product must be 0 and not NaN.
            parts.append(-torch.linalg.vecdot(logp.exp(), logp.clamp_min_(FORBIDDEN)))
    return torch.cat(parts) if parts else logits.new_empty(0)
