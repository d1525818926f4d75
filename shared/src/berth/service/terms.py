"""Taking the number of a leadership: one more than any before, also when the bus has lost its store (PROTOCOL 1)."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, Literal

from berth.api.errors import DecodeError
from berth.bus.port import Entry, Session, WrongLastSequenceError
from berth.kube.leadership import AnnotationConflictError
from berth.kube.leadership import Leadership as LeaseHeld
from berth.kube.lease_object import ANNOTATION_TERM
from berth.service.logging import get_logger

log = get_logger()

Role = Literal["watcher", "binder"]

CONTROL: Final = "control"
CLUSTER_ID_KEY: Final = "cluster.id"


def term_key(role: Role) -> str:
    """The key of ``control`` under which a role's number stands."""
    return f"term.{role}"


def read_number(text: str | None, *, where: str) -> int:
    """The number that stands there, 0 for none.

    Raises:
        DecodeError: something else stands there.
    """
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise DecodeError(f"reading {where}: want a number, got {text!r}: remove it, it is written anew")
    return int(text)


def number_of(entry: Entry | None, role: Role) -> int:
    """The number in an entry of ``control``; raises as :func:`read_number`."""
    text = entry.data.decode(errors="replace") if entry is not None and entry.data is not None else None
    return read_number(text, where=f"{CONTROL} {term_key(role)!r}")


def number_on(lease: LeaseHeld) -> int:
    """The number in a Lease's annotation; raises as :func:`read_number`."""
    return read_number(lease.annotations.get(ANNOTATION_TERM), where=f"annotation {ANNOTATION_TERM!r} of the Lease")


def _number_in_control(entry: Entry | None, role: Role, lease: LeaseHeld) -> int:
    """The number in ``control``; what stands there and is none gives way to the Lease's, which is written first."""
    try:
        return number_of(entry, role)
    except DecodeError as error:
        if not lease.annotations.get(ANNOTATION_TERM):
            raise
        log.warning("writing a number anew", reason=str(error))
        return 0


async def take_number(session: Session, lease: LeaseHeld, role: Role) -> int:
    """One more than the greater of both places, written to both, the Lease first, each by compare-and-set.

    Raises:
        DecodeError: one of the places holds no number.
        BusLostError: the session is gone.
        LeadershipLostError: the Lease is.
        ApiUnreachableError, ApiRefusedError: the API server did not take it.
    """
    while True:
        entry = await session.get(CONTROL, term_key(role))
        number = max(_number_in_control(entry, role, lease), number_on(lease)) + 1
        try:
            # Nothing is awaited between reading the annotation and here: what it is decided on is what it was read as.
            await lease.annotate({ANNOTATION_TERM: str(number)})
            expected = entry.sequence if entry is not None else 0
            await session.put(CONTROL, term_key(role), str(number).encode(), expected=expected)
        except (AnnotationConflictError, WrongLastSequenceError):
            continue  # somebody took a number at the same time: read both again and go above it
        return number


async def claim_cluster(session: Session, cluster_id: str) -> None:
    """Say whose cluster this bus serves, unless somebody has said so already."""
    entry = await session.get(CONTROL, CLUSTER_ID_KEY)
    if entry is not None and entry.data is not None:
        return
    with suppress(WrongLastSequenceError):  # somebody was faster: what stands there is looked at next
        await session.put(CONTROL, CLUSTER_ID_KEY, cluster_id.encode(), expected=entry.sequence if entry else 0)


async def read_served_cluster(session: Session) -> str:
    """Whose cluster this bus serves; empty when nobody has said so yet."""
    entry = await session.get(CONTROL, CLUSTER_ID_KEY)
    return entry.data.decode(errors="replace") if entry is not None and entry.data is not None else ""
