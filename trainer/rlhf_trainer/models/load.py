"""Models and tokenizers from a local folder or a hub id, with one clear error for each way that goes wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rlhf_api.spec import ModelSpec, ValueModelSpec
from rlhf_trainer import hub
from rlhf_trainer.errors import ConfigError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tokenizer_config.json")
# A head whose logits are scaled would give silently wrong log-probs: the engine applies the factor, our head does not.
UNSUPPORTED_LOGIT_KEYS = ("logit_scale", "logits_scaling", "final_logit_softcapping")
HEAD = "score.weight"
# In a checkpoint, of no use to one of our models: the output layer of a value model, buffers that newer code computes.
UNUSED_KEYS = ("lm_head.weight", "rotary_emb.inv_freq", "attn.bias", "attn.masked_bias", "attention.bias", "attention.masked_bias")
NAMES_SHOWN = 3

log = logging.getLogger(__name__)


def locate(spec: ModelSpec, base_dir: Path) -> str:
    """Absolute folder when ``spec.path`` is one (relative paths resolve against the manifest's folder), else a hub id."""
    folder = hub.folder_of(spec.path, base_dir)
    if folder.is_dir():
        return str(folder)
    if not hub.is_hub_id(spec.path, base_dir):
        raise ConfigError(f"model path {spec.path}: there is no folder {folder}. Nearest: {hub.NEAREST_MODEL}")
    problem = hub.unreachable(spec.path, base_dir, spec.revision)
    if problem is not None:
        raise ConfigError(f"model path {spec.path}: {problem}. Nearest: {hub.NEAREST_MODEL}")
    return spec.path


def _hub_arguments(spec: ModelSpec) -> dict[str, Any]:
    return {"revision": spec.revision, "trust_remote_code": spec.trust_remote_code}


def _unreadable(spec: ModelSpec, base_dir: Path, what: str, error: Exception) -> ConfigError:
    """A hub's answer alone misleads whoever meant a folder."""
    hub_only = hub.is_hub_id(spec.path, base_dir)
    where = f" from the hub, and there is no folder {hub.folder_of(spec.path, base_dir)}" if hub_only else ""
    return ConfigError(f"model path {spec.path}: {what}{where}: {(str(error).splitlines() or [type(error).__name__])[0]}")


def load_config(spec: ModelSpec, base_dir: Path, *, offline: bool = False) -> PretrainedConfig:
    where = locate(spec, base_dir)
    if Path(where).is_dir() and not (Path(where) / "config.json").is_file():
        raise ConfigError(f"model path {spec.path}: {where} has no config.json, so it is not a Hugging Face model folder")
    try:
        config = AutoConfig.from_pretrained(where, local_files_only=offline, **_hub_arguments(spec))
    except (OSError, ValueError) as error:
        raise _unreadable(spec, base_dir, "its configuration cannot be read", error) from error
    for key in UNSUPPORTED_LOGIT_KEYS:
        if config.to_dict().get(key) not in (None, 1, 1.0):
            raise ConfigError(
                f"model path {spec.path}: config.json sets {key}, which changes the logits in a way the trainer does not compute"
            )
    return config


def load_tokenizer(spec: ModelSpec, base_dir: Path, *, offline: bool = False) -> PreTrainedTokenizerBase:
    """The model's tokenizer, checked against its embedding: a tokenizer with more ids than the embedding has rows is refused.

    ``offline`` takes a hub id from the cache alone.
    """
    where = locate(spec, base_dir)
    if Path(where).is_dir() and not any((Path(where) / name).is_file() for name in TOKENIZER_FILES):
        raise ConfigError(f"model path {spec.path}: {where} holds no tokenizer (none of {', '.join(TOKENIZER_FILES)})")
    config = load_config(spec, base_dir, offline=offline)
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, local_files_only=offline, **_hub_arguments(spec))
    except (OSError, ValueError, KeyError) as error:
        raise _unreadable(spec, base_dir, "its tokenizer cannot be read", error) from error
    rows, ids = config.get_text_config().vocab_size, len(tokenizer)
    if ids > rows:
        raise ConfigError(
            f"model path {spec.path}: the tokenizer has {ids} ids but the embedding only {rows} rows. "
            f"Nearest: a model whose embedding was resized to at least {ids} rows and saved"
        )
    return tokenizer


