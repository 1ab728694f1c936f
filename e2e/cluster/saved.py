"""etcd's data with KubeRay installed, made once and copied into every new cluster: applying the definitions costs a dozen seconds."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from e2e.cluster import kuberay
from e2e.cluster.binaries import Binaries
from e2e.cluster.certs import Pki
from e2e.cluster.home import Home

# Counts up when the same tools and keys must lead to other data.
LAYOUT = 1
# Of the last few tool versions, for branches that differ in them.
NUM_KEPT = 3


def key(binaries: Binaries, pki: Pki) -> str:
    """Names the saved data: the same only for the same binaries, keys and manifests."""
    digest = hashlib.sha256(repr((LAYOUT, binaries.key, pki.key)).encode())
    for path, manifest in kuberay.manifests(binaries.kuberay_dir):
        digest.update(path.encode() + b"\0" + manifest)
    return digest.hexdigest()[:16]


def save(home: Home, name: str, data: Path) -> None:
    """Keeps etcd's data; its etcd must have ended. A half-made copy is never taken for a whole one; the oldest data goes."""
    target = home.state(name)
    partial = target.with_name(f"partial-{name}")
    shutil.rmtree(partial, ignore_errors=True)
    _copy(data, partial)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    # The copy has etcd's own times, and restoring must not make data look young.
    os.utime(target)
    kept = sorted(target.parent.glob("[!p]*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in kept[NUM_KEPT:]:
        shutil.rmtree(old)


def restore(home: Home, name: str, data: Path) -> bool:
    """Copies the saved data into a new cluster; False when there is none."""
    source = home.state(name)
    if not source.exists():
        return False
    _copy(source, data)
    return True


def _copy(source: Path, target: Path) -> None:
    # The log files are allocated ahead and mostly zeros.
    subprocess.run(["cp", "--archive", "--sparse=always", "--reflink=auto", str(source), str(target)], check=True)
