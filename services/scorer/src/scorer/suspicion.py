"""Counting, where it outlives the process, how often ranking one pod has begun and not ended (PROTOCOL 6).

A hang in C or a crash ends the process and leaves the count in KV ``control``; the fourth is the pod's failure.
Waiting, naks and a NATS that does not answer count nothing.
"""

from __future__ import annotations

from typing import Final

from berth.api.subjects import key
from berth.bus.port import Session, WrongLastSequenceError


class Suspicion:
    """The counts under ``try.<attempt>``."""

    LIMIT: Final = 4
    """The count at which the pod is the cause."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def count(self, attempt: str) -> bool:
        """Count a beginning; whether that makes it too many."""
        name = key("try", attempt)
        while True:
            entry = await self._session.get("control", name)
            begun = 1 + (int(entry.data) if entry is not None and entry.data else 0)
            try:
                await self._session.put(
                    "control", name, str(begun).encode(), expected=entry.sequence if entry is not None else 0
                )
            except WrongLastSequenceError:
                continue
            return begun >= self.LIMIT

    async def clear(self, attempt: str) -> None:
        """It has ended, with RANKED stored."""
        await self._session.purge("control", key("try", attempt))
