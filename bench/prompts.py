"""Prompts of one length and one kind: beginnings of stories, which the model continues to the length limit."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

WHO = ("a fisherman", "two sisters", "an old teacher", "a young doctor", "the baker", "a lost traveller", "three friends", "the captain")
WHERE = ("by the sea", "in the mountains", "near a quiet village", "at the edge of the forest")
WHAT = ("heard a strange noise", "found a small wooden box", "met someone unexpected", "lost the way home")
TEMPLATE = (
    "This is a long story that my grandmother used to tell us on winter evenings. "
    "Once upon a time {who} lived {where}. One morning {who} {what}, and then"
)


def prompts() -> list[str]:
    return [TEMPLATE.format(who=who, where=where, what=what) for who, where, what in product(WHO, WHERE, WHAT)]


def write(path: Path) -> None:
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts()))
