"""One reward file in a process of its own: started, called with a hard time limit, killed and started again.

Nothing the file does reaches the driver: prints go to the log up to a bound, ``sys.exit`` and ``os._exit`` are errors,
seeds and imports stay on the other side, and an endless loop dies with its process group.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import rlhf_trainer
from rlhf_trainer.rewards.binding import BY_NAME, EXPECTED, POSITIONAL, Parameter, SignatureError, bind
from rlhf_trainer.rewards.child import HEADER
from rlhf_trainer.rewards.shape_check import Received

log = logging.getLogger(__name__)

IMPORT_SECONDS = 60.0
"""Least time that importing the file may take; a first ``import torch`` can need half of it."""
PRINTED_BYTES_PER_CALL = 16_384
END_SECONDS = 2.0
KILL_SECONDS = 10.0


class RewardError(Exception):
    """A call of the user's function that gave no answer; the text names the file and the place in it."""

    def __init__(self, text: str, evidence: str = "") -> None:
        super().__init__(text)
        self.evidence = evidence


class RewardContractError(RewardError):
    """The file itself or the form of its answer is wrong, so no other rows would do better."""


class RewardTimeoutError(RewardError):
    pass


@dataclass(frozen=True, slots=True)
class Answer:
    """What the function returned, in plain Python."""

    rewards: Received
    scores: Received | None
    extra_logs: dict[str, Received]


