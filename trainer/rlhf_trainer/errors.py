"""Failures with an exit code. Everything else is a traceback and exit code 1."""

from __future__ import annotations

from rlhf_api.exit_codes import ExitCode
from rlhf_api.violations import Violation


class JobError(Exception):
    """Ends the job with ``exit_code``; the text is one line for people, evidence below it.

    A fault of a manifest field is given as a ``Violation`` and kept in ``violation``.
    """

    exit_code: ExitCode = ExitCode.USER

    def __init__(self, problem: str | Violation) -> None:
        super().__init__(str(problem))
        self.violation = problem if isinstance(problem, Violation) else None


class ConfigError(JobError):
    exit_code = ExitCode.CONFIG


class DataError(JobError):
    """Bad data or reward code."""

    exit_code = ExitCode.DATA


class RetryError(JobError):
    """Infrastructure: a lost process, a collective or weight sync that timed out."""

    exit_code = ExitCode.RETRY


class StopRequested(JobError):  # noqa: N818 - a request, not a fault
    """Raised between steps after a stop signal, once the checkpoint is committed."""

    exit_code = ExitCode.STOPPED
