"""The header ``traceparent`` (W3C Trace Context) of messages."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

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
