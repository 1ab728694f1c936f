"""A manifest file: YAML documents, overrides, validation, and where every value stands."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rlhf_api import API_VERSION, KIND, rules
from rlhf_api.faults import SchemaFault, schema_faults
from rlhf_api.fields import Path as FieldPath
from rlhf_api.fields import dotted
from rlhf_api.files import ConfigMap, files_of, read_config_maps
from rlhf_api.objectmeta import metadata_faults
from rlhf_api.presets import PRESETS
from rlhf_api.resolve import derive, resolve
from rlhf_api.spec import RLHFJob
from rlhf_api.violations import Violation
from rlhf_api.yamltree import Document, YamlFault, parse, parse_value

_PATH_PART = re.compile(r"([^.\[\]]+)((?:\[\d+\])*)")
_TOP_LEVEL = ("apiVersion", "kind", "metadata", "spec")
_STAND_IN: dict[str, Any] = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": {"name": "x"},
    "spec": {"rl": {"algorithm": "grpo"}, "models": {"actor": {"path": "x"}}, "data": {"datasets": [{"path": "x"}]}},
}
"""The smallest valid job; stands in for required values that are absent while the other rules are checked."""


class ManifestError(Exception):
    """The manifest cannot be used; ``violations`` holds every fault that was found."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        super().__init__("\n".join(str(each) for each in violations))
        self.violations = list(violations)


@dataclass(frozen=True, slots=True)
class Source:
    """Where values come from, for messages."""

    path: Path
    document: Document
    overrides: Mapping[FieldPath, str] = field(default_factory=dict)
    """Path that an override wrote -> the override as given."""

    def locate(self, violation: Violation) -> Violation:
        """``violation`` with the line, or the override, that its field comes from."""
        place = _parse_path(violation.field)
        for end in range(len(place), 0, -1):
            if place[:end] in self.overrides:
                return replace(violation, where=f"--set {self.overrides[place[:end]]}")
        return replace(violation, where=f"{self.path}:{self.document.line_of(place)}")


@dataclass(frozen=True, slots=True)
class LoadedManifest:
    job: RLHFJob
    """Resolved: preset merged under the user's values, derived defaults filled in."""
    path: Path
    base_dir: Path
    """Folder that relative paths refer to, where ``files`` is empty."""
    files: dict[str, str]
    """Files of the ConfigMaps in the same file: relative path -> content."""
    warnings: list[Violation]
    source: Source

    def locate(self, violation: Violation) -> Violation:
        return self.source.locate(violation)

    def materialize(self, folder: Path) -> Path:
        """The folder that relative paths refer to: ``base_dir``, or ``folder`` with ``files`` and links to ``base_dir``.

        ``folder`` is made anew: what an earlier call, or anybody else, left in it is gone.
        """
        if not self.files:
            return self.base_dir
        parent = folder.parent.resolve()
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=parent, ignore_cleanup_errors=True) as scratch:
            built = Path(scratch, "new")
            built.mkdir()
            for name, text in self.files.items():
                (built / name).parent.mkdir(parents=True, exist_ok=True)
                (built / name).write_text(text, encoding="utf-8")
            taken = {name.partition("/")[0] for name in self.files}
            for entry in self.base_dir.iterdir():
                if entry.name not in taken and entry not in (parent / folder.name, Path(scratch)):
                    (built / entry.name).symlink_to(entry)
            # A folder cannot replace a full one in a single step; the old one goes with the scratch folder.
            if folder.exists() or folder.is_symlink():
                folder.rename(Path(scratch, "old"))
            built.rename(folder)
        return folder


def load(path: str | Path, overrides: Sequence[str] = ()) -> LoadedManifest:
    """Reads, overrides, validates and resolves. Raises ManifestError with every fault at once."""
    path = Path(path)
    document, config_maps = _documents(path)
    raw, written = _override(document.value, overrides)
    source = Source(path, document, written)
    job, violations = validate(raw)
    violations = [*metadata_faults(raw), *violations]
    if job is None or violations:
        raise ManifestError(_in_file_order([source.locate(each) for each in violations]))
    files, faults = files_of(job.spec.cluster.files, config_maps)
    if faults:
        raise ManifestError([source.locate(each) for each in faults])
    base_dir = path.resolve().parent
    return LoadedManifest(derive(job), path, base_dir, files, [source.locate(each) for each in rules.warnings(job)], source)


