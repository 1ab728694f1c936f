"""The process that runs the user's reward file: ``python -m rlhf_trainer.rewards.child REQUESTS REPLIES LIFELINE``.

The three arguments are file descriptors. Requests are pickled frames, replies JSON frames: the driver never unpickles
anything that user code could have written. A reply carries the number of its request, so that no other request can be
taken to have it. Before user code is imported the process forks: the worker runs it, the supervisor only waits, and
kills the whole process group when the worker ends or the driver is gone (the lifeline pipe closes, also after
``kill -9``). Nothing heavy is imported here.
"""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import inspect
import json
import linecache
import os
import pickle
import signal
import struct
import sys
import traceback
import types
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from rlhf_trainer.rewards.binding import Kind
from rlhf_trainer.rewards.shape_check import receive

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

HEADER = struct.Struct(">Q")
PR_SET_PDEATHSIG = 1
MODULE_NAME = "rlhf_user_reward"
KINDS: dict[Any, Kind] = {
    inspect.Parameter.POSITIONAL_ONLY: "positional_only",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional",
    inspect.Parameter.VAR_POSITIONAL: "var_positional",
    inspect.Parameter.KEYWORD_ONLY: "keyword_only",
    inspect.Parameter.VAR_KEYWORD: "var_keyword",
}
RESULT_KEYS = ("rewards", "scores", "extra_logs")
_loop: AbstractEventLoop | None = None


