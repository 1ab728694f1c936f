"""Where everything of the test ground lies on disk: one cache root, nothing in the work tree."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# The name becomes a cgroup folder, and part of pod cgroup paths.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?")


@dataclass(frozen=True)
class Home:
    """The cache root and the folders below it. Folders are made when they are first asked for."""

    root: Path

    @classmethod
    def default(cls) -> Home:
        """`$RLHF_CACHE`, else `~/.cache/rlhf-kube`."""
        return cls(Path(os.environ.get("RLHF_CACHE") or Path.home() / ".cache" / "rlhf-kube").absolute())

    def folder(self, *names: str) -> Path:
        """The folder NAMES below the root, made if missing."""
        path = self.root.joinpath(*names)
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def pki(self) -> Path:
        """Keys and certificates, shared by all clusters."""
        return self.folder("pki")

    def state(self, key: str) -> Path:
        """Where etcd's data for this key is saved, or will be; may not exist yet."""
        return self.folder("state") / key

    def cluster(self, name: str) -> Path:
        """The run folder of a cluster; may not exist yet. Raises ValueError for a name that cannot be a folder everywhere it is used."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"cluster name {name!r}: lower-case letters, digits and dashes, at most 30 characters, for example 'main'")
        return self.folder("clusters") / name

    def clusters(self) -> list[str]:
        """Names of the clusters that have a run folder."""
        return sorted(path.name for path in self.folder("clusters").iterdir() if path.is_dir())

    @contextmanager
    def locked(self, what: str) -> Iterator[None]:
        """Holds the lock called WHAT against other processes; waits for it. The kernel frees it when this process dies."""
        with (self.folder("locks") / what).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def claim_store(self) -> tuple[Path, int]:
        """The first container store that no living cluster uses, and the descriptor whose flock claims it.

        Stores outlive clusters, so that images stay unpacked. Whoever keeps the descriptor open keeps the claim: hand it to the supervisor.
        """
        number = 0
        while True:
            store = self.folder("stores", str(number))
            descriptor = os.open(store / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                number += 1
            else:
                return store, descriptor
