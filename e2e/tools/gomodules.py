"""The Go modules whose binaries the test cluster is made of, and how each is built. Pure: files are read, nothing is run.

Three modules and not one, so that the library versions of Kubernetes, etcd and KubeRay never meet; and one cache key a module, so that
another KubeRay does not rebuild Kubernetes. `go mod tidy` and `go list -m all` must not be run in them: both load the whole graph,
where `k8s.io/... v0.0.0` cannot be resolved.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).resolve().parent
# Counts up when the same flags begin to leave something else in a cache folder.
LAYOUT = 1
# Anything else in the user's GOFLAGS (-mod, -tags, -race, ...) would change the binaries behind the key's back.
HARMLESS_GO_FLAGS = re.compile(r"--?(modcacherw|p=\d+|v|x)")
# Choose another target or another toolchain than the key says.
UNSET = ("GOROOT", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT", "GOTOOLDIR")


@dataclass(frozen=True)
class GoModule:
    """One folder with go.mod and go.sum.

    `binaries`: name → main package. `stamp`: link flags with `{version}`, `{major}`, `{minor}`. `keeps`: paths of the module that holds
    the version, copied beside the binaries at build time. `module_gb`, `build_gb`, `cold_seconds`: what a build of all its binaries with
    empty caches adds to Go's two caches, and takes on two cores, about.
    """

    name: str
    path: str
    binaries: Mapping[str, str]
    stamp: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    module_gb: float = 0.2
    build_gb: float = 0.6
    cold_seconds: int = 240
    source: Path = field(default=SOURCE)

    @property
    def folder(self) -> Path:
        return self.source / self.name

    @property
    def go_mod(self) -> str:
        return (self.folder / "go.mod").read_text()

    @property
    def version(self) -> str:
        """Of the module that the binaries come from, as go.mod pins it: `v1.36.3`."""
        found = re.search(rf"^(?:require)?\s+{re.escape(self.path)} (v\S+)", self.go_mod, re.MULTILINE)
        if found is None:
            raise ValueError(f"{self.folder / 'go.mod'}: no version of {self.path}")
        return found.group(1)

    @property
    def minimum_go(self) -> tuple[int, int, int]:
        found = re.search(r"^go (\S+)$", self.go_mod, re.MULTILINE)
        if found is None:
            raise ValueError(f"{self.folder / 'go.mod'}: no `go` line")
        return parse_version(found.group(1))

    def arguments(self, binary: str, output: Path | str) -> list[str]:
        """Of `go` for one binary. `-trimpath`: the same bytes wherever the work tree lies."""
        major, minor, _ = parse_version(self.version)
        stamp = [flag.format(version=self.version, major=major, minor=minor) for flag in self.stamp]
        link = " ".join(["-s", "-w", *stamp])
        return ["build", "-trimpath", "-buildvcs=false", "-ldflags", link, "-o", str(output), self.binaries[binary]]

    def key(self, go_version: str) -> str:
        """The name of the cache folder. `go_version` as `go version` prints it, with system and processor."""
        recipe = [self.arguments(binary, "OUT") for binary in sorted(self.binaries)]
        facts = [LAYOUT, go_version, recipe, sorted(fixed_environment().items()), list(self.keeps)]
        digest = hashlib.sha256(json.dumps(facts).encode())
        for name in ("go.mod", "go.sum"):
            digest.update((self.folder / name).read_bytes())
        return f"{self.name}-{self.version.removeprefix('v')}-{digest.hexdigest()[:12]}"


_COMPONENT = "k8s.io/component-base/version"
KUBERAY = "github.com/ray-project/kuberay/ray-operator"

MODULES = (
    GoModule(
        "etcd", "go.etcd.io/etcd/server/v3", {"etcd": "go.etcd.io/etcd/server/v3"}, module_gb=0.1, build_gb=0.4,
        cold_seconds=50,
    ),
    GoModule(
        "kuberay", KUBERAY, {"kuberay-operator": KUBERAY},
        keeps=("config/crd/bases", "config/rbac/role.yaml"), module_gb=0.3, build_gb=1.0, cold_seconds=100,
    ),
    GoModule(
        "kube", "k8s.io/kubernetes",
        {
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
        },
        # Without them /version says v0.0.0-master and a chart's kubeVersion refuses the cluster.
        stamp=(
            f"-X {_COMPONENT}.gitVersion={{version}}", f"-X {_COMPONENT}.gitMajor={{major}}", f"-X {_COMPONENT}.gitMinor={{minor}}",
            f"-X {_COMPONENT}.gitTreeState=clean",
        ),
        module_gb=0.9, build_gb=2.5, cold_seconds=330,
    ),
)  # fmt: skip
# Built only where helm can be had in no cheaper way.
HELM_MODULE = GoModule(
    "helm", "helm.sh/helm/v4", {"helm": "helm.sh/helm/v4/cmd/helm"}, stamp=("-X helm.sh/helm/v4/internal/version.version={version}",)
)


def parse_version(text: str) -> tuple[int, int, int]:
    """`v1.36.3`, `go1.27rc1`, `1.26` → three numbers. A text without a version raises ValueError."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if found is None:
        raise ValueError(f"no version in {text!r}")
    return int(found.group(1)), int(found.group(2)), int(found.group(3) or 0)


def fixed_environment() -> dict[str, str]:
    """What decides the binaries and so belongs to the key."""
    return {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOWORK": "off", "GO111MODULE": "on"}


def kept_go_flags(flags: str) -> tuple[str, list[str]]:
    """GOFLAGS → (what the builds keep of it, what they drop)."""
    kept = [flag for flag in flags.split() if HARMLESS_GO_FLAGS.fullmatch(flag)]
    return " ".join(kept), [flag for flag in flags.split() if flag not in kept]


def build_environment(environ: Mapping[str, str], caches: Path | None = None) -> dict[str, str]:
    """The user's own (proxy, sum database, certificates) less what would change a binary; `caches` moves Go's two caches."""
    kept = {name: value for name, value in environ.items() if name not in UNSET}
    kept |= fixed_environment() | {"GOFLAGS": kept_go_flags(environ.get("GOFLAGS", ""))[0]}
    if caches is not None:
        kept |= {"GOMODCACHE": str(caches / "mod"), "GOCACHE": str(caches / "build")}
    return kept


def combined_key(keys: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()[:16]


def modules_of(names: Sequence[str]) -> list[tuple[GoModule, list[str]]]:
    """The modules that hold the named binaries, in build order, each with those names; names of no module are left out."""
    wanted = [(module, [name for name in module.binaries if name in names]) for module in MODULES]
    return [(module, binaries) for module, binaries in wanted if binaries]
