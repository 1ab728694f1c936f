"""The image of the process that holds a pod's namespaces open, made from Debian's static busybox: no compiler, no download.

The container runtime ends it with SIGKILL and it never has children of its own, so a sleep is all that is asked of it.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import re
import tarfile
from pathlib import Path
from typing import Any

PAUSE_IMAGE = "localhost/pause:1"
BUSYBOX = Path("/bin/busybox")

# How a dynamically linked executable names its loader.
_INTERPRETER = re.compile(rb"/lib(64)?/ld-linux[-a-z0-9_]*\.so\.\d\x00")
# Machine names of the kernel to those of the OCI image specification.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_archive(busybox: bytes, target: Path) -> None:
    """Writes the image as an OCI archive that `ctr image import` takes. Equal input gives equal bytes.

    Raises ValueError for a busybox that needs shared libraries, as the package `busybox` has it: there are none in the image.
    """
    if _INTERPRETER.search(busybox):
        raise ValueError(f"{BUSYBOX}: needs shared libraries; install Debian's busybox-static, which replaces busybox")
    layer = _tar({"busybox": busybox}, mode=0o755)
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": ["/busybox", "sleep", "infinity"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    blobs = {_digest(layer): layer}

    def described(kind: str, data: bytes, **more: Any) -> dict[str, Any]:
        blobs[_digest(data)] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": _digest(data), "size": len(data), **more}

    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": described("config.v1+json", _json(config)),
        "layers": [described("layer.v1.tar", layer)],
    }
    index = {
        "schemaVersion": 2,
        "manifests": [described("manifest.v1+json", _json(manifest), annotations={"io.containerd.image.name": PAUSE_IMAGE})],
    }
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index)}
    files |= {f"blobs/{digest.replace(':', '/')}": data for digest, data in blobs.items()}
    target.write_bytes(_tar(files, mode=0o644))


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _tar(files: dict[str, bytes], mode: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
