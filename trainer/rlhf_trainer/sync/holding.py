"""Where a Hugging Face parameter lives inside a vLLM model, and whether it is the one the trainer sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.platforms import current_platform

from rlhf_trainer.sync.check import Witness, as_rows, compare_outputs, compare_values, probe_input


@dataclass(frozen=True)
class Place:
    """A parameter's part on this worker."""

    module: nn.Module
    attribute: str
    """`weight` or `bias`."""
    local_rows: slice
    """Rows of the module's parameter (of its output, where the weight is hidden)."""
    rows: slice
    """Rows of the whole tensor that lie there."""
    columns: slice | None = None
    """Columns of the whole tensor that lie there; None = all."""

    @property
    def hidden(self) -> bool:
        """Whether the layer computes with a prepacked copy instead of the parameter (CPU)."""
        return self.attribute == "weight" and current_platform.is_cpu() and isinstance(self.module, LinearBase | ParallelLMHead)


def locate(model: nn.Module, name: str) -> Place | None:
    """The place of ``name``, or None where this code knows no rule (fused experts, quantised layers)."""
    path, _, attribute = name.rpartition(".")
    parent, _, leaf = path.rpartition(".")
    packed: dict[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    merged = next((key for key, parts in packed.items() if leaf in parts and len(parts) > 1), None)
    modules = dict(model.named_modules())
    module = modules.get(f"{parent}.{merged}" if parent and merged else merged or path)
    if module is None or attribute not in ("weight", "bias"):
        return None
    parameter = module._parameters.get(attribute)
    if parameter is None and attribute not in module._parameters:
        return None
    if isinstance(module, QKVParallelLinear):
        return _qkv(module, attribute, packed[merged].index(leaf)) if merged else None
    if isinstance(module, MergedColumnParallelLinear):
        return _merged(module, attribute, packed[merged].index(leaf)) if merged else None
    if isinstance(module, VocabParallelEmbedding):
        indices = module.shard_indices
        rows = slice(indices.org_vocab_start_index, indices.org_vocab_end_index)
        return Place(module, attribute, slice(0, rows.stop - rows.start), rows)
    if isinstance(module, ColumnParallelLinear):
        size = module.output_size_per_partition
        return Place(module, attribute, slice(0, size), slice(module.tp_rank * size, (module.tp_rank + 1) * size))
    if isinstance(module, RowParallelLinear) and attribute == "weight":
        size = module.input_size_per_partition
        columns = slice(module.tp_rank * size, (module.tp_rank + 1) * size) if module.tp_size > 1 else None
        return Place(module, attribute, slice(0, module.output_size), slice(0, module.output_size), columns)
    if isinstance(module, LinearBase):
        return Place(module, attribute, slice(0, module.output_size), slice(0, module.output_size))
    if parameter is None or parameter.dim() == 0:
        return None
    return Place(module, attribute, slice(0, len(parameter)), slice(0, len(parameter)))


def _qkv(module: QKVParallelLinear, attribute: str, part: int) -> Place:
    head = module.head_size
    q, kv, v = module.num_heads * head, module.num_kv_heads * head, module.num_kv_heads * module.v_head_size
    start, size = ((0, q), (q, kv), (q + kv, v))[part]
    shard = module.tp_rank if part == 0 else module.tp_rank // module.num_kv_head_replicas
    return Place(module, attribute, slice(start, start + size), slice(shard * size, (shard + 1) * size))


def _merged(module: MergedColumnParallelLinear, attribute: str, part: int) -> Place:
    sizes = [size // module.tp_size for size in module.output_sizes]
    start, size = sum(sizes[:part]), sizes[part]
    return Place(module, attribute, slice(start, start + size), slice(module.tp_rank * size, (module.tp_rank + 1) * size))


def locatable(model: nn.Module, names: Sequence[str]) -> list[str]:
    return [name for name in names if locate(model, name) is not None]


@torch.no_grad()
def faults(model: nn.Module, witnesses: Sequence[Witness]) -> list[str]:
    """``name: what differs`` for each witness the model contradicts."""
    found: list[str] = []
    for expected in witnesses:
        place = locate(model, expected.name)
        if place is None:
            found.append(f"{expected.name}: not in this model")
            continue
        fault = _fault(place, expected)
        if fault is not None:
            found.append(f"{expected.name}: {fault}")
    return found


def _fault(place: Place, expected: Witness) -> str | None:
    if place.hidden:
        probe = probe_input(expected, _columns(place), expected.column_values.dtype, place.columns)
        outputs: Tensor = place.module.quant_method.apply(place.module, probe, None)
        return compare_outputs(outputs[:, place.local_rows], expected, place.rows, place.columns)
    held = as_rows(place.module.get_parameter(place.attribute).data)[place.local_rows]
    return compare_values(held, expected, place.rows, place.columns)


def _columns(place: Place) -> int:
    module = place.module
    return int(module.embedding_dim if isinstance(module, VocabParallelEmbedding) else module.input_size)