def validate(raw: Mapping[str, Any]) -> tuple[RLHFJob | None, list[Violation]]:
    """The job of a manifest's mapping with its preset, not derived; or None and every schema and rule fault."""
    resolved = resolve(raw)
    try:
        job = _parse(resolved)
    except ValidationError as error:
        faults = schema_faults(error, resolved)
        job, unknown = _without(resolved, faults)
        return None, [fault.violation for fault in faults] + rules.check(job, unknown)
    violations = rules.check(job)
    return (None, violations) if violations else (job, [])


def _parse(raw: Mapping[str, Any]) -> RLHFJob:
    return RLHFJob.model_validate(raw, by_alias=True, by_name=False)


def _without(raw: dict[str, Any], faults: list[SchemaFault]) -> tuple[RLHFJob, set[str]]:
    """A job with every faulty value replaced by a default, and the paths that no longer say what the user wrote."""
    unknown: set[str] = set()
    user = raw
    while True:
        for fault in faults:
            path = fault.path[:-1] if fault.missing and len(fault.path) > 1 else fault.path
            # An item cannot leave its list without moving the others, so the list goes.
            first_index = next((index for index, part in enumerate(path) if isinstance(part, int)), len(path))
            path = path[:first_index]
            unknown |= {dotted(fault.path), *fault.meant}
            if not fault.missing or fault.path not in _stand_in_paths():
                user = _removed(user, path)
                unknown.add(dotted(path))
        try:
            return _parse(resolve(_merged(user, _STAND_IN))), unknown | _of_preset(unknown)
        except ValidationError as error:
            faults = schema_faults(error, _merged(user, _STAND_IN))


def _stand_in_paths() -> set[FieldPath]:
    found: set[FieldPath] = set()

    def walk(node: Any, path: FieldPath) -> None:
        found.add(path)
        if isinstance(node, dict):
            for key, value in node.items():
                walk(value, (*path, key))

    walk(_STAND_IN, ())
    return found


def _of_preset(unknown: set[str]) -> set[str]:
    """Without a known algorithm, the fields that it sets are unknown as well."""
    if not unknown & {"spec", "spec.rl", "spec.rl.algorithm"}:
        return set()
    return {f"spec.rl.{name}" for name in PRESETS["grpo"].fields}


def _removed(node: Any, path: FieldPath) -> Any:
    if not path or not isinstance(node, Mapping):
        return node
    if len(path) == 1:
        return {key: value for key, value in node.items() if key != path[0]}
    return {key: _removed(value, path[1:]) if key == path[0] else value for key, value in node.items()}


def _merged(user: Any, below: Any) -> Any:
    if not isinstance(user, Mapping) or not isinstance(below, Mapping):
        return user
    return {**below, **{key: _merged(value, below[key]) if key in below else value for key, value in user.items()}}


