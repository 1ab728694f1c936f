"""Exit codes of the trainer and of ``rlhf run``; the operator classifies attempts by them."""

from enum import IntEnum


class ExitCode(IntEnum):
    DONE = 0
    USER = 1
    """The user's failure that has no code of its own."""
    CONFIG = 2
    """Bad configuration: the job cannot run as written."""
    DATA = 3
    """Bad data or reward code."""
    RETRY = 75
    """Infrastructure: the same job may succeed when it is tried again."""
    STOPPED = 143
    """Stopped on request, after a checkpoint."""
