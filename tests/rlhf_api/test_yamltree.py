"""Scalars as kubectl reads them (Go's YAML 1.2 numbers), not as PyYAML does."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rlhf_api.yamltree import YamlFault, parse, parse_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("5e-7", 5e-7),
        ("5.0e-7", 5e-7),
        ("-.5", -0.5),
        ("1e3", 1000),
        ("128.0", 128),
        ("1_000", 1000),
        ("0x10", 16),
        ("010", 8),
        ("0o10", 8),
        ("true", True),
        ("yes", True),
        ("off", False),
        ("~", None),
        ("", None),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ('"1e-6"', "1e-6"),
        ("reinforce++", "reinforce++"),
        ("[-10, 10]", [-10, 10]),
        ("{a: 1}", {"a": 1}),
    ],
)
def test_scalar_is_read_as_kubectl_reads_it(text: str, value: Any) -> None:
    read = parse_value(text)
    assert read == value
    assert type(read) is type(value)


def test_special_floats() -> None:
    assert math.isnan(parse_value(".nan"))
    assert parse_value("-.inf") == -math.inf


def test_merge_keys_give_defaults() -> None:
    (document,) = parse("base: &b {a: 1, b: 2}\nuse:\n  <<: *b\n  b: 3\n")
    assert document.value["use"] == {"a": 1, "b": 3}


def test_lines_of_keys_and_items() -> None:
    (document,) = parse("a:\n  b: 1\n  c:\n    - 1\n    - d: 2\n")
    assert [document.line_of(path) for path in (("a",), ("a", "c", 1), ("a", "c", 1, "d"), ("a", "absent"))] == [1, 5, 5, 1]


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: 1\nb: " + "9" * 5000, 2, "a number of 5000 digits"),
        ("a: " + "[" * 3000 + "]" * 3000, 0, "more than 100 levels"),
        ("a:\n  b: " + "{c: " * 150 + "1" + "}" * 150, 2, "more than 100 levels"),
        ('a: 1\nb: "\\ud800"', 2, "\\ud800 is half a character"),
        ('"\\ud800": 1', 1, "\\ud800 is half a character"),
    ],
)
def test_what_nothing_could_print_or_walk_is_refused(text: str, line: int, problem: str) -> None:
    with pytest.raises(YamlFault) as caught:
        parse(text)
    assert (caught.value.line, caught.value.problem) == (line, problem)


def test_alias_bomb_is_refused() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 8)]
    with pytest.raises(YamlFault, match="after aliases"):
        parse("\n".join(levels))
