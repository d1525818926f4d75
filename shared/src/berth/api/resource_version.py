"""resourceVersions as numbers: since Kubernetes 1.35 they are decimal and may be compared within a kind."""

from __future__ import annotations

from berth.api.errors import DecodeError


def parse(text: str) -> int:
    """Read a resourceVersion.

    Raises:
        DecodeError: it is no decimal number; such an API server is older than 1.35, or not Kubernetes.
    """
    if not (text.isascii() and text.isdigit()):
        raise DecodeError(f"decoding resourceVersion {text!r}: want a decimal number")
    return int(text)


def compare(one: str, other: str) -> int:
    """Below, at or above 0 as ``one`` is older than, the same as or newer than ``other``. Raises as :func:`parse`."""
    return parse(one) - parse(other)