def _documents(path: Path) -> tuple[Document, list[ConfigMap]]:
    """The RLHFJob's document and the ConfigMaps beside it."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ManifestError([_file_fault(path, f"the file is UTF-8 text; byte {error.start} is not")]) from None
    except OSError as error:
        raise ManifestError([_file_fault(path, f"the file can be read ({error.strerror})", _similar_file(path))]) from None
    try:
        documents = parse(text)
    except YamlFault as fault:
        where = f"{path}:{fault.line}" if fault.line else str(path)
        raise ManifestError([Violation("YAML", None, f"this is not readable: {fault.problem}", fault.hint, where)]) from None
    for document in documents:
        if not isinstance(document.value, dict):
            raise ManifestError([_file_fault(path, "each document is a mapping", f"apiVersion: {API_VERSION}", document.line)])
    jobs = [document for document in documents if document.value.get("kind") == KIND]
    if len(jobs) != 1:
        raise ManifestError([_no_single_job(path, documents, jobs)])
    config_maps, faults = read_config_maps(path, [document for document in documents if document.value.get("kind") == "ConfigMap"])
    if faults:
        raise ManifestError(faults)
    return jobs[0], config_maps


def _no_single_job(path: Path, documents: list[Document], jobs: list[Document]) -> Violation:
    rule = f"the file holds exactly one {KIND}"
    if jobs:
        lines = ", ".join(str(job.line) for job in jobs)
        return Violation("kind", f"{len(jobs)} in lines {lines}", rule, "one file each", f"{path}:{jobs[1].line}")
    kinds = [str(document.value.get("kind")) for document in documents]
    close = get_close_matches(KIND.lower(), [kind.lower() for kind in kinds], n=1, cutoff=0.7)
    if not kinds:
        return _file_fault(path, f"{rule}; it is empty", f"apiVersion: {API_VERSION}, kind: {KIND}")
    index = [kind.lower() for kind in kinds].index(close[0]) if close else 0
    line = documents[index].line_of(("kind",))
    return Violation("kind", kinds[index], f"{rule}; kinds here: {', '.join(kinds)}", f"kind: {KIND}", f"{path}:{line}")


def _file_fault(path: Path, rule: str, nearest: str | None = None, line: int | None = None) -> Violation:
    return Violation("manifest", None, rule, nearest, f"{path}:{line}" if line else str(path))


def _similar_file(path: Path) -> str | None:
    names = [entry.name for entry in path.parent.iterdir() if entry.suffix in (".yaml", ".yml")] if path.parent.is_dir() else []
    close = get_close_matches(path.name, names, n=1)
    return str(path.with_name(close[0])) if close else None


def _parse_path(text: str) -> FieldPath:
    parts: list[str | int] = []
    for match in _PATH_PART.finditer(text):
        parts.append(match[1])
        parts += [int(index) for index in re.findall(r"\d+", match[2])]
    return tuple(parts)


def _override(value: dict[str, Any], overrides: Sequence[str]) -> tuple[dict[str, Any], dict[FieldPath, str]]:
    """``value`` with every ``path=value`` written into it, and which path came from which override."""
    written: dict[FieldPath, str] = {}
    for text in overrides:
        target, equals, new = text.partition("=")
        path = _parse_path(target.strip())
        if not equals or not path or dotted(path) != target.strip():
            raise ManifestError([_bad_override(text, "an override is PATH=VALUE", "rl.kl.coef=0.01")])
        if path[0] not in _TOP_LEVEL:
            path = ("spec", *path)
        try:
            parsed = parse_value(new)
        except YamlFault as fault:
            raise ManifestError([_bad_override(text, f"the value is YAML: {fault.problem}", None)]) from None
        value = _written(value, path, parsed, text)
        written = {place: given for place, given in written.items() if place[: len(path)] != path} | {path: text}
    return value, written


def _bad_override(text: str, rule: str, nearest: str | None) -> Violation:
    return Violation(text.partition("=")[0], None, rule, nearest, f"--set {text}")


def _written(node: Any, path: FieldPath, value: Any, text: str) -> Any:
    if not path:
        return value
    first, rest = path[0], path[1:]
    if isinstance(first, int):
        items = list(node) if isinstance(node, list) else []
        if first > len(items) or (node is not None and not isinstance(node, list)):
            raise ManifestError([_bad_override(text, f"index {first} is in the list or directly behind it ({len(items)} there)", None)])
        old = items[first] if first < len(items) else None
        return [*items[:first], _written(old, rest, value, text), *items[first + 1 :]]
    if node is not None and not isinstance(node, dict):
        raise ManifestError([_bad_override(text, f"{first} stands in a mapping; here is {node!r}", None)])
    below = dict(node or {})
    below[first] = _written(below.get(first), rest, value, text)
    return below


def _in_file_order(violations: list[Violation]) -> list[Violation]:
    def line(violation: Violation) -> int:
        match = re.search(r":(\d+)$", violation.where or "")
        return int(match[1]) if match else 0

    return sorted(violations, key=line)
