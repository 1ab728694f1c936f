"""Which rows go to which rank and micro-batch. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlhf_trainer.types import TokenRow


def plan(
    rows: Sequence[TokenRow],
    num_ranks: int,
    *,
    micro_batch_size: int = 1,
    max_tokens: int | None = None,
    share_prompt: bool = True,
) -> list[list[list[TokenRow]]]:
    """``[rank][micro-batch]`` of rows, balanced by tokens; every rank gets the same number of micro-batches, some may be empty.

    A micro-batch holds at most ``micro_batch_size`` rows or, with ``max_tokens``, at most that many tokens to compute (a longer
    row is alone). With ``share_prompt`` rows of a group stay together as far as those limits and an even share for every rank
    allow, and their prompt counts once. The order depends on nothing but the arguments.
    """
    per_rank = -(-len(rows) // num_ranks)
    limit_rows = per_rank if max_tokens is not None else min(micro_batch_size, per_rank)
    units = list(_units(rows, limit_rows, max_tokens, share_prompt))
    ranks: list[list[list[TokenRow]]] = [[] for _ in range(num_ranks)]
    load = [0] * num_ranks
    for unit in sorted(units, key=lambda unit: -_tokens(unit)):
        rank = load.index(min(load))
        ranks[rank].append(unit)
        load[rank] += _tokens(unit)
    result = [_micro_batches(units_of_rank, micro_batch_size, max_tokens) for units_of_rank in ranks]
    longest = max(map(len, result))
    return [micro_batches + [[] for _ in range(longest - len(micro_batches))] for micro_batches in result]


def _units(rows: Sequence[TokenRow], limit_rows: int, max_tokens: int | None, share_prompt: bool) -> Iterator[list[TokenRow]]:
    """Rows that stay together: one each, or parts of a group within the limits."""
    if not share_prompt:
        yield from ([row] for row in rows)
        return
    groups: dict[int, list[TokenRow]] = {}
    for row in rows:
        groups.setdefault(row.group_id, []).append(row)
    for group in groups.values():
        unit: list[TokenRow] = []
        for row in group:
            if unit and (len(unit) >= limit_rows or (max_tokens is not None and _tokens([*unit, row]) > max_tokens)):
                yield unit
                unit = []
            unit.append(row)
        yield unit


def _tokens(unit: Sequence[TokenRow]) -> int:
    """Tokens to compute: the prompt once, then every answer."""
    return unit[0].prompt_length + sum(len(row.ids) - row.prompt_length for row in unit)


def _micro_batches(units: Sequence[list[TokenRow]], micro_batch_size: int, max_tokens: int | None) -> list[list[TokenRow]]:
    """First fit of units that come longest first."""
    batches: list[list[TokenRow]] = []
    room: list[int] = []
    for unit in units:
        cost = _tokens(unit) if max_tokens is not None else len(unit)
        for b, free in enumerate(room):
            if cost <= free:
                batches[b].extend(unit)
                room[b] -= cost
                break
        else:
            batches.append(list(unit))
            room.append((max_tokens if max_tokens is not None else micro_batch_size) - cost)
    return batches
