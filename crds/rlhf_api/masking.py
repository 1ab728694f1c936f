"""Texts of others without what must not be shown: secrets, and characters that a terminal obeys or nobody sees."""

from __future__ import annotations

import re

MASK = "***"

_URL_LOGIN = re.compile(r"(?<=://)[^/@\s:]*:[^/@\s]+(?=@)")
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}"
    r"|glpat-[\w-]{20,}|xox[abeprs]-[\w-]{20,}|A(?:KI|SI)A[A-Z0-9]{16}\b|AIza[\w-]{35})"
)
_SPOKEN = (
    # A login without a password is a token where it is long: https://TOKEN@host.
    (re.compile(r"(?<=://)[^/@\s:\"'\\]{16,}(?=@)"), MASK),
    (re.compile(r"(?<=://)[^/\s:\"'\\]*:[^/\s\"'\\]+(?=@)"), MASK),
    (re.compile(r"(?i)\b(bearer|basic)(\s+)(?=[^\s]*\d)[A-Za-z0-9._~+/=-]{12,}"), rf"\1\2{MASK}"),
    (re.compile(r"(?<![\w-])eyJ[\w-]{10,}\.[\w-]{10,}(?:\.[\w-]*)?"), MASK),
    (re.compile(r"\bwandb_v\d_\w{20,}"), MASK),
    (re.compile(r"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), MASK),
    # Weights & Biases' keys are 40 hexadecimal digits, and so are commits: only what is called a key or token counts.
    (re.compile(r"(?i)((?:key|token)\w{0,16}[\"']?\s{0,4}[=:]\s{0,4}[\"']?)[0-9a-f]{40}\b"), rf"\1{MASK}"),
    (
        re.compile(
            r"(?i)((?:api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key|access[_-]?token|auth[_-]?token|refresh[_-]?token|hf_token"
            r"|client[_-]?secret|password|passwd)[\"']?\s{0,4}[=:]\s{0,4}[\"']?)[^\s\"',;&)}\]\\]{6,}"
        ),
        rf"\1{MASK}",
    ),
    (re.compile(r"(?i)([?&;](?:[\w-]{0,32}(?:token|secret|password|signature)|sig)=)[^&\s'\"\\]+"), rf"\1{MASK}"),
)
"""Shapes that only stand for a secret in what programs print; a manifest may hold such words rightly. None takes a quote or a backslash,
so that JSON stays JSON."""

_TERMINAL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_LINE_ENDS = re.compile("\r\n|[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def find_secret(text: str) -> str | None:
    """What kind of secret stands in ``text``, by the prefixes that hubs and clouds give their tokens."""
    if _URL_LOGIN.search(text):
        return "a password in a URL"
    return "an access token" if _TOKEN.search(text) else None


def mask(text: str) -> str:
    """``text`` without logins in URLs, access tokens, and values that are called a key, token or password."""
    for pattern, instead in _SPOKEN:
        text = pattern.sub(instead, text)
    return _TOKEN.sub(MASK, _URL_LOGIN.sub(MASK, text))


def plain(text: str) -> str:
    """``text`` in UTF-8, without colours and orders to a terminal, control characters, and what turns the direction of writing.

    Each kind of line end becomes a newline; tabs stay.
    """
    text = _TERMINAL.sub("", text.encode("utf-8", "replace").decode())
    return _UNSEEN.sub("", _LINE_ENDS.sub("\n", text))


def heard(text: str) -> str:
    """What somebody else said, fit to be shown to anybody: ``plain`` and masked. What was masked once stays as it is."""
    return mask(plain(text))
