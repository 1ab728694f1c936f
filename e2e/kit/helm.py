"""Helm as tests call it: its own folders, a given cluster or none, rendered objects as plain dicts."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.parts import REPOSITORY

CHART = REPOSITORY / "charts" / "rlhf-operator"
SECONDS = 180


class HelmError(AssertionError):
    """Helm refused or failed; the text is what it said."""


class Helm:
    """``folder`` holds Helm's caches and the values of each call. Without ``kubeconfig`` only what needs no cluster works."""

    def __init__(self, binary: Path, folder: Path, kubeconfig: Path | None = None) -> None:
        self._binary, self._folder = binary, folder
        homes = {f"HELM_{name}_HOME": str(folder / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        # Without a cluster Helm must not find the one of whoever runs the tests.
        self._environment = {**os.environ, **homes, "KUBECONFIG": str(kubeconfig or folder / "none")}

    def run(self, *arguments: str) -> str:
        """Standard output; raises HelmError."""
        done = subprocess.run(
            [str(self._binary), *arguments], env=self._environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        if done.returncode != 0:
            raise HelmError(f"helm {' '.join(arguments)}\n{done.stderr.strip()}\n{done.stdout.strip()}")
        return done.stdout

    def render(self, values: Mapping[str, Any], *, release: str = "rel", namespace: str = "sys") -> list[dict[str, Any]]:
        """Every object, in the order of the templates."""
        text = self.run("template", release, str(CHART), "--namespace", namespace, "--values", self._file(values))
        return [each for each in yaml.safe_load_all(text) if each]

    def install(self, release: str, namespace: str, values: Mapping[str, Any], *options: str) -> str:
        """Waits until what was installed is ready."""
        return self._apply("install", release, namespace, values, *options)

    def upgrade(self, release: str, namespace: str, values: Mapping[str, Any], *options: str) -> str:
        return self._apply("upgrade", release, namespace, values, *options)

    def uninstall(self, release: str, namespace: str) -> str:
        return self.run("uninstall", release, "--namespace", namespace, "--wait", "--timeout", "60s")

    def _apply(self, command: str, release: str, namespace: str, values: Mapping[str, Any], *options: str) -> str:
        places = ("--namespace", namespace, "--values", self._file(values))
        return self.run(command, release, str(CHART), *places, "--wait", "--timeout", "120s", *options)

    def _file(self, values: Mapping[str, Any]) -> str:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / "values.yaml"
        # Helm reads YAML 1.2, PyYAML writes 1.1: JSON means the same in both.
        path.write_text(json.dumps(values))
        return str(path)
