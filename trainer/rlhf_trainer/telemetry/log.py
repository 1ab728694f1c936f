"""The driver's log: one event a line, ``key=value``, also in the job's folder because pods forget theirs.

Secrets never reach it: credentials in URLs, bearer tokens, hub tokens, and the values of environment variables
whose name says that they are one.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

FILE_NAME = "driver.log"
ROOT = "rlhf_trainer"
MASK = "***"
MIN_SECRET_CHARS = 8

_PATTERNS = (
    (re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://)[^\s/'\"]+@"), rf"\1{MASK}@"),
    (re.compile(r"(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}"), rf"\1{MASK}"),
    (re.compile(r"(?i)([?&;](?:[\w-]*(?:token|secret|password|signature)|(?:api[_-]?)?key|sig)=)[^&\s'\"]+"), rf"\1{MASK}"),
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), MASK),
)
_SECRET_NAME = re.compile(r"(?i)(^|_)(token|secret|password|passwd|(api|access|secret|private)_?key)$")


def secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Values to mask: of variables named like a secret, long enough not to hit ordinary words; longest first."""
    found = {value for name, value in environment.items() if _SECRET_NAME.search(name) and len(value) >= MIN_SECRET_CHARS}
    return tuple(sorted(found, key=len, reverse=True))


def mask(text: str, secrets: Iterable[str] | None = None) -> str:
    """``text`` without secrets. ``secrets`` None takes those of this process's environment."""
    for secret in secret_values(os.environ) if secrets is None else secrets:
        text = text.replace(secret, MASK)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


class KeyValueFormatter(logging.Formatter):
    """``time=… level=… event="…" step=3 phase=rollout``; a traceback follows on its own lines."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        super().__init__()
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **record.__dict__.get("fields", {}),
        }
        line = " ".join(f"{key}={_quote(value)}" for key, value in fields.items())
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return mask(line, self._secrets)


class EventLog:
    """Writes events that carry the same fields each time: ``EventLog(attempt=2).event("saved", step=140)``."""

    def __init__(self, **fields: object) -> None:
        self._fields = fields
        self._logger = logging.getLogger(ROOT)

    def event(self, name: str, **fields: object) -> None:
        self._logger.info(name, extra={"fields": {**self._fields, **fields}})

    def warning(self, name: str, **fields: object) -> None:
        self._logger.warning(name, extra={"fields": {**self._fields, **fields}})

    def failure(self, name: str, error: BaseException, **fields: object) -> None:
        """With the traceback."""
        trace = (type(error), error, error.__traceback__)
        self._logger.error(name, exc_info=trace, extra={"fields": {**self._fields, **fields}})


def setup(job_dir: Path, console: bool = False, **fields: object) -> EventLog:
    """Append everything the trainer logs to ``<job>/driver.log``, and to stderr with ``console``; returns the log.

    ``fields`` (job, attempt) stand in every event. Calling it again moves the log to the new folder.
    """
    job_dir.mkdir(parents=True, exist_ok=True)
    logger = logging.getLogger(ROOT)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    handlers: list[logging.Handler] = [logging.FileHandler(job_dir / FILE_NAME, encoding="utf-8")]
    if console:
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(KeyValueFormatter(secret_values(os.environ)))
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return EventLog(**fields)


def _quote(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or re.search(r"[\s\"=]", text) else text
