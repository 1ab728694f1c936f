"""Files of a manifest: those in ConfigMaps beside the job, and the ConfigMap that brings those of a folder to a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePosixPath

import yaml

from rlhf_api.resolve import DATA_SUFFIXES, to_raw
from rlhf_api.spec import DatasetSpec, FileItem, FilesSpec, JobSpec, ModelSpec, RLHFJob
from rlhf_api.violations import Violation, quoted
from rlhf_api.yamltree import Document

LIMIT_BYTES = 1 << 20
"""Kubernetes takes no larger ConfigMap."""

_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")


@dataclass(frozen=True, slots=True)
class ConfigMap:
    """One that stands in the manifest's file."""

    name: str
    data: Mapping[str, str]
    path: str
    lines: Mapping[str, int]
    """Line of each key, for messages."""


def read_config_maps(path: Path, documents: Sequence[Document]) -> tuple[list[ConfigMap], list[Violation]]:
    """``documents``, which are ConfigMaps of the file ``path``, and what is wrong with them."""
    found: list[ConfigMap] = []
    faults: list[Violation] = []
    for document in documents:
        metadata, data = document.value.get("metadata"), document.value.get("data")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        files: dict[str, str] = {}
        for key, text in data.items() if isinstance(data, dict) else ():
            where = f"{path}:{document.line_of(('data', key))}"
            if not isinstance(text, str):
                faults.append(Violation(f"data.{key}", text, "the data of a ConfigMap is text", quoted(text), where))
            elif not _KEY.fullmatch(key) or key in (".", ".."):
                faults.append(Violation(f"data.{key}", None, "a ConfigMap key is a plain file name of at most 253 characters", None, where))
            else:
                files[key] = text
        found.append(ConfigMap(str(name), files, str(path), {key: document.line_of(("data", key)) for key in files}))
    return found, faults


def files_of(spec: FilesSpec | None, config_maps: Sequence[ConfigMap]) -> tuple[dict[str, str], list[Violation]]:
    """Relative path -> content, as ``cluster.files`` mounts it; without ``cluster.files`` the keys of all ConfigMaps."""
    if not config_maps:
        return {}, []
    if spec is None:
        files: dict[str, str] = {}
        for each in config_maps:
            for key in files.keys() & each.data.keys():
                where = f"{each.path}:{each.lines[key]}"
                return {}, [Violation(f"data.{key}", None, "two ConfigMaps here hold a file of this name", None, where)]
            files |= each.data
        return files, []
    chosen = next((each for each in config_maps if each.name == spec.config_map), None)
    if chosen is None:
        names = " or ".join(each.name for each in config_maps)
        rule = "cluster.files names a ConfigMap, and those in this file have other names"
        return {}, [Violation("spec.cluster.files.configMap", spec.config_map, rule, f"configMap: {names}")]
    if not spec.items:
        return dict(chosen.data), []
    faults = []
    for index, item in enumerate(spec.items):
        if item.key not in chosen.data:
            nearest = next(iter(get_close_matches(item.key, list(chosen.data), n=1)), None)
            rule = f"the ConfigMap {chosen.name} has this key"
            faults.append(Violation(f"spec.cluster.files.items[{index}].key", item.key, rule, nearest))
    return ({} if faults else {item.path: chosen.data[item.key] for item in spec.items}), faults


