"""Builds what is missing of the Go modules, one binary at a time, each appearing in the cache complete or not at all."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.tools.cachefolder import Report, ToolsError, is_executable, scratch
from e2e.tools.gomodules import GoModule, build_environment, kept_go_flags
from e2e.tools.process import output_of, run_logged
from e2e.tools.toolchain import Toolchain

GIGABYTE = 1e9
BINARIES_GB = 0.1


@dataclass(frozen=True)
class Task:
    """The wanted binaries of one module; `folder` is `TOOLS/KEY`."""

    module: GoModule
    binaries: tuple[str, ...]
    folder: Path

    @property
    def kept_folder(self) -> Path:
        return self.folder / self.module.name

    def path(self, binary: str) -> Path:
        return self.folder / "bin" / binary

    def missing(self) -> list[str]:
        return [binary for binary in self.binaries if not is_executable(self.path(binary))]

    @property
    def done(self) -> bool:
        return not self.missing() and (not self.module.keeps or self.kept_folder.is_dir())


@dataclass(frozen=True)
class Need:
    """`gb` of disk, at most, in `folder`; `what` is how the reader knows that folder."""

    what: str
    folder: Path
    gb: float


def disk_needs(tasks: Sequence[Task], module_cache: Path, build_cache: Path) -> list[Need]:
    """At most: a module whose source lies in the module cache already costs nothing there; what the build cache holds can't be seen."""
    absent = [task.module for task in tasks if not (module_cache / f"{task.module.path}@{task.module.version}").is_dir()]
    return [
        Need("GOMODCACHE", module_cache, sum(module.module_gb for module in absent)),
        Need("GOCACHE", build_cache, sum(task.module.build_gb for task in tasks)),
        Need("tools", tasks[0].folder.parent, sum(len(task.missing()) for task in tasks) * BINARIES_GB),
    ]


def short_of(needs: Sequence[Need], free_gb: Mapping[int, float], device_of: Mapping[Path, int]) -> list[str]:
    """One sentence for each file system that has less free than its folders may need together."""
    complaints = []
    for device, free in free_gb.items():
        here = [need for need in needs if device_of[need.folder] == device]
        total = sum(need.gb for need in here)
        if total > free:
            places = ", ".join(f"{need.what} {need.folder}" for need in here)
            complaints.append(f"{places}: {free:.1f} GB free, up to {total:.1f} GB needed.")
    return complaints


def _nearest_existing(folder: Path) -> Path:
    return next(parent for parent in (folder, *folder.parents) if parent.is_dir())


def check_disk(tasks: Sequence[Task], go_caches: Mapping[str, str], report: Report, *, any_disk: bool) -> None:
    """Says what the build may need and what is free; ToolsError where it is short, unless `any_disk`."""
    needs = disk_needs(tasks, Path(go_caches["GOMODCACHE"]), Path(go_caches["GOCACHE"]))
    existing = {need.folder: _nearest_existing(need.folder) for need in needs}
    device_of = {folder: found.stat().st_dev for folder, found in existing.items()}
    free = {device_of[folder]: shutil.disk_usage(found).free / GIGABYTE for folder, found in existing.items()}
    places = "; ".join(f"{need.gb:.1f} GB in {need.folder} ({need.what}, {free[device_of[need.folder]]:.0f} GB free)" for need in needs)
    report(f"Disk, at most: {places}.")
    complaints = short_of(needs, free, device_of)
    if complaints and not any_disk:
        advice = "Put Go's caches elsewhere with --go-caches DIR (or GOMODCACHE and GOCACHE); --any-disk where the caches are warm."
        raise ToolsError(" ".join([*complaints, advice]))


def build(
    tasks: Sequence[Task], toolchain: Toolchain, report: Report, *, go_caches: Path | None, any_disk: bool,
    environ: Mapping[str, str] = os.environ,
) -> None:  # fmt: skip
    """Call under `exclusive` of the tools folder, with tasks that are not done."""
    environment = build_environment(environ, go_caches)
    dropped = kept_go_flags(environ.get("GOFLAGS", ""))[1]
    if dropped:
        report(f"GOFLAGS: {' '.join(dropped)} would change the binaries and is not used.")
    names = [binary for task in tasks for binary in task.missing()]
    minutes = -(-sum(task.module.cold_seconds for task in tasks) // 60)
    report(f"Building {', '.join(names)} with {toolchain.reason}; at most about {minutes} min on two cores, with empty caches.")
    found = json.loads(output_of([toolchain.executable, "env", "-json", "GOMODCACHE", "GOCACHE"], env=environment))
    check_disk(tasks, found, report, any_disk=any_disk)
    for task in tasks:
        for binary in task.missing():
            _build_one(task, binary, toolchain, environment, report)
        if task.module.keeps and not task.kept_folder.is_dir():
            _copy_kept(task, toolchain, environment)


def _build_one(task: Task, binary: str, toolchain: Toolchain, environment: Mapping[str, str], report: Report) -> None:
    started = time.monotonic()
    target = task.path(binary)
    with scratch(target.parent) as making:
        command: list[str | Path] = [toolchain.executable, *task.module.arguments(binary, making / binary)]
        run_logged(command, task.folder / f"{binary}.log", cwd=task.module.folder, env=environment)
        (making / binary).rename(target)
    size = target.stat().st_size / 1e6
    report(f"  {binary:<24} {task.module.version:<9} {time.monotonic() - started:6.1f} s  {size:4.0f} MB")


def _copy_kept(task: Task, toolchain: Toolchain, environment: Mapping[str, str]) -> None:
    """The files are read-only in the module cache; the copies must be removable."""
    source = Path(output_of(
        [toolchain.executable, "list", "-f", "{{.Module.Dir}}", next(iter(task.module.binaries.values()))],
        cwd=task.module.folder, env=environment,
    ))  # fmt: skip
    with scratch(task.folder) as making:
        for kept in task.module.keeps:
            found = source / kept
            files = sorted(found.glob("*.yaml")) if found.is_dir() else [found]
            for file in files:
                copy = making / "kept" / file.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
        (making / "kept").rename(task.kept_folder)
