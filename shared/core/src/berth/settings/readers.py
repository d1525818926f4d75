"""Readers parse the text of a flag, a variable or a file into a setting's value. Errors name the expected form."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import SplitResult, urlsplit

from berth.bus.settings import WANTED_PREFIX, TopologySettings


class Secret:
    """A password or token. ``repr``, ``str`` and logs show stars; :meth:`reveal` returns the text for sending."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret('***')"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> str:
        raise TypeError("pickling a secret: it would be written in the clear")


T = TypeVar("T")

# Text to value. Raises ValueError with `want ..., got ...`.
Reader = Callable[[str], T]


# The values of Go's strconv.ParseBool, as for kube-scheduler's flags.
_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})

_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")

_DNS_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

_SUBJECT_PREFIX: Final = re.compile(r"[\w-]+(\.[\w-]+)*", re.ASCII)
_DOMAIN: Final = re.compile(r"[A-Za-z0-9_-]+")

_MOST_SHOWN: Final = 200  # characters of a wrong path in its error
_NATS_SCHEMES: Final = ("nats", "tls")


def text(given: str) -> str:
    """Any non-empty text."""
    if not given:
        raise ValueError("want some text, got ''")
    return given


def any_text(given: str) -> str:
    return given


def secret(given: str) -> Secret:
    """Text that logs never show."""
    return Secret(text(given))


def boolean(given: str) -> bool:
    """True or false in the forms of Go's flags."""
    if given in _TRUE:
        return True
    if given in _FALSE:
        return False
    raise ValueError(f"want true or false, got {given!r}")


def integer(minimum: int, maximum: int) -> Reader[int]:
    """A whole number within bounds, both included."""

    def read(given: str) -> int:
        try:
            value = int(given)
        except ValueError:
            raise ValueError(f"want a whole number {minimum}..{maximum}, got {given!r}") from None
        if not minimum <= value <= maximum:
            raise ValueError(f"want {minimum}..{maximum}, got {given}")
        return value

    return read


def one_of_numbers(*options: int) -> Reader[int]:
    def read(given: str) -> int:
        if given not in {str(option) for option in options}:
            raise ValueError(f"want one of {', '.join(map(str, options))}, got {given!r}")
        return int(given)

    return read


def positive(given: str) -> float:
    """A finite number above 0."""
    try:
        value = float(given)
    except ValueError:
        raise ValueError(f"want a number above 0, got {given!r}") from None
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"want a number above 0, got {given}")
    return value


def duration(minimum: float, maximum: float) -> Reader[timedelta]:
    """A duration in Go's form (``15s``, ``1m30s``, ``500ms``) or plain seconds (``1.5``); bounds in seconds."""

    def read(given: str) -> timedelta:
        value = _seconds(given)
        if not minimum <= value <= maximum:
            raise ValueError(f"want {minimum:g}s..{maximum:g}s, got {given}")
        return timedelta(seconds=value)

    return read


def choice(options: Collection[str]) -> Reader[str]:
    def read(given: str) -> str:
        if given not in options:
            raise ValueError(f"want one of {', '.join(options)}, got {given!r}")
        return given

    return read


def path(given: str) -> Path:
    """A path, which need not exist; ``~`` is the home folder."""
    return Path(os.path.expanduser(text(given)))  # noqa: PTH111 - Path's own raises where nobody has that home


def existing_file(given: str) -> Path:
    """An existing file, so that a wrong path is found at start-up."""
    found = path(given)
    try:
        exists = found.is_file()
    except (OSError, ValueError):  # longer than a name may be, such as the content of the file
        exists = False
    if not exists:
        raise ValueError(f"want a file that exists, got {given[:_MOST_SHOWN]!r}")
    return found


def object_name(given: str) -> str:
    if not _DNS_NAME.fullmatch(given) or len(given) > 253:  # the length of a DNS subdomain
        raise ValueError(f"want a DNS name (lower-case letters, digits, '-', '.'), got {given!r}")
    return given


def shadow_name(given: str) -> str:
    """One token of a subject and one Kubernetes label."""
    if not _LABEL.fullmatch(given):
        raise ValueError(f"want up to 63 lower-case letters, digits and '-', got {given!r:.100}")
    return given


def nats_url(given: str) -> str:
    """Addresses of NATS, separated by commas, without passwords, because addresses appear in logs and process lists."""
    for address in given.split(","):
        parts = urlsplit(address.strip())
        if parts.username is not None or parts.password is not None:
            instead = "set BERTH_NATS_USER and BERTH_NATS_PASSWORD_FILE"
            raise ValueError(f"want no password in it, since addresses are logged: {instead}")
        if parts.scheme not in _NATS_SCHEMES or not _is_host_and_port(parts):
            shown = "***" if "@" in address else address
            raise ValueError(f"want nats:// or tls:// and HOST[:PORT], got {shown!r}")
    return given


def _is_host_and_port(parts: SplitResult) -> bool:
    try:
        port = parts.port
    except ValueError:  # not a number, or above 65535
        return False
    nothing_else = not (parts.path.strip("/") or parts.query or parts.fragment)
    return bool(parts.hostname) and port != 0 and nothing_else and not set(parts.netloc) & set(" \t\r\n")


def subject_prefix(given: str) -> str:
    """A prefix of NATS subjects: whole tokens, no wildcard."""
    if _SUBJECT_PREFIX.fullmatch(given) is None:
        raise ValueError(f"want tokens of letters, digits, _ and - with dots between them, got {given!r}")
    return given


def domain(given: str) -> str:
    """A JetStream domain: one token, or empty."""
    if given and _DOMAIN.fullmatch(given) is None:
        raise ValueError(f"want letters, digits, _ and -, got {given!r}")
    return given


def berth_prefix(given: str) -> str:
    """The prefix of a berth's names: one token, or empty."""
    if TopologySettings(prefix=given).problems():
        raise ValueError(f"{WANTED_PREFIX}, got {given!r}")
    return given


def written(value: timedelta) -> str:
    """The duration as settings write it: ``15s``, ``0.5s``."""
    return f"{value.total_seconds():g}s"


def _seconds(given: str) -> float:
    parts = _PART.findall(given)
    if parts and "".join(number + unit for number, unit in parts) == given:
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise ValueError(f"want a duration such as 15s, 1m30s or 500ms, got {given!r}")
    return seconds
