"""The number of a leadership, watcher's term or binder's epoch (docs/protocol.md, 1).

It is stored in ``control`` and on the Lease, so that it stays unique if the bus loses its store.
"""

from __future__ import annotations

from typing import Final, Literal

from berth.bus.interface import Entry, Session, WrongLastSequenceError
from berth.decoding import bounded_number
from berth.errors import DecodeError
from berth.leader.heldlease import AnnotationConflictError, HeldLease
from berth.leader.lease import ANNOTATION_TERM
from berth.observability.logging import get_logger

log = get_logger()

Role = Literal["watcher", "binder"]

ROLES: Final[tuple[Role, ...]] = ("watcher", "binder")
CONTROL: Final = "control"
_QUOTED: Final = 100  # Quoted characters of an invalid number.


async def take_number(session: Session, lease: HeldLease, role: Role) -> int:
    """Take one more than the greater of both numbers. It is written to both by compare-and-set, to the Lease first.

    Raises:
        DecodeError: an invalid number in ``control`` or on the Lease.
        BusLostError: the session is lost.
        LeadershipLostError: the Lease is lost.
        ApiUnreachableError, ApiRefusedError: the Lease could not be written.
    """
    while True:
        entry = await session.get(CONTROL, term_key(role))
        number = max(_usable_number_in_control(entry, role, lease), number_on_lease(lease)) + 1
        try:
            # No await between reading the annotation and this: annotate compares with the value read.
            await lease.annotate({ANNOTATION_TERM: str(number)})
            expected = entry.sequence if entry is not None else 0
            await session.put(CONTROL, term_key(role), str(number).encode(), expected=expected)
        except (AnnotationConflictError, WrongLastSequenceError):
            continue  # another process took the number at the same time: read both again
        return number


def term_key(role: Role) -> str:
    """The key of a role's number in ``control``."""
    return f"term.{role}"


def number_in_control(entry: Entry | None, role: Role) -> int:
    """The number in an entry of ``control``; 0 if there is no entry.

    Raises:
        DecodeError: an invalid number.
    """
    text = entry.data.decode(errors="replace") if entry is not None and entry.data is not None else None
    return _number(text, where=f"{CONTROL} {term_key(role)!r}")


def number_on_lease(lease: HeldLease) -> int:
    """The number in the Lease's annotation; 0 without annotation. Raises as :func:`number_in_control`."""
    return _number(lease.annotations.get(ANNOTATION_TERM), where=f"annotation {ANNOTATION_TERM!r} of the Lease")


def _usable_number_in_control(entry: Entry | None, role: Role, lease: HeldLease) -> int:
    # An invalid number in `control` is replaced, because the Lease's number is written first.
    try:
        return number_in_control(entry, role)
    except DecodeError as error:
        if not lease.annotations.get(ANNOTATION_TERM):
            raise
        log.warning("replacing an invalid number", error=str(error))
        return 0


def _number(text: str | None, *, where: str) -> int:
    if not text:
        return 0
    number = bounded_number(text)
    if number is None:
        raise DecodeError(f"reading {where}: want a number, got {text[:_QUOTED]!r}: remove it, it is written again")
    return number