class ContractError(Exception):
    """The file or its answer is not what the contract says; no retry of a part of the batch can help."""


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main(requests: int, replies: int, lifeline: int) -> int:
    # Ray 2.60 stops a job by a signal to the driver and to every process below it; the driver still needs rewards until its checkpoint.
    for number in STOP_SIGNALS:
        signal.signal(number, pass_over)
    signal.signal(signal.SIGCHLD, end_with_worker)
    worker = os.fork()
    if worker:
        os.close(requests)
        os.close(replies)
        os.read(lifeline, 1)
        # Collected here: the first process of a container may collect nobody, and whoever waits for the worker would see it for ever.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
        os.killpg(0, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # User code stops processes of its own with SIGTERM.
    os.register_at_fork(after_in_child=default_stop_signals)
    # The supervisor may be killed alone; its only thread is its main thread, so this signal means that it is dead.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.close(lifeline)
    for descriptor in (requests, replies):
        os.set_inheritable(descriptor, False)
    serve(requests, replies)
    return 0


def pass_over(number: int, frame: object) -> None:
    """A handler, not SIG_IGN, which programs started from here would inherit."""


def default_stop_signals() -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def end_with_worker(number: int, frame: object) -> None:
    ended, _ = os.waitpid(-1, os.WNOHANG)
    if ended:
        os.killpg(0, signal.SIGKILL)


def serve(requests: int, replies: int) -> None:
    function: Callable[..., Any] | None = None
    path = ""
    worker = os.getpid()
    with os.fdopen(requests, "rb") as stream:
        while header := stream.read(HEADER.size):
            request = pickle.loads(stream.read(HEADER.unpack(header)[0]))
            answer: dict[str, Any]
            try:
                if request["op"] == "load":
                    path = request["path"]
                    function = load(path, request["name"])
                    answer = {"parameters": parameters(function)}
                else:
                    assert function is not None
                    answer = call(function, request["args"], request["kwargs"])
            except BaseException as error:
                answer = {"error": describe(error, path)}
            if os.getpid() != worker:
                # User code forked and returned in the copy too, which must neither answer nor take the next request.
                os._exit(0)
            sys.stdout.flush()
            sys.stderr.flush()
            body = json.dumps(answer | {"number": request["number"]}).encode()
            write_all(replies, HEADER.pack(len(body)) + body)


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def load(path: str, name: str) -> Callable[..., Any]:
    """Run the file as a module and find the function. Compiled from source: bytecode of an older text is never used."""
    folder = os.path.dirname(os.path.abspath(path))
    sys.path.insert(0, folder)
    with open(path, "rb") as file:
        source = file.read()
    module = types.ModuleType(MODULE_NAME)
    module.__file__ = path
    sys.modules[MODULE_NAME] = module
    exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    found = vars(module).get(name)
    if found is None:
        raise ContractError(missing(name, module))
    if isinstance(found, type):
        found = found()
    if not callable(found):
        raise ContractError(f"{name} is a {type(found).__name__}, not a function")
    return cast("Callable[..., Any]", found)


def missing(name: str, module: types.ModuleType) -> str:
    functions = [key for key, value in vars(module).items() if callable(value) and getattr(value, "__module__", "") == MODULE_NAME]
    if not functions:
        return f"there is no function {name}; the file defines none"
    guess = difflib.get_close_matches(name, functions, n=1, cutoff=0.5)
    hint = f"; did you mean {guess[0]}?" if guess else ""
    return f"there is no function {name}{hint} The file defines {', '.join(functions[:8])}"


def parameters(function: Callable[..., Any]) -> list[list[Any]]:
    signature = inspect.signature(function)
    return [[p.name, KINDS[p.kind], p.default is not inspect.Parameter.empty] for p in signature.parameters.values()]


def call(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    result = function(*args, **kwargs)
    if inspect.isawaitable(result):
        result = run_async(result)
    if result is None:
        raise ContractError("it returned None; expected a dict with rewards, or one number a rollout")
    if not isinstance(result, Mapping):
        return {"rewards": received(result)}
    if "rewards" not in result:
        raise ContractError(wrong_keys(list(result)))
    answer: dict[str, Any] = {"rewards": received(result["rewards"]), "other_keys": [str(k) for k in result if k not in RESULT_KEYS]}
    if result.get("scores") is not None:
        answer["scores"] = received(result["scores"])
    logs = result.get("extra_logs")
    if logs is not None:
        if not isinstance(logs, Mapping):
            raise ContractError(f"extra_logs is a {type(logs).__name__}, expected a dict of numbers or of one number a rollout")
        answer["extra_logs"] = {str(key): received(value) for key, value in logs.items()}
    return answer


def run_async(result: Awaitable[Any]) -> Any:
    """On one loop for all calls: clients that the file keeps between calls belong to it."""
    import asyncio  # half of this process's start-up time, and most files don't need it

    async def wait() -> Any:
        return await result

    global _loop
    if _loop is None:
        _loop = asyncio.new_event_loop()
        asyncio.set_event_loop(_loop)
    return _loop.run_until_complete(wait())


def received(value: object) -> dict[str, Any]:
    copy = receive(value)
    return {"type_name": copy.type_name, "shape": copy.shape, "values": copy.values}


def wrong_keys(keys: list[Any]) -> str:
    names = [str(key) for key in keys]
    guess = difflib.get_close_matches("rewards", names, n=1)
    hint = f"; did you mean rewards instead of {guess[0]!r}?" if guess else ""
    return f"it returned a dict without the key 'rewards'{hint} It has {', '.join(names) or 'no keys'}"


def describe(error: BaseException, path: str) -> dict[str, Any]:
    """Type, text, place in the user's file and traceback, without the frames of this process."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    own = [frame for frame in frames if frame.filename == path] or frames
    line = own[-1].lineno if own else None
    message = str(error)
    if isinstance(error, SyntaxError) and error.filename == path:
        line, message = error.lineno, error.msg
    code = (linecache.getline(path, line).strip() or None) if line else None
    kept = traceback.TracebackException.from_exception(error)
    kept.stack = traceback.StackSummary.from_list(frames)
    return {
        "contract": isinstance(error, ContractError),
        "type": type(error).__name__,
        "message": message[:2000],
        "file": own[-1].filename if own else path,
        "line": line,
        "code": code,
        "traceback": "".join(kept.format())[-4000:],
    }


if __name__ == "__main__":
    sys.exit(main(*(int(argument) for argument in sys.argv[1:4])))