class FilesError(Exception):
    """The files cannot be a ConfigMap; ``violation`` says which and why."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation


def collect(job: RLHFJob, folder: Path) -> tuple[FilesSpec, dict[str, str]]:
    """``cluster.files`` for ``job`` and the data of its ConfigMap; ``folder`` is what relative paths refer to.

    Raises FilesError where a file is missing, cannot be read, is no UTF-8 text, or all together are too large. A name that no
    file answers to and that may be a hub id is none.
    """
    given = job.spec.cluster.files
    name = given.config_map if given is not None else f"{job.metadata.name}-files"
    named = {item.path: item.key for item in given.items} if given is not None else {}
    texts: dict[str, str] = {}
    items: list[FileItem] = []
    for field, path in _paths(job, folder):
        if path in [item.path for item in items]:
            continue
        key = named.get(path) or _free_key(path, texts)
        texts[key] = _text(folder / path, field)
        items.append(FileItem(key=key, path=path))
    total = sum(len(text.encode()) for text in texts.values())
    if total > LIMIT_BYTES:
        largest = max(items, key=lambda item: len(texts[item.key]))
        size = len(texts[largest.key].encode())
        rule = f"a ConfigMap holds at most {LIMIT_BYTES} bytes, and the files have {total}"
        raise FilesError(
            Violation(largest.path, f"{size} bytes", rule, "large files on a volume of cluster.volumes, named by absolute path")
        )
    flat = all(item.key == item.path for item in items)
    return FilesSpec(config_map=name, items=[] if flat else items), texts


def text(job: RLHFJob, folder: Path) -> str:
    """The ConfigMap as YAML, and as a comment the ``cluster.files`` that belongs to it."""
    spec, data = collect(job, folder)
    wanted = yaml.safe_dump({"files": to_raw(spec)}, sort_keys=False, default_flow_style=None, width=120)
    comment = "".join(f"#   {line}\n" for line in wanted.splitlines())
    metadata = {"name": spec.config_map}
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    return f"# spec.cluster:\n{comment}" + yaml.dump(document, Dumper=_Blocks, sort_keys=False, width=10_000, allow_unicode=True)


def hub_ids_beside(job: RLHFJob, folder: Path) -> list[Violation]:
    """Names that are hub ids on a cluster, although ``folder`` (the manifest's) has a folder of that name: each told once."""
    files = job.spec.cluster.files
    items = [item.path for item in files.items] if files is not None else []
    found: dict[str, Violation] = {}
    named = [(field, model.path) for field, model in _models(job.spec)]
    named += [(field, each.path) for field, each in _datasets(job.spec) if PurePosixPath(each.path).suffix not in DATA_SUFFIXES]
    for field, path in named:
        place = folder / path
        if path in found or path.startswith((".", "/")) or any(item.startswith(f"{path.rstrip('/')}/") for item in items):
            continue
        if _exists(place) and place.is_dir():
            rule = "on a cluster this is looked for on the hub; the folder of this name beside the manifest is not there"
            nearest = "its files in cluster.files (`rlhf files FILE` prints them), or a path on one of cluster.volumes"
            found[path] = Violation(field, path, rule, nearest)
    return list(found.values())


class _Blocks(yaml.SafeDumper):
    """Texts of several lines as blocks, as a person would write them."""


def _string(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Blocks.add_representer(str, _string)


def _paths(job: RLHFJob, folder: Path) -> Iterator[tuple[str, str]]:
    """Field and relative path of every file that the job names and that lies in ``folder``."""
    spec = job.spec
    for index, source in enumerate(spec.rl.reward.sources):
        if source.function is not None:
            yield from _inside(f"spec.rl.reward.sources[{index}].function.file", source.function.file, folder, is_file=True)
    for field, dataset in _datasets(spec):
        yield from _inside(field, dataset.path, folder, is_file=PurePosixPath(dataset.path).suffix in DATA_SUFFIXES)
    for named, model in _models(spec):
        for field, path in _inside(named, model.path, folder):
            if model.init != "random" or not path.endswith(WEIGHTS):
                yield field, path


def _datasets(spec: JobSpec) -> Iterator[tuple[str, DatasetSpec]]:
    yield from ((f"spec.data.datasets[{index}].path", each) for index, each in enumerate(spec.data.datasets))
    if spec.evaluation is not None:
        yield from ((f"spec.evaluation.datasets[{index}].path", each) for index, each in enumerate(spec.evaluation.datasets))


def _models(spec: JobSpec) -> Iterator[tuple[str, ModelSpec]]:
    """Those that have a path, first the ones that others may start from."""
    models = spec.models
    for role, model in (("actor", models.actor), ("reward", models.reward), ("reference", models.reference), ("critic", models.critic)):
        if model is not None and model.path:
            yield f"spec.models.{role}.path", model


def _inside(field: str, path: str, folder: Path, *, is_file: bool = False) -> Iterator[tuple[str, str]]:
    """Nothing for absolute paths and for hub ids, which no file here answers to. ``is_file``: the path can be no hub id."""
    place = folder / path
    if Path(path).is_absolute():
        return
    if not _exists(place):
        if is_file or path.startswith("."):
            here = [each.relative_to(folder).as_posix() for each in place.parent.glob("*")] if _exists(place.parent) else []
            nearest = next(iter(get_close_matches(path, here, n=1)), "an absolute path, on a volume of cluster.volumes")
            raise FilesError(Violation(field, path, "a relative path names a file in the manifest's folder", nearest))
        return
    if ".." in Path(path).parts:
        raise FilesError(Violation(field, path, "files of a ConfigMap lie below the manifest's folder", "a copy below it"))
    files = sorted(each for each in place.rglob("*") if each.is_file()) if place.is_dir() else [place]
    for each in files:
        if not each.is_file():
            raise FilesError(Violation(field, path, "files of a ConfigMap are plain files", "a copy of what it holds"))
        yield field, each.relative_to(folder).as_posix()


def _exists(place: Path) -> bool:
    try:
        return place.exists()
    except OSError:
        return False


def _text(path: Path, field: str) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise FilesError(Violation(field, path.name, f"the file can be read ({error.strerror})", "a file that you may read")) from None
    except UnicodeDecodeError:
        nearest = "a volume of cluster.volumes, or init: random where the weights do not matter"
        raise FilesError(Violation(field, path.name, "files of a ConfigMap are UTF-8 text", nearest)) from None


def _free_key(path: str, taken: dict[str, str]) -> str:
    plain = "".join(character if (character.isalnum() and character.isascii()) or character in "-._" else "-" for character in path)
    return next(key for count in range(len(taken) + 1) if (key := plain if count == 0 else f"{count}-{plain}") not in taken)
