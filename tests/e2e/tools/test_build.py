import shutil
import subprocess
from pathlib import Path

import pytest

from e2e.tools.build import Need, Task, build, check_disk, disk_needs, short_of
from e2e.tools.cachefolder import ToolsError
from e2e.tools.gomodules import MODULES, GoModule
from e2e.tools.pins import load_pins
from e2e.tools.toolchain import Toolchain, find_toolchain

TINY = {
    "go.mod": "module example.test/tools\n\ngo 1.24\n\ntool example.test/tiny\n\nrequire example.test/tiny v1.2.3\n\n"
    "replace example.test/tiny => ./source\n",
    "go.sum": "",
    "source/go.mod": "module example.test/tiny\n\ngo 1.24\n",
    "source/main.go": 'package main\n\nvar version = "unknown"\n\nfunc main() { print(version) }\n',
    "source/config/crd/one.yaml": "kind: One\n",
    "source/config/crd/notes.txt": "",
    "source/role.yaml": "kind: Role\n",
}


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """A module of the same form as the real ones, small enough to build in a second or two."""
    for name, text in TINY.items():
        file = tmp_path / "modules" / "tiny" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    module = GoModule(
        "tiny", "example.test/tiny", {"tiny": "example.test/tiny"}, stamp=("-X main.version={version}/{major}/{minor}",),
        keeps=("config/crd", "role.yaml"), module_gb=0, build_gb=0, source=tmp_path / "modules",
    )  # fmt: skip
    return Task(module, ("tiny",), tmp_path / "tools" / module.key("go"))


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    found = find_toolchain(load_pins().go, Path("/nonexistent"))
    if found.fetched:
        pytest.skip(f"no usable Go on this machine ({found.reason})")
    return found


def test_a_build_leaves_the_stamped_binary_and_removable_copies_of_what_is_kept(task: Task, toolchain: Toolchain) -> None:
    said: list[str] = []
    assert not task.done
    build([task], toolchain, said.append, go_caches=None, any_disk=False)
    assert task.done
    printed = subprocess.run([task.path("tiny")], capture_output=True, text=True, check=True).stderr
    assert printed == "v1.2.3/1/2"
    kept = {str(file.relative_to(task.kept_folder)) for file in task.kept_folder.rglob("*") if file.is_file()}
    assert kept == {"config/crd/one.yaml", "role.yaml"}
    assert {path.name for path in task.folder.iterdir()} == {"bin", "tiny", "tiny.log"}
    assert [line.split()[:2] for line in said if line.startswith("  ")] == [["tiny", "v1.2.3"]]
    shutil.rmtree(task.folder)


def test_what_is_there_already_is_not_built_again(task: Task, toolchain: Toolchain) -> None:
    build([task], toolchain, lambda line: None, go_caches=None, any_disk=False)
    made = task.path("tiny").stat().st_ino
    shutil.rmtree(task.kept_folder)
    assert not task.done
    build([task], toolchain, lambda line: None, go_caches=None, any_disk=False)
    assert task.done
    assert task.path("tiny").stat().st_ino == made


def test_a_failing_build_shows_the_compiler_and_leaves_no_binary(task: Task, toolchain: Toolchain) -> None:
    (task.module.folder / "source/main.go").write_text("package main\n\nfunc main() { undefinedThing() }\n")
    with pytest.raises(ToolsError, match=r"undefined: undefinedThing"):
        build([task], toolchain, lambda line: None, go_caches=None, any_disk=False)
    assert task.missing() == ["tiny"]
    assert list((task.folder / "bin").iterdir()) == []


def test_disk_needs_leave_out_modules_that_are_downloaded(tmp_path: Path) -> None:
    etcd, _, kube = (Task(module, tuple(module.binaries), tmp_path / "tools" / module.name) for module in MODULES)
    module_cache = tmp_path / "mod"
    (module_cache / f"{etcd.module.path}@{etcd.module.version}").mkdir(parents=True)
    modules, builds, tools = disk_needs([etcd, kube], module_cache, tmp_path / "build")
    assert modules.gb == kube.module.module_gb
    assert builds.gb == etcd.module.build_gb + kube.module.build_gb
    assert tools.gb == pytest.approx(0.6)


def test_folders_on_one_file_system_need_their_sum() -> None:
    needs = [Need("GOMODCACHE", Path("/a"), 2.0), Need("GOCACHE", Path("/b"), 3.0), Need("tools", Path("/c"), 1.0)]
    together = {Path("/a"): 1, Path("/b"): 1, Path("/c"): 2}
    assert short_of(needs, {1: 4.0, 2: 1.5}, together) == ["GOMODCACHE /a, GOCACHE /b: 4.0 GB free, up to 5.0 GB needed."]
    assert short_of(needs, {1: 5.0, 2: 1.5}, together) == []


def test_a_disk_too_small_is_refused_before_anything_is_built_and_the_ways_out_named(tmp_path: Path) -> None:
    huge = GoModule("huge", "example.test/huge", {"huge": "example.test/huge"}, build_gb=1e6, source=tmp_path)
    (tmp_path / "huge").mkdir()
    (tmp_path / "huge" / "go.mod").write_text("module m\n\ngo 1.26\n\nrequire example.test/huge v1.0.0\n")
    task = Task(huge, ("huge",), tmp_path / "tools" / "key")
    places = {"GOMODCACHE": str(tmp_path / "mod"), "GOCACHE": str(tmp_path / "not" / "yet" / "there")}
    said: list[str] = []
    with pytest.raises(ToolsError, match=r"up to 1000000\.\d GB needed.*--go-caches DIR.*--any-disk"):
        check_disk([task], places, said.append, any_disk=False)
    check_disk([task], places, said.append, any_disk=True)
    assert said[0].startswith("Disk, at most: 0.2 GB in ")
