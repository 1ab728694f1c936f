"""Task "kind": after `#` the answer should be digits, after `@` letters. Reward: the share of 16 tokens of that kind.

A policy that ignores the prompt gets 0.5 at most, so a reward of 0.9 proves that the prompt is read.
"""

import re

LENGTH = 16
KINDS = {"#": str.isdigit, "@": str.isalpha}


def share(prompt, response):
    """The tiny tokenizer has one token a character, and its letters are ASCII."""
    is_kind = KINDS[prompt[0]]
    return sum(character.isascii() and is_kind(character) for character in response[:LENGTH]) / LENGTH


def reward_func(queries, prompts, labels):
    # A special token is one token but several characters: "</s>" would count as a letter.
    answers = [re.sub(r"</?s>|<pad>|<unk>", " ", query[len(prompt) :]) for query, prompt in zip(queries, prompts, strict=True)]
    rewards = [share(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
    return {"rewards": rewards, "scores": rewards}
