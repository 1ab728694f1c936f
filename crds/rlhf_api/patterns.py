"""The patterns of the API's texts in words, and the text nearest to one that a pattern refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from rlhf_api.spec.cluster import DNS_LABEL, DNS_NAME, FOLDER, IMAGE, KEY_NAME, QUANTITY

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]?)([iI]?)[bB]?\s*")
_REGISTRY = re.compile(r"[-A-Za-z0-9.]+(:[0-9]{1,5}|(?<=[.])[-A-Za-z0-9]+)|\[[0-9a-fA-F:]+\](:[0-9]{1,5})?")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_VERSION = re.compile(r"\D*(\d+)\.(\d+)(?:\.(\d+))?")

_LABEL = "lower-case letters, digits and -, first and last a letter or digit"
_WORD = "letters, digits, -, _ and ., first and last a letter or digit"


def _quantity(text: str) -> str | None:
    """``64GB`` -> 64G, ``64 gi`` -> 64Gi."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    number, unit, binary = match.groups()
    known = "k" if unit in "kK" and not binary else "m" if unit == "m" and not binary else unit.upper()
    nearest = f"{number}{known}{'i' if binary else ''}"
    return nearest if re.fullmatch(QUANTITY, nearest, re.ASCII) else None


def _plain(allowed: str) -> Callable[[str], str | None]:
    """Whatever is not ``allowed`` becomes a dash."""

    def nearest(text: str) -> str | None:
        return re.sub(f"[^{allowed}]+", "-", text).strip("-._/") or None

    return nearest


def _lower(text: str) -> str | None:
    return _plain("a-z0-9")(text.lower())


def _version(text: str) -> str | None:
    match = _VERSION.match(text)
    return ".".join(part or "0" for part in match.groups()) if match else None


def _folder(text: str) -> str | None:
    parts = [part for part in text.replace(":", "-").split("/") if part not in ("", ".", "..")]
    return f"/{'/'.join(parts)}" if parts else None


def _variable(text: str) -> str | None:
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", text)
    return f"_{plain}" if plain[:1].isdigit() else plain or None


def _image(text: str) -> str | None:
    """``Team/My Trainer:0.1`` -> team/my-trainer:0.1; a tag or digest that cannot be one is left out."""
    name, _, digest = text.strip().removeprefix("https://").removeprefix("http://").partition("@")
    place, _, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    host, _, folders = place.partition("/")
    if not _REGISTRY.fullmatch(host):
        host, folders = "", place
    names = [plain for part in (*folders.split("/"), last) if (plain := _plain("a-z0-9._-")(part.lower()))]
    if not last or not names:
        return None
    plain_tag = _plain("A-Za-z0-9_.-")(tag)
    kept = f"@{digest}" if _DIGEST.fullmatch(digest) else ""
    return "/".join([*([host] if host else []), *names]) + (f":{plain_tag}" if plain_tag else "") + kept


_SAID: Mapping[str, tuple[str, Callable[[str], str | None]]] = {
    QUANTITY: ("a quantity, digits with or without one of the units m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei", _quantity),
    DNS_LABEL: (_LABEL, _lower),
    DNS_NAME: (f"parts of {_LABEL}, with dots between them", lambda text: _plain("a-z0-9.")(text.lower())),
    KEY_NAME: (f"{_WORD}, behind a domain and a / if it has one", _plain("A-Za-z0-9_./-")),
    r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$": (_WORD, _plain("A-Za-z0-9_.-")),
    r"^[A-Za-z_][A-Za-z0-9_]*$": ("letters, digits and _, first no digit", _variable),
    r"^[-._a-zA-Z0-9]+$": ("letters, digits, -, _ and .", _plain("A-Za-z0-9._-")),
    r"^[A-Za-z0-9._-]+$": ("letters, digits, -, _ and .", _plain("A-Za-z0-9._-")),
    FOLDER: ("an absolute path below /, without :, without a / at its end and without empty parts, . or ..", _folder),
    r"^[^/:]+(/[^/:]+)*$": ("a relative path without : and without a / at its end", lambda text: (_folder(text) or "")[1:] or None),
    IMAGE: (
        "an image such as registry.example:5000/team/trainer:0.1, small letters in all but host and tag, or with @sha256: and 64 digits",
        _image,
    ),
    r"^\d+\.\d+\.\d+$": ("a version of three numbers such as 2.60.0", _version),
}


def said(pattern: str, text: str) -> tuple[str, str | None]:
    """What ``pattern`` asks for, to stand behind "must be", and what ``text`` may have meant."""
    words, nearest = _SAID[pattern]
    found = nearest(text)
    return words, found if found is not None and re.search(pattern, found, re.ASCII) else None
