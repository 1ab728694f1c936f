"""The programs a test cluster is made of: built or fetched once into a cache outside the work tree, then found in milliseconds.

    tools = prepare(("etcd", "kube-apiserver", "kubectl"))
    tools.binary("etcd")
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.home import Home
from e2e.tools.build import Task, build
from e2e.tools.cachefolder import Report, ToolsError, exclusive, is_executable, report_to_stderr
from e2e.tools.clients import fetch_helm, fetch_kubectl, helm_on_path, helm_path, kubectl_path, npm_refusal
from e2e.tools.gomodules import HELM_MODULE, MODULES, GoModule, combined_key, modules_of
from e2e.tools.pins import Pins, load_pins
from e2e.tools.toolchain import Toolchain, ensure_toolchain, find_toolchain

ALL: tuple[str, ...] = (*(binary for module in MODULES for binary in module.binaries), "kubectl", "helm")

__all__ = ["ALL", "Tools", "ToolsError", "key_of", "prepare"]


@dataclass(frozen=True)
class Tools:
    """Where the prepared tools are. `binaries`: name → file; `module_keys`: Go module → cache key."""

    binaries: Mapping[str, Path]
    module_keys: Mapping[str, str]
    folder: Path

    def binary(self, name: str) -> Path:
        """A name that was not prepared raises ToolsError."""
        if name not in self.binaries:
            raise ToolsError(f"{name} was not prepared; prepared are {', '.join(self.binaries)}.")
        return self.binaries[name]

    @property
    def kuberay_dir(self) -> Path:
        """Holds `config/crd/bases/*.yaml` and `config/rbac/role.yaml` of the prepared KubeRay."""
        if "kuberay" not in self.module_keys:
            raise ToolsError(f"kuberay-operator was not prepared; prepared are {', '.join(self.binaries)}.")
        return self.folder / self.module_keys["kuberay"] / "kuberay"

    @property
    def key(self) -> str:
        """Another etcd, Kubernetes or KubeRay gives another key. kubectl and helm have no part in it: no stored state depends on them."""
        return combined_key(self.module_keys.values())


def prepare(
    names: Sequence[str] = ALL, *, cache: Path | None = None, go_caches: Path | None = None, any_disk: bool = False,
    report: Report = report_to_stderr,
) -> Tools:  # fmt: skip
    """Returns when every named tool is in the cache; with all of them there, in well under 0.1 s and silently.

    cache: default `Home.default().root`. go_caches: a folder for GOMODCACHE and GOCACHE; default: Go's own. any_disk: build although
    the disk seems too small. ToolsError says what cannot be had and why.
    """
    _check_names(names)
    folder = (cache or Home.default().root) / "tools"
    pins = load_pins()
    toolchain = find_toolchain(pins.go, folder)
    tasks = _tasks(names, toolchain, folder)
    binaries = {binary: task.path(binary) for task in tasks for binary in task.binaries}
    if "kubectl" in names:
        binaries["kubectl"] = kubectl_path(pins.kubectl, folder)
    if "helm" in names:
        binaries["helm"] = _helm(pins, toolchain, folder)
    if not all(task.done for task in tasks) or not all(map(is_executable, binaries.values())):
        with exclusive(folder, report):
            # Asked again: another process may have made them while this one waited.
            if "kubectl" in names and not is_executable(binaries["kubectl"]):
                fetch_kubectl(pins.kubectl, folder, report)
            if "helm" in names:
                binaries["helm"] = _prepare_helm(pins, toolchain, folder, tasks, report)
            left = [task for task in tasks if not task.done]
            if left:
                ensure_toolchain(toolchain, pins.go, report)
                build(left, toolchain, report, go_caches=go_caches, any_disk=any_disk)
    modules = {task.module.name: task.folder.name for task in tasks if task.module is not HELM_MODULE}
    return Tools({name: binaries[name] for name in ALL if name in names}, modules, folder)


def key_of(names: Sequence[str] = ALL, *, cache: Path | None = None) -> str:
    """`prepare(names).key`, with nothing built or fetched: for the caches of a CI."""
    _check_names(names)
    toolchain = find_toolchain(load_pins().go, (cache or Home.default().root) / "tools")
    return combined_key(module.key(toolchain.version) for module, _ in modules_of(names))


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if name not in ALL:
            nearest = difflib.get_close_matches(name, ALL, n=1, cutoff=0.4)
            raise ToolsError(f"{name!r} is no tool" + (f"; did you mean {nearest[0]}?" if nearest else f"; there are {', '.join(ALL)}."))


def _task(module: GoModule, binaries: Sequence[str], toolchain: Toolchain, folder: Path) -> Task:
    return Task(module, tuple(binaries), folder / module.key(toolchain.version))


def _tasks(names: Sequence[str], toolchain: Toolchain, folder: Path) -> list[Task]:
    return [_task(module, binaries, toolchain, folder) for module, binaries in modules_of(names)]


def _helm(pins: Pins, toolchain: Toolchain, folder: Path) -> Path:
    """Where helm is or will be: the fetched one, else one built earlier, else where npm can't serve one on PATH."""
    fetched = helm_path(pins.helm, folder)
    built = _task(HELM_MODULE, ["helm"], toolchain, folder).path("helm")
    if is_executable(fetched) or is_executable(built):
        return fetched if is_executable(fetched) else built
    return (helm_on_path(pins.helm.minimum) if npm_refusal() else None) or fetched


def _prepare_helm(pins: Pins, toolchain: Toolchain, folder: Path, tasks: list[Task], report: Report) -> Path:
    """Fetches helm, or finds one, or adds its build to `tasks`; says which in one line."""
    known = _helm(pins, toolchain, folder)
    if is_executable(known):
        return known
    refusal = npm_refusal()
    if refusal is None:
        try:
            fetch_helm(pins.helm, folder, report)
            return known
        except ToolsError as error:
            refusal = f"npm failed ({error})"
    on_path = helm_on_path(pins.helm.minimum)
    if on_path is not None:
        report(f"Using helm at {on_path}, because {refusal}.")
        return on_path
    report(f"Building helm {HELM_MODULE.version} from source, because {refusal} and no helm of {pins.helm.minimum} or newer is on PATH.")
    task = _task(HELM_MODULE, ["helm"], toolchain, folder)
    tasks.append(task)
    return task.path("helm")
