import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.tools.gomodules import HELM_MODULE, MODULES, GoModule, build_environment, combined_key, kept_go_flags, modules_of, parse_version

GO = "go1.26.8 linux/amd64"
ETCD, KUBERAY, KUBE = MODULES


def copied(module: GoModule, folder: Path) -> GoModule:
    shutil.copytree(module.folder, folder / module.name)
    return replace(module, source=folder)


@pytest.mark.parametrize("module", [*MODULES, HELM_MODULE], ids=lambda module: module.name)
def test_every_binary_is_a_tool_of_its_go_mod_so_that_go_sum_covers_it(module: GoModule) -> None:
    # `tool PATH` on a line, or one PATH a line in a block.
    declared = set(re.findall(r"^(?:tool |\t)(\S+)$", module.go_mod, re.MULTILINE))
    assert set(module.binaries.values()) <= declared


def test_versions_are_read_from_go_mod() -> None:
    assert KUBE.version.startswith("v1.36.")
    assert KUBE.minimum_go >= (1, 26, 0)
    with pytest.raises(ValueError, match=r"no version of example\.test/absent"):
        assert replace(KUBE, path="example.test/absent").version


def test_kubernetes_is_stamped_with_the_version_it_is() -> None:
    link = KUBE.arguments("kubelet", "OUT")[4]
    assert f"version.gitVersion={KUBE.version} " in link
    assert "version.gitMajor=1 " in link
    assert "version.gitMinor=36 " in link


def test_a_change_of_one_module_leaves_the_keys_of_the_others(tmp_path: Path) -> None:
    before = {module.name: module.key(GO) for module in MODULES}
    changed = copied(KUBERAY, tmp_path)
    assert changed.key(GO) == before["kuberay"], "the key must not depend on where the work tree lies"
    with (changed.folder / "go.sum").open("a") as file:
        file.write("example.test/more v1.0.0 h1:x\n")
    assert changed.key(GO) != before["kuberay"]
    assert [ETCD.key(GO), KUBE.key(GO)] == [before["etcd"], before["kube"]]


@pytest.mark.parametrize(
    "other",
    [
        replace(KUBE, stamp=()),
        replace(KUBE, binaries={**KUBE.binaries, "kubectl": "k8s.io/kubernetes/cmd/kubectl"}),
        replace(KUBE, keeps=("README.md",)),
    ],
)
def test_another_recipe_is_another_key(other: GoModule) -> None:
    assert other.key(GO) != KUBE.key(GO)


@pytest.mark.parametrize("go", ["go1.26.7 linux/amd64", "go1.26.8 linux/arm64"])
def test_another_go_is_another_key(go: str) -> None:
    assert KUBE.key(go) != KUBE.key(GO)


def test_the_combined_key_depends_on_every_module_and_not_on_their_order() -> None:
    assert combined_key(["a", "b"]) == combined_key(["b", "a"]) != combined_key(["a"])


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("kubelet", "etcd"), [("etcd", ["etcd"]), ("kube", ["kubelet"])]),
        (("kubectl", "helm"), []),
        (("kube-scheduler", "kube-apiserver"), [("kube", ["kube-apiserver", "kube-scheduler"])]),
    ],
)
def test_names_fall_to_their_modules_in_build_order(names: tuple[str, ...], expected: list[tuple[str, list[str]]]) -> None:
    assert [(module.name, binaries) for module, binaries in modules_of(names)] == expected


@pytest.mark.parametrize(
    ("text", "version"), [("v1.36.3", (1, 36, 3)), ("go1.27rc1", (1, 27, 0)), ("1.26", (1, 26, 0)), ("v4.1.4+g05fa379", (4, 1, 4))]
)
def test_versions_as_their_programs_write_them(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("flags", "kept", "dropped"),
    [
        ("", "", []),
        ("-buildvcs=false", "", ["-buildvcs=false"]),
        ("-p=2 -modcacherw -mod=vendor", "-p=2 -modcacherw", ["-mod=vendor"]),
        ("-tags=race -v", "-v", ["-tags=race"]),
    ],
)
def test_only_go_flags_that_change_no_binary_are_kept(flags: str, kept: str, dropped: list[str]) -> None:
    assert kept_go_flags(flags) == (kept, dropped)


def test_the_environment_keeps_proxies_and_caches_and_drops_other_targets(tmp_path: Path) -> None:
    own = {"GOPROXY": "https://proxy.example", "GOSUMDB": "off", "GOCACHE": "/cache"}
    own |= {"GOOS": "windows", "GOROOT": "/old", "GOFLAGS": "-race"}
    made = build_environment(own)
    assert made["GOPROXY"] == "https://proxy.example"
    assert made["GOSUMDB"] == "off"
    assert made["GOCACHE"] == "/cache"
    assert made["GOFLAGS"] == ""
    assert not {"GOOS", "GOROOT"} & set(made)
    assert build_environment(own, tmp_path)["GOCACHE"] == str(tmp_path / "build")
