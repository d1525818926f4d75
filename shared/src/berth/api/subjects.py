"""Subjects and keys: how names of profiles, namespaces, pods and nodes are written where NATS allows few characters.

A subject token may hold anything but white space, ``.``, ``*``, ``>``; a KV key only ``[-/_=.a-zA-Z0-9]``. What a
place does not allow is written as ``=XX`` for each byte of its UTF-8 form, and ``=`` itself as ``=3D``, so that every
name has one written form and comes back whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from berth.api.errors import DecodeError

PREFIX: Final = "berth"
STAGES: Final = ("pending", "ranked", "decision")

_TOKEN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_/")
_DOTTED = _TOKEN | frozenset(b".")
_ESCAPED = re.compile("=([0-9A-F]{2})")
_STRAY = re.compile("=(?![0-9A-F]{2})")


@lru_cache(maxsize=65_536)
def escape_token(name: str) -> str:
    """A name as one token: dots are written as ``=2E``. An empty name is ``=``."""
    return _escape(name, _TOKEN) or "="


@lru_cache(maxsize=65_536)
def escape_dotted(name: str) -> str:
    """A name whose dots stay readable as token separators; a dot that would make an empty token is escaped."""
    text = _escape(name, _DOTTED)
    if not text:
        return "="
    if text.startswith(".") or text.endswith(".") or ".." in text:
        return text.replace(".", "=2E")
    return text


def unescape(text: str) -> str:
    """The name that was escaped.

    Raises:
        DecodeError: a ``=`` that is not followed by two capital hexadecimal digits, or bytes that are not UTF-8.
    """
    if "=" not in text:
        return text
    if text == "=":
        return ""
    if _STRAY.search(text):
        raise DecodeError(f"decoding name {text!r}: want two capital hexadecimal digits after each '='")
    written = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
    try:
        return written.encode("latin-1").decode("utf-8", "surrogatepass")
    except UnicodeError as exc:
        raise DecodeError(f"decoding name {text!r}: not UTF-8") from exc


def _escape(name: str, allowed: frozenset[int]) -> str:
    return "".join(chr(byte) if byte in allowed else f"={byte:02X}" for byte in name.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSubject:
    """A subject of a pod's way: ``berth.<stage>.<profile>.<namespace>.<pod name>``."""

    stage: str
    profile: str
    namespace: str
    pod: str

    def __str__(self) -> str:
        profile, namespace = escape_token(self.profile), escape_token(self.namespace)
        return f"{PREFIX}.{self.stage}.{profile}.{namespace}.{escape_dotted(self.pod)}"

    @classmethod
    def parse(cls, subject: str) -> PodSubject:
        """Read a subject.

        Raises:
            DecodeError: not of a pod's way.
        """
        tokens = subject.split(".", 4)
        if len(tokens) != 5 or not all(tokens) or tokens[0] != PREFIX or tokens[1] not in STAGES:  # noqa: PLR2004 - as above
            raise DecodeError(f"decoding subject {subject!r}: want {PREFIX}.<stage>.<profile>.<namespace>.<pod>")
        return cls(stage=tokens[1], profile=unescape(tokens[2]), namespace=unescape(tokens[3]), pod=unescape(tokens[4]))


def all_of(stage: str) -> str:
    """The filter for every pod of a stage."""
    return f"{PREFIX}.{stage}.>"


def key(kind: str, name: str) -> str:
    """A key of a KV bucket: ``node.<name>``, ``pod.<uid>``, ``watermark.<kind>``."""
    return f"{escape_token(kind)}.{escape_dotted(name)}"


def parse_key(text: str) -> tuple[str, str]:
    """The kind and name of a key.

    Raises:
        DecodeError: there is no kind before a dot, or no name after it, or one of them is not escaped as it should be.
    """
    kind, dot, name = text.partition(".")
    if not dot or not kind or not name:
        raise DecodeError(f"decoding key {text!r}: want <kind>.<name>")
    return unescape(kind), unescape(name)
