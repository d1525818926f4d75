"""Names on the bus: subjects of streams, keys of buckets, and the identities in messages (docs/protocol.md, 1).

A subject token may hold anything but white space, ``.``, ``*``, ``>``; a KV key only ``[-/_=.a-zA-Z0-9]``. Other
characters are written as ``=XX`` per byte of their UTF-8 form, and ``=`` itself as ``=3D``, so that every name has one
written form and can be read back. The header ``traceparent`` (W3C Trace Context) names the trace of a pod.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NewType

import msgspec

from berth.decoding import bounded_number
from berth.errors import DecodeError

PREFIX: Final = "berth"

STAGES: Final = ("pending", "ranked", "decision")


_TOKEN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_/")

_DOTTED = _TOKEN | frozenset(b".")

_PLAIN = re.compile("[a-zA-Z0-9/_-]*")  # names that both forms leave unchanged

_ESCAPED = re.compile("=([0-9A-F]{2})")

_STRAY = re.compile("=(?![0-9A-F]{2})")


@lru_cache(maxsize=65_536)
def escape_token(name: str) -> str:
    """A name as one token: dots are written as ``=2E``. An empty name is ``=``."""
    return _escape(name, _TOKEN) or "="


def escape_dotted(name: str) -> str:
    """A name whose dots stay readable as token separators; a dot that would make an empty token is escaped.

    Uids and most names stay unchanged. There is no cache, because the pods may outnumber it.
    """
    return name if name and _PLAIN.fullmatch(name) else _escape_dotted(name)


@lru_cache(maxsize=65_536)
def _escape_dotted(name: str) -> str:
    text = _escape(name, _DOTTED)
    if not text:
        return "="
    if text.startswith(".") or text.endswith(".") or ".." in text:
        return text.replace(".", "=2E")
    return text


def unescape(text: str) -> str:
    """The name that was escaped.

    Raises:
        DecodeError: a ``=`` without two capital hexadecimal digits after it, or bytes that are not UTF-8.
    """
    if "=" not in text:
        return text
    if text == "=":
        return ""
    if _STRAY.search(text):
        raise DecodeError(f"decoding name {text!r:.300}: want two capital hexadecimal digits after each '='")
    written = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
    try:
        return written.encode("latin-1").decode("utf-8", "surrogatepass")
    except UnicodeError as exc:
        raise DecodeError(f"decoding name {text!r:.300}: not UTF-8") from exc


def _escape(name: str, allowed: frozenset[int]) -> str:
    if _PLAIN.fullmatch(name):  # Kubernetes' own names: a fifth of the time.
        return name
    return "".join(chr(byte) if byte in allowed else f"={byte:02X}" for byte in name.encode("utf-8", "surrogatepass"))


class PodSubject(msgspec.Struct, frozen=True, kw_only=True):
    """A subject ``berth.<stage>.<profile>.<namespace>.<pod name>``."""

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
            DecodeError: not the subject of a pod.
        """
        tokens = subject.split(".", 4)
        if len(tokens) != 5 or not all(tokens) or tokens[0] != PREFIX or tokens[1] not in STAGES:
            raise DecodeError(f"decoding subject {subject!r:.300}: want {PREFIX}.<stage>.<profile>.<namespace>.<pod>")
        return cls(stage=tokens[1], profile=unescape(tokens[2]), namespace=unescape(tokens[3]), pod=unescape(tokens[4]))


def all_of(stage: str) -> str:
    return f"{PREFIX}.{stage}.>"


# The names under which services answer, each answered by its own NATS account only (docs/protocol.md, 8.7).
SERVICES: Final = ("berth-binder", "berth-metrics-collector", "berth-scorer", "berth-shadow", "berth-watcher")


def service_subject(service: str, identity: str, endpoint: str = "", *, for_admins: bool = False) -> str:
    """The subject on which a service answers: statistics or an endpoint; side effects are under ``berth.admin``."""
    asked = f"{PREFIX}.{'admin' if for_admins else 'service'}.{escape_token(service)}.{escape_token(identity)}"
    return f"{asked}.{endpoint}" if endpoint else asked


