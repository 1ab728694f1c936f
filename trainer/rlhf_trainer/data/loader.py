"""Which prompt is drawn when: a pure function of (data, seed, epoch, position).

The order comes from the raw stream of a PCG64 bit generator, which NumPy keeps stable across versions (its
``permutation`` is not covered by that promise), so that a resumed job draws the same prompts after an upgrade too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_api.spec import DataSpec
from rlhf_trainer.errors import ConfigError
from rlhf_trainer.types import Prompt, PromptGroup

Indices = NDArray[np.int64]


class PromptLoader:
    """Draws prompts for ``epochs`` passes over the weighted data sets.

    A set of ``s`` prompts and weight ``w`` gives ``round(w * s)`` draws (at least 1) an epoch: whole copies, and for
    the rest a part drawn anew each epoch. Epochs do not mix: the last step of an epoch takes what is left, so a job
    has ``epochs * ceil(draws / promptsPerStep)`` steps and every prompt is drawn.
    """

    def __init__(self, prompts_by_dataset: Mapping[str, Sequence[Prompt]], data: DataSpec, seed: int, epochs: int | None = None) -> None:
        """``epochs`` None: without end. The order of ``prompts_by_dataset`` is that of ``data.datasets``."""
        if len(prompts_by_dataset) != len(data.datasets):
            raise ValueError(f"{len(prompts_by_dataset)} prompt lists for {len(data.datasets)} data sets")
        self._names = list(prompts_by_dataset)
        self._prompts = [list(prompts) for prompts in prompts_by_dataset.values()]
        self._data = data
        self._seed = seed
        self._epochs = epochs
        self._draw_counts = [
            max(1, round(dataset.weight * len(prompts))) for dataset, prompts in zip(data.datasets, self._prompts, strict=True)
        ]
        self._epoch = 0
        self._position = 0
        self._draws = 0
        self._order = self._epoch_order(0)
        self._fingerprint: str | None = None

    @property
    def epoch(self) -> int:
        """Epoch of the latest draw, from 0."""
        return self._epoch

    @property
    def draws_per_epoch(self) -> int:
        return sum(self._draw_counts)

    def total_draws(self, epochs: int) -> int:
        return epochs * self.draws_per_epoch

    def total_steps(self, epochs: int, prompts_per_step: int) -> int:
        return epochs * -(-self.draws_per_epoch // prompts_per_step)

    def take(self, n: int) -> list[PromptGroup]:
        """The next draws: ``n``, fewer at the end of an epoch, none after the last one."""
        if self._position == self.draws_per_epoch:
            if self._epochs is not None and self._epoch + 1 >= self._epochs:
                return []
            self._epoch += 1
            self._position = 0
            self._order = self._epoch_order(self._epoch)
        chosen = self._order[self._position : self._position + n]
        groups = [PromptGroup(self._draws + offset, self._prompts[dataset][row]) for offset, (dataset, row) in enumerate(chosen.tolist())]
        self._position += len(groups)
        self._draws += len(groups)
        return groups

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "position": self._position, "draws": self._draws, "fingerprint": self.fingerprint()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a saved position. Raises ``ConfigError`` when it was saved over other data: never a silent skip."""
        differences = compare(state["fingerprint"], self.fingerprint())
        if differences:
            listing = "\n  ".join(differences)
            raise ConfigError(
                f"spec.data: the checkpoint was made with other data, so its position {state['position']} in epoch {state['epoch']} means "
                f"nothing here:\n  {listing}\n"
                "  Rule: a job resumes only on the data it started with. Nearest: restore the data, or start anew with --fresh.\n"
                f"  Saved: {state['fingerprint']}\n  Now:   {self.fingerprint()}"
            )
        self._epoch, self._position, self._draws = state["epoch"], state["position"], state["draws"]
        self._order = self._epoch_order(self._epoch)

    def fingerprint(self) -> str:
        """JSON of everything the order and content of the draws depend on."""
        if self._fingerprint is None:
            data = self._data
            facts = {
                "seed": self._seed,
                "shuffle": data.shuffle,
                "datasets": [
                    {
                        "name": name,
                        "path": dataset.path,
                        "config": dataset.config,
                        "split": dataset.split,
                        "weight": dataset.weight,
                        "prompts": len(prompts),
                        "sha256": content_hash(prompts),
                    }
                    for name, dataset, prompts in zip(self._names, data.datasets, self._prompts, strict=True)
                ],
                "filters": {
                    "maxLength": data.max_length,
                    "maxSamples": data.max_samples,
                    "minResponseTokens": data.min_response_tokens,
                    "overlongPrompts": data.overlong_prompts,
                },
            }
            self._fingerprint = json.dumps(facts, sort_keys=True)
        return self._fingerprint

    def _epoch_order(self, epoch: int) -> Indices:
        """``[draws, 2]`` of (data set, row)."""
        parts = [
            np.stack([np.full(count, dataset), self._rows(epoch, dataset, len(prompts), count)], axis=1)
            for dataset, (prompts, count) in enumerate(zip(self._prompts, self._draw_counts, strict=True))
        ]
        order: Indices = np.concatenate(parts)
        if self._data.shuffle:
            order = order[_permutation(len(order), self._seed, epoch)]
        return order

    def _rows(self, epoch: int, dataset: int, size: int, count: int) -> Indices:
        copies, rest = divmod(count, size)
        part = np.sort(_permutation(size, self._seed, epoch, dataset)[:rest])
        return np.concatenate([np.tile(np.arange(size), copies), part])


def _permutation(size: int, *entropy: int) -> Indices:
    keys = np.random.PCG64(np.random.SeedSequence(entropy)).random_raw(size)
    return np.argsort(keys, kind="stable")


def content_hash(prompts: Sequence[Prompt]) -> str:
    """Over ids, labels and metadata, so that another tokenizer or template shows as well as another row."""
    digest = hashlib.sha256()
    for prompt in prompts:
        content = (prompt.row, prompt.ids, prompt.label, prompt.metadata)
        digest.update(json.dumps(content, sort_keys=True, default=_stable).encode())
        digest.update(b"\n")
    return digest.hexdigest()[:16]


def _stable(value: object) -> str:
    """Text of a value that JSON lacks. Never ``repr``, which may hold a memory address."""
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if type(value).__module__ in ("datetime", "decimal", "uuid"):
        return str(value)
    return type(value).__qualname__


def compare(saved: str, current: str) -> list[str]:
    """Differences of two fingerprints, one line each; [] when they are equal."""
    before, now = _flat(json.loads(saved)), _flat(json.loads(current))
    keys = list(dict.fromkeys([*before, *now]))
    return [f"{key}: saved {before.get(key)!r}, now {now.get(key)!r}" for key in keys if before.get(key) != now.get(key)]


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        items = [(f"{prefix}.{key}" if prefix else key, item) for key, item in value.items()]
    elif isinstance(value, list):
        items = [(f"{prefix}[{index}]", item) for index, item in enumerate(value)]
    else:
        return {prefix: value}
    return {key: leaf for name, item in items for key, leaf in _flat(item, name).items()}
