"""Counts processes in a row that ended while they worked on a pod (docs/protocol.md, 6.4, 6.5).

A crash or a hang in C while a pod is ranked or bound ends the process; the count stays. NATS counts deliveries only: a
crash, a lost session and a returned message alike (docs/adr/0041-crashes-are-counted-apart-from-deliveries.md).
"""

from __future__ import annotations

from typing import Final

from berth.bus.interface import Session, WrongLastSequenceError
from berth.decoding import version_number

MOST_TRIES: Final = 4  # At this count the pod is the cause.


async def count_try(session: Session, bucket: str, name: str) -> int:
    """Count one more; return the count.

    Raises:
        TemporaryError: no answer from NATS; it may have counted.
    """
    while True:
        entry = await session.get(bucket, name)
        tries = version_number(entry.data.decode(errors="replace")) + 1 if entry is not None and entry.data else 1
        try:
            await session.put(bucket, name, str(tries).encode(), expected=entry.sequence if entry is not None else 0)
        except WrongLastSequenceError:
            continue
        return tries


async def clear_tries(session: Session, bucket: str, name: str) -> None:
    """Remove the count: the process has outlived the work. Raises as :func:`count_try`."""
    await session.purge(bucket, name)
