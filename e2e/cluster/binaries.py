"""Which executables a cluster is made of."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CONTROL_BINARIES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kuberay-operator")
NODE_BINARIES = ("kubelet", "kube-proxy")


class Binaries(Protocol):
    """What a cluster needs of the tools."""

    @property
    def key(self) -> str:
        """Differs when any binary differs."""

    @property
    def kuberay_dir(self) -> Path:
        """Holds KubeRay's `config/crd/bases` and `config/rbac/role.yaml`."""

    def binary(self, name: str) -> Path:
        """The executable called NAME."""


@dataclass(frozen=True)
class FolderBinaries:
    """Binaries somebody else has built, all in one folder, and KubeRay's `config` in its subfolder `kuberay`."""

    folder: Path

    @property
    def key(self) -> str:
        facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in map(self.binary, CONTROL_BINARIES)]
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    @property
    def kuberay_dir(self) -> Path:
        return self.folder / "kuberay"

    def binary(self, name: str) -> Path:
        path = self.folder / name
        if not path.exists():
            raise FileNotFoundError(f"RLHF_TOOLS_BIN={self.folder}: holds no {name}. Unset it to have the tools built.")
        return path


def find_binaries(names: Sequence[str]) -> Binaries:
    """Those in the folder `$RLHF_TOOLS_BIN`, else the project's own, built on the first use. `names`: all that will be asked for."""
    if folder := os.environ.get("RLHF_TOOLS_BIN"):
        return FolderBinaries(Path(folder).absolute())
    import e2e.tools

    return e2e.tools.prepare(names)
