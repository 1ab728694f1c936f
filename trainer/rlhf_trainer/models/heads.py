"""The modules that workers train: a Hugging Face model whose forward returns only what a loss needs.

They take plain tensors and return plain tensors in one ``forward``, so that ZeRO-3's hooks see every parameter they must gather.
"""

from __future__ import annotations

from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf_trainer.models.logprobs import token_logprobs


class PolicyModel(nn.Module):
    """Log-probs (and entropy) of target ids at predicted positions; the output layer runs nowhere else."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor | None,
        predict_index: Tensor,
        targets: Tensor,
        temperature: float,
        want_entropy: bool,
        entropy_gradient: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """``input_ids``, ``position_ids`` [R, L]; ``predict_index``, ``targets`` [P] (index into the flattened R * L).

        Returns fp32 ``logprobs [P]`` and ``entropy [P]`` in nats (empty unless ``want_entropy``).
        """
        hidden = selected_hidden(self.model, input_ids, position_ids, attention_mask, predict_index)
        return token_logprobs(
            hidden,
            targets,
            self.model.get_output_embeddings(),
            temperature,
            want_entropy=want_entropy,
            entropy_gradient=entropy_gradient,
        )


class ValueModel(nn.Module):
    """Scalar head values at predicted positions: a critic's values or a reward model's scores."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor | None, predict_index: Tensor) -> Tensor:
        """Shapes as in PolicyModel; returns fp32 ``[P]``."""
        hidden = selected_hidden(self.model, input_ids, position_ids, attention_mask, predict_index)
        return self.model.score(hidden).float().squeeze(-1)


def selected_hidden(
    model: PreTrainedModel, input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor | None, predict_index: Tensor
) -> Tensor:
    """Last hidden states ``[P, H]`` at ``predict_index``."""
    output = model.base_model(input_ids=input_ids, position_ids=position_ids, attention_mask=attention_mask, use_cache=False)
    return output.last_hidden_state.flatten(0, 1).index_select(0, predict_index)
