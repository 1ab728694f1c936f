"""``python -m rlhf_operator``: settings from the environment, logs one line an event, an end that Kubernetes understands."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import NoReturn

from rlhf_operator.clients.connection import ConnectError, connect
from rlhf_operator.runtime.app import Operator, UnhealthyError
from rlhf_operator.runtime.election import LeaseLostError
from rlhf_operator.settings import OperatorSettings, SettingsError, from_environment

log = logging.getLogger("rlhf_operator")

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One JSON object an event; what was given as ``extra`` stands beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _OWN},
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class PlainLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        extra = " ".join(f"{name}={value}" for name, value in vars(record).items() if name not in _OWN)
        return f"{text}  {extra}" if extra else text


def set_up_logs(settings: OperatorSettings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    plain = PlainLines("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if settings.log_format == "json" else plain)
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
    # kopf reports each call of each handler, with all its settings; what it warns of matters.
    for library in ("kopf", "aiohttp", "asyncio"):
        logging.getLogger(library).setLevel(logging.WARNING)


def leave(code: int) -> NoReturn:
    """Ends the process without waiting for tasks: those that are left are the watching library's, and may never end."""
    logging.shutdown()
    os._exit(code)


def lease_lost(lost: LeaseLostError) -> NoReturn:
    """Nothing may be written any more, so nothing is cleaned up either."""
    log.critical("lease lost: %s", lost)
    leave(1)


async def run(settings: OperatorSettings) -> NoReturn:
    try:
        await Operator(settings, connect(), lease_lost).run()
    except ConnectError as fault:
        log.critical("%s", fault)
        leave(2)
    except UnhealthyError as fault:
        log.critical("%s; a new process is needed", fault)
        leave(1)
    except Exception:
        log.critical("the operator failed", exc_info=True)
        leave(1)
    leave(0)


def main() -> int:
    try:
        settings = from_environment(os.environ)
    except SettingsError as fault:
        print(fault, file=sys.stderr)
        return 2
    set_up_logs(settings)
    # What was imported stays for the life of the process: no collection has to look at it again.
    gc.freeze()
    asyncio.run(run(settings))


if __name__ == "__main__":
    sys.exit(main())
