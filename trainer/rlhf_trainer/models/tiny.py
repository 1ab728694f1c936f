"""Random models of about a million parameters or less, made on the spot: for tests and for ``examples/tiny``.

The vocabulary has 128 ids: 4 specials, newline, printable ASCII, filler. Any ASCII text encodes, one token is one character of the
decoded text, and digits, letters, ``#`` and ``@`` are single tokens.

    python -m rlhf_trainer.models.tiny OUTDIR --family qwen2 --seed 0
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

SPECIALS = ("<unk>", "<pad>", "<s>", "</s>")
# Filler, so that neither digits nor letters are too likely at random: bytes that alone decode to one replacement character each.
NUM_FILLERS = 28
FAMILIES = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification),
    "llama": (LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification),
}
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerBase:
    """One token a character; other bytes are dropped. No special token is added on encoding.

    Byte-level, because transformers loads every folder of type qwen2 with Qwen2's own byte-level pipeline.
    """
    letter_of = bytes_to_unicode()
    characters = [letter_of[byte] for byte in (ord("\n"), *range(32, 127), *range(0x80, 0x80 + NUM_FILLERS))]
    backend = Tokenizer(models.BPE({token: index for index, token in enumerate((*SPECIALS, *characters))}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    unk, pad, bos, eos = SPECIALS
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token=unk, pad_token=pad, bos_token=bos, eos_token=eos, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make(
    directory: Path,
    *,
    family: str = "qwen2",
    seed: int = 0,
    tied: bool = True,
    value: bool = False,
    hidden: int = 128,
    layers: int = 4,
    vocab_size: int | None = None,
    with_tokenizer: bool = True,
) -> Path:
    """Write a Hugging Face folder with random weights and return it.

    ``value`` gives a sequence-classification model whose scalar head is ``score.weight``. ``vocab_size`` above the tokenizer's
    128 pads the embedding.
    """
    config_class, causal_class, value_class = FAMILIES[family]
    tokenizer = make_tokenizer()
    config = config_class(
        vocab_size=vocab_size or len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=tied,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    if value:
        config.num_labels = 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = (value_class if value else causal_class)(config)
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    if with_tokenizer:
        tokenizer.save_pretrained(directory)
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rlhf_trainer.models.tiny", description="Make a tiny random model.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--family", choices=sorted(FAMILIES), default="qwen2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--untied", action="store_true", help="an lm_head of its own")
    parser.add_argument("--value", action="store_true", help="a scalar head: reward model or critic")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()
    make(
        args.directory,
        family=args.family,
        seed=args.seed,
        tied=not args.untied,
        value=args.value,
        hidden=args.hidden,
        layers=args.layers,
    )
    print(f"{args.directory}: tiny {args.family}, seed {args.seed}")


if __name__ == "__main__":
    main()
