"""Fetches one pinned wheel from PyPI (or the index that uv is set to) into the cache."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from e2e.tools.cachefolder import scratch
from e2e.tools.pins import WheelPin
from e2e.tools.process import find_uv, run_logged


def install_wheel(pin: WheelPin, target: Path) -> None:
    """Leaves the wheel's files in `target`, all or nothing. Call under `exclusive` of its parent. A wrong sum raises ToolsError."""
    with scratch(target.parent) as making:
        requirements = making / "requirements.txt"
        requirements.write_text(pin.requirement + "\n")
        command: list[str | Path] = [
            find_uv(), "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--python", sys.executable,
            "--target", making / "wheel", "-r", requirements,
        ]  # fmt: skip
        run_logged(command, target.parent / f"{target.name}.log", cwd=making)
        shutil.rmtree(target, ignore_errors=True)
        (making / "wheel").rename(target)
