"""What the API server answered: a status, bytes, and for anything but success a ``Status`` object that says why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus

import msgspec

CUT = 300
"""Characters of a body that is not a Status object which a message quotes."""


class StatusDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Which object a Status speaks of."""

    name: str = ""
    group: str = ""
    kind: str = ""


class StatusObject(msgspec.Struct, frozen=True, kw_only=True):
    """The API's own words on a failure; ``reason`` is one of its CamelCase words, such as ``Expired``."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


_status_decoder = msgspec.json.Decoder(StatusObject)


def decode_status(raw: bytes | msgspec.Raw, *, code: int = 0) -> StatusObject:
    """Read a Status object; what is none (a proxy's page) is quoted as the message."""
    try:
        return _status_decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return StatusObject(message=bytes(raw)[:CUT].decode(errors="replace").strip(), code=code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """An answer. ``retry_after`` is the header of that name, where there was one."""

    status: int
    body: bytes
    retry_after: timedelta | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the status is one of 200 to 299."""
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES

    @property
    def reason(self) -> str:
        """The API's CamelCase word, such as ``AlreadyExists`` or ``Expired``; empty when it gave none."""
        return self.failure().reason

    @property
    def message(self) -> str:
        """The API's sentence."""
        return self.failure().message

    def failure(self) -> StatusObject:
        """The Status object in the body."""
        return decode_status(self.body, code=self.status)


def parse_retry_after(header: str | None) -> timedelta | None:
    """Read a Retry-After header; the API server writes whole seconds, other forms are as good as none."""
    if header is None or not (header.isascii() and header.isdigit()):
        return None
    return timedelta(seconds=min(int(header), 3600))
