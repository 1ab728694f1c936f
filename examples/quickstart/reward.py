"""1.0 for the right number, plus 0.1 for any number, so that an answer in words is worth less than a wrong number."""

import re


def reward_func(queries, prompts, labels, truncated):
    """`queries` are prompt + response, decoded with special tokens; an answer counts once it has ended by itself."""
    rewards, scores = [], []
    for query, prompt, label, cut in zip(queries, prompts, labels, truncated, strict=True):
        answer = query[len(prompt) :].replace("<|im_end|>", "").strip()
        is_number = re.fullmatch(r"-?\d+", answer) is not None
        is_right = is_number and not cut and int(answer) == int(label)
        rewards.append(1.0 * is_right + 0.1 * is_number)
        scores.append(1.0 * is_right)
    return {"rewards": rewards, "scores": scores}