def load_actor(spec: ModelSpec, base_dir: Path, dtype: torch.dtype, attention: str) -> PreTrainedModel:
    """Causal language model on the CPU in ``dtype``; ``init: random`` draws weights from ``spec.seed``."""
    config = load_config(spec, base_dir)
    arguments: dict[str, Any] = {"dtype": dtype, "attn_implementation": attention}
    if spec.init == "random":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(spec.seed)
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=spec.trust_remote_code, **arguments)
    else:
        model, _ = _pretrained(AutoModelForCausalLM, spec, base_dir, config=config, **arguments)
    return _ready(model)


def load_value(spec: ValueModelSpec, base_dir: Path, dtype: torch.dtype, attention: str, *, needs_head: bool = False) -> PreTrainedModel:
    """Sequence-classification model with a scalar head, read from ``{spec.head_name}.weight``.

    A missing head starts at zero, so that a critic's first values are 0; with ``needs_head`` (a reward model) it is refused,
    because every reward would be 0.
    """
    config = load_config(spec, base_dir)
    config.num_labels = 1
    arguments: dict[str, Any] = {"dtype": dtype, "attn_implementation": attention}
    if spec.init == "random":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(spec.seed)
            model = AutoModelForSequenceClassification.from_config(config, trust_remote_code=spec.trust_remote_code, **arguments)
        missing_head = True
    else:
        renames: dict[str, Any] = {} if spec.head_name == "score" else {"key_mapping": {rf"^{spec.head_name}\.": "score."}}
        model, missing = _pretrained(
            AutoModelForSequenceClassification, spec, base_dir, may_lack=frozenset({HEAD}), config=config, **renames, **arguments
        )
        missing_head = HEAD in missing
    if missing_head and needs_head:
        raise ConfigError(
            f"model path {spec.path}: a reward model needs the scalar head {spec.head_name}.weight, which is not there. "
            "Nearest: set models.reward.headName to the head's name"
        )
    if missing_head:
        torch.nn.init.zeros_(model.score.weight)
    return _ready(model)


def _pretrained(
    factory: Any, spec: ModelSpec, base_dir: Path, *, may_lack: frozenset[str] = frozenset(), **arguments: Any
) -> tuple[Any, set[str]]:
    """The model, and those of ``may_lack`` that the checkpoint lacks. Other missing tensors, which transformers draws, are refused."""
    where = locate(spec, base_dir)
    try:
        model, info = factory.from_pretrained(
            where, output_loading_info=True, ignore_mismatched_sizes=True, **_hub_arguments(spec), **arguments
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise _unreadable(spec, base_dir, "its weights cannot be loaded", error) from error
    missing = set(info["missing_keys"])
    _refuse_other_weights(spec, where, model, missing - may_lack, info["mismatched_keys"])
    unexpected = sorted(key for key in info["unexpected_keys"] if not key.endswith(UNUSED_KEYS))
    if unexpected:
        log.warning("model path %s: %s has %s that %s doesn't use", spec.path, where, _listed(unexpected), type(model).__name__)
    return model, missing & may_lack


def _refuse_other_weights(
    spec: ModelSpec, where: str, model: PreTrainedModel, missing: set[str], mismatched: Iterable[tuple[str, Sequence[int], Sequence[int]]]
) -> None:
    shapes = [f"{key} ({list(found)}, the model's is {list(wanted)})" for key, found, wanted in sorted(mismatched)]
    if shapes:
        raise ConfigError(
            f"model path {spec.path}: {where} has {_listed(shapes)} of another shape than the model that its config.json describes. "
            "Nearest: the config.json that was saved with these weights; for a scalar head, a model with one label"
        )
    if missing:
        total = len(model.state_dict())
        raise ConfigError(
            f"model path {spec.path}: {where} lacks {_listed(sorted(missing))} of the {total} that {type(model).__name__} needs. "
            "Nearest: a complete checkpoint of this architecture, or init: random"
        )


def _listed(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > NAMES_SHOWN else ""
    return f"{len(names)} tensor{'s' if len(names) > 1 else ''}: {', '.join(names[:NAMES_SHOWN])}{more}"


def _ready(model: PreTrainedModel) -> PreTrainedModel:
    # A cache would make transformers treat restarting positions as one sequence, silently.
    model.config.use_cache = False
    return model
