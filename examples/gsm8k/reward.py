"""GSM8K: 1.0 when the final number is right; 0.1 for a wrong one in the asked form."""

import re

NUMBER = r"-?\$?\d[\d,]*(?:\.\d+)?"


def final_number(text):
    """The number after the last `####`, else the last number of the text, else None."""
    marked = re.findall(rf"####\s*({NUMBER})", text)
    found = marked or re.findall(NUMBER, text)
    return float(found[-1].replace(",", "").replace("$", "")) if found else None


def reward_func(queries, prompts, labels, truncated):
    rewards, scores = [], []
    for query, prompt, label, cut in zip(queries, prompts, labels, truncated, strict=True):
        response = query[len(prompt) :]
        right = not cut and final_number(response) == final_number(label)
        rewards.append(1.0 if right else 0.1 if "####" in response else 0.0)
        scores.append(float(right))
    return {"rewards": rewards, "scores": scores}