def key(kind: str, name: str) -> str:
    """A key such as ``node.<name>``, ``pod.<uid>``, ``watermark.<kind>``."""
    return f"{escape_token(kind)}.{escape_dotted(name)}"


def parse_key(text: str) -> tuple[str, str]:
    """The kind and name of a key.

    Raises:
        DecodeError: no kind before a dot, no name after it, or wrong escaping.
    """
    kind, dot, name = text.partition(".")
    if not dot or not kind or not name:
        raise DecodeError(f"decoding key {text!r:.300}: want <kind>.<name>")
    return unescape(kind), unescape(name)


_QUOTED: Final = 200  # characters of an unreadable attempt in an error

Uid = NewType("Uid", str)  # a Kubernetes object's metadata.uid

# The number of a watcher's leadership. It is never used again, even with a new JetStream store.
Term = NewType("Term", int)

# The number of a binder's leadership. It is never used again, even with a new JetStream store.
Epoch = NewType("Epoch", int)


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try to place a pod: the n-th of a uid in a watcher's term. Written ``<uid>.<term>.<n>``."""

    uid: Uid
    term: Term
    n: int

    @classmethod
    def parse(cls, text: str) -> Attempt:
        """Read ``<uid>.<term>.<n>``; the uid may contain dots.

        Raises:
            DecodeError: the text has another form.
        """
        uid, _, rest = text.rpartition(".")
        uid, _, term = uid.rpartition(".")
        number, n = bounded_number(term), bounded_number(rest)
        if not uid or number is None or n is None:
            raise DecodeError(f"decoding attempt {text[:_QUOTED]!r}: want <uid>.<term>.<n>")
        return cls(uid=Uid(uid), term=Term(number), n=n)

    def __str__(self) -> str:
        return f"{self.uid}.{self.term}.{self.n}"

    @property
    def order(self) -> tuple[int, int]:
        """Term, then n."""
        return (self.term, self.n)

    def next(self, term: Term) -> Attempt:
        """The attempt after this one; a new term counts from 1."""
        return Attempt(uid=self.uid, term=term, n=self.n + 1 if term == self.term else 1)


def decision_id(attempt: Attempt, epoch: Epoch, outcome: str, repeat: int = 0) -> str:
    """The ``Nats-Msg-Id`` of a Decision; the k-th repeat of ``waiting`` is a message of its own."""
    plain = f"{attempt}.{epoch}.{outcome}"
    return f"{plain}.{repeat}" if repeat else plain


TRACEPARENT: Final = "traceparent"
_VERSION: Final = "00-"
_LENGTH: Final = 55
_HEXADECIMAL: Final = frozenset("0123456789abcdef")


def parse_traceparent(header: str | None) -> tuple[str, str] | None:
    """Trace id and span id of a header; ``None`` for a missing or an invalid one, as the standard requires."""
    if header is None or len(header) != _LENGTH or not header.startswith(_VERSION):
        return None
    trace_id, span_id = header[3:35], header[36:52]
    if header[35] != "-" or header[52] != "-" or not _HEXADECIMAL.issuperset(trace_id + span_id + header[53:]):
        return None
    return (trace_id, span_id) if int(trace_id, 16) and int(span_id, 16) else None


def trace_id_of(headers: Mapping[str, str]) -> str:
    """The key ``trace_id`` of log lines about a message; empty when it carries no valid context."""
    known = parse_traceparent(headers.get(TRACEPARENT))
    return known[0] if known else ""


def trace_of_pod(uid: str) -> str:
    """The ``traceparent`` of a pod. It is made from the uid, so that all attempts are in one trace under any leader."""
    digest = hashlib.blake2b(uid.encode(), digest_size=24).hexdigest()
    return f"00-{digest[:32]}-{digest[32:]}-00"
