"""YAML as ``kubectl`` reads it, with the line of every key.

PyYAML follows YAML 1.1: ``1e-6`` is a string to it, ``1:30`` is 90 and a date is a date object. ``kubectl`` turns
YAML into JSON with Go's rules, so the same file would mean two things. This reader resolves plain scalars by Go's
rules, refuses duplicate keys, and remembers lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]

MAX_NODES = 50_000
"""Nodes of a document after aliases are expanded; more is an alias bomb, not a manifest."""
MAX_DEPTH = 100
"""Levels of a document; more is no manifest, and what walks it would run out of stack."""
MAX_DIGITS = 100
"""Characters of a whole number; Python turns no more than 4300 into text again."""


class YamlFault(Exception):  # noqa: N818 - a fault of the text, not of this program
    """Unreadable YAML. ``line`` is 1-based, 0 when unknown."""

    def __init__(self, line: int, problem: str, hint: str | None = None) -> None:
        super().__init__(problem)
        self.line, self.problem, self.hint = line, problem, hint


@dataclass(slots=True)
class Document:
    value: Any
    line: int
    """First line of the document, 1-based."""
    lines: dict[Path, int] = field(default_factory=dict)
    """Line of every key and list item, 1-based."""

    def line_of(self, path: Path) -> int:
        """Line of ``path``, or of the nearest parent that is written down."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return self.line


_SURROGATE = re.compile("[\ud800-\udfff]")
_RESOLVERS = (
    ("bool", r"true|True|TRUE|false|False|FALSE|y|Y|yes|Yes|YES|n|N|no|No|NO|on|On|ON|off|Off|OFF", "tTfFyYnNoO"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("int", r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("merge", r"<<", "<"),
)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's class attribute


for _tag, _pattern, _first in _RESOLVERS:
    _chars = ["" if c == "\0" else c for c in _first]
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _chars)


def parse(text: str) -> list[Document]:
    """Documents of ``text`` that are not empty. Raises YamlFault."""
    try:
        nodes = list(_compose(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "cannot be read"
        tab = "\\t" in problem
        raise YamlFault(mark.line + 1 if mark else 0, problem, "spaces: YAML allows no tab here" if tab else None) from None
    except yaml.YAMLError as error:
        raise YamlFault(0, str(error).splitlines()[0]) from None
    except RecursionError:
        raise YamlFault(0, f"more than {MAX_DEPTH} levels") from None
    documents = []
    for node in nodes:
        document = Document(None, node.start_mark.line + 1)
        document.value = _Builder(document.lines).build(node, (), ())
        if document.value is not None:
            documents.append(document)
    return documents


def parse_value(text: str) -> Any:
    """One value as it would stand behind a key, for ``--set``. Raises YamlFault."""
    documents = parse(text)
    return documents[0].value if documents else None


def _compose(text: str) -> Iterator[yaml.Node]:
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is not None:
                yield node
    finally:
        loader.dispose()


class _Builder:
    def __init__(self, lines: dict[Path, int]) -> None:
        self.lines = lines
        self.count = 0

    def build(self, node: yaml.Node, path: Path, above: tuple[int, ...]) -> Any:
        line = node.start_mark.line + 1
        self.count += 1
        if id(node) in above or self.count > MAX_NODES:
            raise YamlFault(line, "an alias contains itself" if id(node) in above else f"more than {MAX_NODES} values after aliases")
        if len(above) > MAX_DEPTH:
            raise YamlFault(line, f"more than {MAX_DEPTH} levels")
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node, line)
        if isinstance(node, yaml.SequenceNode):
            items = []
            for index, item in enumerate(node.value):
                self.lines[(*path, index)] = item.start_mark.line + 1
                items.append(self.build(item, (*path, index), (*above, id(node))))
            return items
        assert isinstance(node, yaml.MappingNode)
        return self._mapping(node, path, (*above, id(node)))

    def _mapping(self, node: yaml.MappingNode, path: Path, above: tuple[int, ...]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag.endswith(":merge"):
                sources = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                for source in sources:
                    if not isinstance(source, yaml.MappingNode):
                        raise YamlFault(line, "<< needs a mapping or a list of mappings")
                    merged = {**self.build(source, path, above), **merged}
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise YamlFault(line, "a key must be a plain text, not a list or mapping")
            key = _key(_scalar(key_node, line))
            if key in result:
                raise YamlFault(line, f"key {key!r} is given twice; first in line {self.lines[(*path, key)]}", "remove one of the two")
            self.lines[(*path, key)] = line
            result[key] = self.build(value_node, (*path, key), above)
        return {**merged, **result}


def _key(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _scalar(node: yaml.ScalarNode, line: int) -> Any:
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    text: str = node.value
    if kind == "null":
        return None
    if kind == "bool":
        return text[0] in "tTyY" or text.lower() == "on"
    if kind == "int":
        if len(text) > MAX_DIGITS:
            raise YamlFault(line, f"a number of {len(text)} digits", "quotes, where a text is meant")
        return _integer(text.replace("_", ""))
    if kind == "float":
        return _float(text.replace("_", ""))
    if kind == "str":
        half = _SURROGATE.search(text)
        if half is not None:
            raise YamlFault(line, f"\\u{ord(half[0]):04x} is half a character", "the character itself, or \\U and its eight digits")
        return text
    raise YamlFault(line, f"tag {node.tag} is not supported", "a plain value")


def _integer(text: str) -> int:
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    for prefix, base in (("0x", 16), ("0b", 2), ("0o", 8)):
        if digits.startswith(prefix):
            return sign * int(digits[2:], base)
    octal = len(digits) > 1 and digits.startswith("0") and set(digits) <= set("01234567")
    return sign * int(digits, 8 if octal else 10)


def _float(text: str) -> float | int:
    lowered = text.lower()
    if lowered.endswith((".inf", ".nan")):
        return float(lowered.replace(".", ""))
    number = float(text)
    # Go writes 1e3 to JSON as 1000, so an integer field accepts it.
    return int(number) if number.is_integer() and abs(number) < 1e21 else number