class FunctionHost:
    """``path``: the user's file; ``working_dir``: where its process runs. Use as a context manager, or ``close``."""

    def __init__(self, path: Path, name: str, timeout_seconds: float, working_dir: Path, *, import_seconds: float = IMPORT_SECONDS) -> None:
        # Links are kept: a mounted ConfigMap's lead elsewhere after each change of it.
        self.path = path.absolute()
        self.name = name
        self.timeout_seconds = timeout_seconds
        self._import_seconds = max(import_seconds, timeout_seconds)
        self._working_dir = working_dir
        self._process: subprocess.Popen[bytes] | None = None
        self._pipes: list[int] = []
        self._output: _Output | None = None
        self._parameters: list[Parameter] = []
        self._warned_keys: set[str] = set()
        self._number = 0
        """Of the last request, over all processes of this host."""

    def __enter__(self) -> FunctionHost:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Start the process and import the file; raises ``RewardContractError`` when that fails."""
        if self._process is not None:
            return
        self._spawn()
        try:
            reply = self._exchange({"op": "load", "path": str(self.path), "name": self.name}, self._import_seconds, "importing it")
        except RewardError as fault:
            self.close()
            raise RewardContractError(str(fault), fault.evidence) from fault
        self._parameters = [Parameter(name, kind, has_default) for name, kind, has_default in reply["parameters"]]

    def call(self, columns: Mapping[str, Sequence[Any]], timeout_seconds: float | None = None) -> Answer:
        """``columns``: ``queries``, ``prompts``, ``labels``, the extras of ``BY_NAME`` and data columns, one entry a rollout.

        Raises ``RewardTimeoutError``, ``RewardContractError``, or ``RewardError`` for an exception of the user's code.
        """
        self.start()
        extras = [name for name in columns if name not in POSITIONAL + BY_NAME]
        try:
            binding = bind(self._parameters, extras)
        except SignatureError as error:
            raise RewardContractError(f"{self.path}: {self.name} can't be called: {error}. Expected: {EXPECTED}") from error
        request = {
            "op": "call",
            "args": [list(columns[name]) for name in binding.positional],
            "kwargs": {name: list(columns[name]) for name in binding.keywords},
        }
        limit = timeout_seconds or self.timeout_seconds
        size = len(columns["queries"])
        reply = self._exchange(request, limit, f"one call with {size} {'rollout' if size == 1 else 'rollouts'}")
        self._warn_about(reply.get("other_keys", []))
        scores = reply.get("scores")
        logs = {key: _received(value) for key, value in reply.get("extra_logs", {}).items()}
        return Answer(_received(reply["rewards"]), _received(scores) if scores is not None else None, logs)

    def close(self) -> None:
        """Kill the process with everything it started."""
        # Closing the lifeline makes the child's supervisor kill and collect the worker, then kill the group.
        for descriptor in self._pipes:
            os.close(descriptor)
        self._pipes = []
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(KILL_SECONDS)
            self._process = None
        if self._output is not None:
            self._output.finish()
            self._output = None

    def _spawn(self) -> None:
        request_end, self._requests = os.pipe()
        self._replies, reply_end = os.pipe()
        lifeline_end, lifeline = os.pipe()
        self._pipes = [self._requests, self._replies, lifeline]
        theirs = (request_end, reply_end, lifeline_end)
        root = str(Path(rlhf_trainer.__file__).parents[1])
        inherited = os.environ.get("PYTHONPATH")
        try:
            # -P: the working directory does not come before installed packages on the import path.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rlhf_trainer.rewards.child", *map(str, theirs)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=theirs,
                start_new_session=True,
                cwd=self._working_dir,
                env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{inherited}" if inherited else root, "PYTHONUNBUFFERED": "1"},
            )
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        os.set_blocking(self._requests, False)
        assert self._process.stdout is not None
        self._output = _Output(self._process.stdout, self.path.name)

    def _exchange(self, request: dict[str, Any], limit: float, doing: str) -> dict[str, Any]:
        assert self._output is not None
        self._output.reset()
        deadline = time.monotonic() + limit
        self._number += 1
        body = pickle.dumps(request | {"number": self._number})
        try:
            self._send(HEADER.pack(len(body)) + body, deadline)
            reply = self._reply(deadline)
            while reply.get("number") != self._number:
                log.warning("%s: a reply to request %s is ignored, expected %d", self.path.name, reply.get("number"), self._number)
                reply = self._reply(deadline)
        except TimeoutError as error:
            self.close()
            raise RewardTimeoutError(f"{self.path}: {doing} took longer than {limit:g} s and was stopped") from error
        except (EOFError, BrokenPipeError) as error:
            self.close()
            raise RewardError(
                f"{self.path}: its process ended during {doing} (os._exit, a crash in native code, or killed for memory)"
            ) from error
        if "error" in reply:
            raise self._fault(reply["error"])
        return reply

    def _reply(self, deadline: float) -> dict[str, Any]:
        header = self._receive(HEADER.size, deadline)
        reply: dict[str, Any] = json.loads(self._receive(HEADER.unpack(header)[0], deadline))
        return reply

    def _fault(self, error: Mapping[str, Any]) -> RewardError:
        place = f"{error['file']}, line {error['line']}" if error["line"] else error["file"]
        if error["contract"]:
            return RewardContractError(f"{self.path}: {error['message']}. Expected: {EXPECTED}")
        code = f", at: {error['code']}" if error["code"] else ""
        message = f": {error['message']}" if error["message"] else ""
        return RewardError(f"{place}: {error['type']}{message}{code}", error["traceback"])

    def _send(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            _wait(self._requests, select.POLLOUT, deadline)
            view = view[os.write(self._requests, view[:65_536]) :]

    def _receive(self, size: int, deadline: float) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            _wait(self._replies, select.POLLIN, deadline)
            part = os.read(self._replies, min(size - len(parts), 1 << 20))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def _warn_about(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key not in self._warned_keys:
                self._warned_keys.add(key)
                log.warning("%s returns the key %r, which has no meaning; known: rewards, scores, extra_logs", self.path.name, key)


def _wait(descriptor: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError


def _received(reply: Mapping[str, Any]) -> Received:
    shape = reply["shape"]
    return Received(reply["type_name"], tuple(shape) if shape is not None else None, reply["values"])


class _Output:
    """Drains what the user's process prints, so that it never blocks, and logs the first bytes of each call."""

    def __init__(self, stream: IO[bytes], label: str) -> None:
        self._stream = stream
        self._label = label
        self._lock = threading.Lock()
        self._shown = 0
        self._hidden = 0
        self._thread = threading.Thread(target=self._drain, name=f"reward-output-{label}", daemon=True)
        self._thread.start()

    def reset(self) -> None:
        with self._lock:
            hidden, self._shown, self._hidden = self._hidden, 0, 0
        if hidden:
            log.info("%s printed %d more bytes, not shown", self._label, hidden)

    def finish(self) -> None:
        self._thread.join(timeout=1.0)
        self.reset()

    def _drain(self) -> None:
        with self._stream as stream:
            while chunk := os.read(stream.fileno(), 65_536):
                with self._lock:
                    room = max(0, PRINTED_BYTES_PER_CALL - self._shown)
                    self._shown += min(room, len(chunk))
                    self._hidden += max(0, len(chunk) - room)
                for line in chunk[:room].decode(errors="replace").splitlines():
                    log.info("%s: %s", self._label, line)
