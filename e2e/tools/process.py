"""Runs the programs that fetch and build: output into a log, its end shown when one fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.tools.cachefolder import ToolsError

REPOSITORY = Path(__file__).resolve().parents[2]
SHOWN_LINES = 20


def run_logged(argv: Sequence[str | Path], log: Path, *, cwd: Path, env: Mapping[str, str] | None = None) -> None:
    """Standard output and errors go into `log`; a failure raises ToolsError with its last lines. It shares `exclusive`'s lock."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        done = subprocess.run(
            [*map(str, argv)], cwd=cwd, env=None if env is None else dict(env), stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, check=False, close_fds=False,
        )  # fmt: skip
    if done.returncode != 0:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-SHOWN_LINES:])
        command = " ".join(map(str, argv))
        raise ToolsError(f"`{command}` in {cwd} ended with {done.returncode}; the end of {log}:\n{last}")


def output_of(argv: Sequence[str | Path], *, cwd: Path = Path("/"), env: Mapping[str, str] | None = None) -> str:
    """Standard output, stripped; a failure raises ToolsError with the errors."""
    try:
        done = subprocess.run(
            [*map(str, argv)], cwd=cwd, env=None if env is None else dict(env), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    except OSError as error:
        raise ToolsError(f"`{argv[0]}` cannot be started: {error}") from error
    if done.returncode != 0:
        raise ToolsError(f"`{' '.join(map(str, argv))}` ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


def find_uv() -> str:
    """Beside this Python, on PATH, or where `make setup` keeps one; else ToolsError."""
    for candidate in (Path(sys.executable).with_name("uv"), REPOSITORY / ".cache" / "uv" / "bin" / "uv"):
        if candidate.is_file():
            return str(candidate)
    on_path = shutil.which("uv")
    if on_path is None:
        raise ToolsError("uv is needed to fetch wheels and is neither beside this Python nor on PATH: run `make setup`, which installs it.")
    return on_path
