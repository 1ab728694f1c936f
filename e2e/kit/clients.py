"""kubectl and helm, as people use them: the same binaries, the same files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from e2e import tools

CALL_SECONDS = 120.0


class CommandFailedError(AssertionError):
    """A command ended with an error; the text holds what it printed."""


@dataclass(frozen=True)
class Clients:
    kubeconfig: Path
    kubectl_binary: Path = field(default_factory=lambda: tools.prepare(["kubectl"]).binary("kubectl"))
    helm_binary: Path = field(default_factory=lambda: tools.prepare(["helm"]).binary("helm"))

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def kubectl(self, *arguments: str | Path, namespace: str, seconds: float = CALL_SECONDS) -> str:
        """What the command prints; raises CommandFailedError."""
        return self._run([self.kubectl_binary, "-n", namespace, *arguments], seconds)

    def helm(self, *arguments: str | Path, namespace: str, seconds: float = CALL_SECONDS) -> str:
        return self._run([self.helm_binary, "-n", namespace, *arguments], seconds)

    def follow(self, *arguments: str, namespace: str, output: IO[bytes]) -> subprocess.Popen[bytes]:
        """A kubectl that runs until it is ended, such as ``get -w``."""
        command: list[str | Path] = [self.kubectl_binary, "-n", namespace, *arguments]
        return subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)

    def _run(self, command: list[str | Path], seconds: float) -> str:
        words = " ".join(str(word) for word in command[1:])
        try:
            done = subprocess.run(
                command, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise CommandFailedError(f"{Path(command[0]).name} {words}: not done after {seconds:g} s\n{error.stdout!r}") from error
        if done.returncode != 0:
            raise CommandFailedError(f"{Path(command[0]).name} {words}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout
