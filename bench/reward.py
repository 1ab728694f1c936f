"""A reward that hardly ever ties, so that every rollout has a gradient and no engine can leave work out."""


def reward_func(queries, prompts, labels):
    answers = [query[len(prompt) :] for query, prompt in zip(queries, prompts, strict=True)]
    return {"rewards": [sum(map(ord, answer)) % 997 / 997 for answer in answers]}
