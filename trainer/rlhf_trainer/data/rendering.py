"""A row's prompt -> the text and the ids that the engine is given.

Template first, then chat template, then token ids with exactly one BOS: chat templates write one, tokenizers add
one, and both at once is the common fault. Only the front counts; a BOS-like token further inside (``<|im_start|>``
is the BOS of SmolLM2) belongs to the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_api.spec import DataSpec
from rlhf_api.violations import Violation
from rlhf_trainer.data.sources import shorten
from rlhf_trainer.errors import ConfigError

PLACEHOLDER = "{}"
PROBE = "a"
SURROGATE = re.compile("[\ud800-\udfff]")
"""JSON's ``\\ud800`` without its other half; pairs were joined to one character on reading."""


class RowError(ValueError):
    """A row's prompt can't be rendered; the caller adds where the row is."""


class Renderer:
    """``tokenizer`` is a Hugging Face tokenizer; ``None`` renders text for a dry run that has no tokenizer."""

    def __init__(self, data: DataSpec, tokenizer: Any | None) -> None:
        self._data = data
        self._tokenizer = tokenizer
        if data.prompt_template is not None and data.prompt_template.count(PLACEHOLDER) != 1:
            raise ConfigError(
                Violation(
                    "spec.data.promptTemplate",
                    shorten(data.prompt_template),
                    "the template needs {} exactly once, where the prompt goes",
                    "'Question: {} Answer:'",
                )
            )
        if tokenizer is not None and data.apply_chat_template and data.chat_template is None and tokenizer.chat_template is None:
            raise ConfigError(
                Violation(
                    "spec.data.applyChatTemplate",
                    True,
                    f"the tokenizer of {tokenizer.name_or_path!r} has no chat template",
                    "data.chatTemplate with a template, or applyChatTemplate: false",
                )
            )
        self._front = _front_ids(tokenizer) if tokenizer is not None else []

    @property
    def has_tokenizer(self) -> bool:
        return self._tokenizer is not None

    def text(self, prompt: object) -> str:
        """``prompt``: text, or chat messages ``[{"role": ..., "content": ...}]``. Raises ``RowError``."""
        text = self._text(prompt)
        if (found := SURROGATE.search(text)) is not None:
            place = f"near {shorten(ascii(text[max(0, found.start() - 20) : found.end() + 20]), 120)}"
            raise RowError(f"holds the lone surrogate {ascii(found.group())[1:-1]} {place}, which is no character and can't be tokenised")
        return text

    def _text(self, prompt: object) -> str:
        data = self._data
        if isinstance(prompt, str):
            filled = _fill(data.prompt_template, prompt)
            if not data.apply_chat_template:
                return filled
            return self._chat([{"role": "user", "content": filled}])
        messages = _messages(prompt)
        if not data.apply_chat_template:
            raise RowError("holds chat messages, which need applyChatTemplate: true")
        return self._chat(_fill_last_user(data.prompt_template, messages))

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text with one BOS, or none when neither template nor tokenizer has one."""
        assert self._tokenizer is not None
        plain = self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return [self._with_front(list(row)) for row in plain]

    def cut_left(self, ids: Sequence[int], limit: int) -> list[int]:
        """The last ids, with what stands in front of every prompt kept in front."""
        bos = self._bos
        front = self._front or ([bos] if bos is not None and ids[:1] == [bos] else [])
        kept = front[:limit]
        rest = limit - len(kept)
        return kept + list(ids[len(ids) - rest :] if rest else [])

    def decode(self, ids: Sequence[int]) -> str:
        assert self._tokenizer is not None
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    @property
    def _bos(self) -> int | None:
        bos: int | None = self._tokenizer.bos_token_id if self._tokenizer is not None else None
        return bos

    def _with_front(self, ids: list[int]) -> list[int]:
        bos, front = self._bos, self._front
        first = next((i for i, token in enumerate(ids) if token != bos), len(ids))
        if not front:
            return [bos, *ids[first:]] if bos is not None and first else ids
        if ids[: len(front)] == front and front != [bos]:
            return ids
        return front + (ids[first:] if bos in front else ids)

    def _chat(self, messages: list[dict[str, Any]]) -> str:
        import jinja2

        if self._tokenizer is None:
            return "\n".join(str(message["content"]) for message in messages)
        is_prefilled = messages[-1]["role"] == "assistant"
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages,
                chat_template=self._data.chat_template,
                tokenize=False,
                add_generation_prompt=not is_prefilled,
                continue_final_message=is_prefilled,
            )
        except (jinja2.TemplateError, ValueError, TypeError) as error:
            raise RowError(f"is refused by the chat template: {type(error).__name__}: {error}") from error
        return text


def _front_ids(tokenizer: Any) -> list[int]:
    """The special ids that the tokenizer itself puts in front of a text; [] for most."""
    plain = list(tokenizer(PROBE, add_special_tokens=False)["input_ids"])
    special = list(tokenizer(PROBE, add_special_tokens=True)["input_ids"])
    for start in range(len(special) - len(plain) + 1):
        if special[start : start + len(plain)] == plain:
            return special[:start]
    return []


def _fill(template: str | None, prompt: str) -> str:
    return prompt if template is None else template.replace(PLACEHOLDER, prompt)


def _messages(prompt: object) -> list[dict[str, Any]]:
    if prompt is None:
        raise RowError("is empty (null)")
    if not isinstance(prompt, Sequence) or not prompt:
        raise RowError(f"holds {shorten(prompt, 60)!r} ({type(prompt).__name__}), neither text nor a list of chat messages")
    for message in prompt:
        if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
            raise RowError(f"holds {shorten(message, 60)!r}, which is no chat message with role and content")
    return [dict(message) for message in prompt]


def _fill_last_user(template: str | None, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In a conversation the template goes around the last user message."""
    if template is None:
        return messages
    users = [index for index, message in enumerate(messages) if message["role"] == "user"]
    if not users or not isinstance(messages[users[-1]]["content"], str):
        raise RowError("has no user message with text for promptTemplate")
    last = messages[users[-1]]
    filled = {**last, "content": _fill(template, last["content"])}
    return [*messages[: users[-1]], filled, *messages[users[-1] + 1 :]]
