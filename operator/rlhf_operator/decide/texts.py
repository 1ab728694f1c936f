"""Times and texts as a status holds them."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from rlhf_api.masking import heard

SHORT_MAX = 253
EVIDENCE_MAX = 512
FAILURE_MAX = 2048
EVENT_MAX = 1024
YEARS = range(2000, 2200)
LONGEST_SECONDS = 1e10


def stamp(moment: datetime) -> str:
    """RFC 3339 in UTC, with milliseconds: what was seen in the same second must still be before or after."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def stamp_seconds(moment: datetime) -> str:
    """RFC 3339 in UTC, as Kubernetes writes it in conditions."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment_of(text: str | None) -> datetime | None:
    """The time that ``text`` names; None for none, and for what is not one: a status can have been edited by hand."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.year not in YEARS:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def doubled(first: float, times: int, most: float) -> float:
    """``first`` doubled ``times`` times, at most ``most``."""
    return min(first * 2.0 ** min(max(times, 0), 30), most)


def clean(text: str) -> str:
    """Without secrets, and without what cannot be encoded or should not reach a terminal: the last gate before a status or an Event."""
    return heard(text)


def cut(text: str, limit: int) -> str:
    """At most ``limit`` characters, the beginning is kept."""
    text = clean(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def cut_start(text: str, limit: int) -> str:
    """At most ``limit`` characters, the end is kept: a log says last what it ended with."""
    text = clean(text)
    return text if len(text) <= limit else "…" + text[len(text) - limit + 1 :]


def cut_middle(text: str, limit: int) -> str:
    """At most ``limit`` characters of a message with a traceback: what it says first and how it ends."""
    text = clean(text).strip()
    if len(text) <= limit:
        return text
    head = limit // 3
    return text[:head] + "\n…\n" + text[-(limit - head - 3) :]


def last_lines(text: str, count: int) -> str:
    """The last ``count`` lines that are not empty."""
    return "\n".join([line.rstrip() for line in text.splitlines() if line.strip()][-count:])


def one_line(text: str) -> str:
    return " ".join(text.split())


def duration(seconds: float) -> str:
    """8s, 6m12s, 2h11m, 3d04h."""
    if not math.isfinite(seconds):
        return "an unknown time"
    whole = max(round(min(seconds, LONGEST_SECONDS)), 0)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02d}h"


def few(names: list[str], limit: int = 3) -> str:
    """``a, b, c and 4 more``."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
