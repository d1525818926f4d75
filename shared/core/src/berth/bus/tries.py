"""How often work on a pod was begun and ended its process, counted where it outlives the process (docs/protocol.md, 6).

A crash or a hang in C while a pod is ranked or bound ends the process and leaves the count. The fourth one is the pod's
failure, and others go on.
"""

from __future__ import annotations

from typing import Final

from berth.bus.interface import Session, WrongLastSequenceError
from berth.decoding import version_number


class BegunTries:
    """What this process has to take back, as NATS did not answer. It outlives a session."""

    def __init__(self) -> None:
        self.unanswered: dict[str, int] = {}
        """By key, the count whose write was not answered: it may have been stored."""
        self.to_take_back: set[str] = set()
        """Keys of work that has ended in this process without being stored."""
        self.to_clear: set[str] = set()
        """Keys of work that is stored."""


class TryCounter:
    """Counts, by key in a bucket, the tries that were begun and ended their process.

    Waiting, naks and a NATS server that does not answer are not counted: what this process has counted and has not died
    of is taken back. A count that is not removed, because its pod was deleted, expires.
    """

    LIMIT: Final = 4
    """The count at which the pod is the cause."""

    def __init__(self, session: Session, begun: BegunTries, bucket: str) -> None:
        self._session = session
        self._begun = begun
        self._bucket = bucket

    async def count(self, name: str) -> int:
        """Count one more, and return how many that makes; LIMIT is the pod's failure.

        Raises:
            TemporaryError: NATS does not answer; nothing is counted in the end.
        """
        await self._settle_one(name)
        while True:
            tries, sequence = await self._read(name)
            self._begun.unanswered[name] = tries + 1
            try:
                await self._write(name, tries + 1, sequence)
            except WrongLastSequenceError:
                continue
            del self._begun.unanswered[name]
            return tries + 1

    async def take_back(self, name: str) -> None:
        """The work has ended, and could not be stored: count one less. Raises as :meth:`count`."""
        self._begun.to_take_back.add(name)
        await self._settle_one(name)

    async def clear(self, name: str) -> None:
        """Remove the count: the work is finished and stored. Raises as :meth:`count`."""
        self._begun.to_clear.add(name)
        await self._settle_one(name)

    async def settle(self) -> None:
        """Do what NATS has not answered yet. Raises as :meth:`count`."""
        begun = self._begun
        for name in {*begun.unanswered, *begun.to_take_back, *begun.to_clear}:
            await self._settle_one(name)

    async def _settle_one(self, name: str) -> None:
        begun = self._begun
        if name in begun.to_clear:
            await self._session.purge(self._bucket, name)
        elif name in begun.to_take_back:
            await self._take_back(name)
        elif (unanswered := begun.unanswered.get(name)) is not None:
            tries, _ = await self._read(name)
            if tries == unanswered:
                await self._take_back(name)
        begun.unanswered.pop(name, None)
        begun.to_take_back.discard(name)
        begun.to_clear.discard(name)

    async def _take_back(self, name: str) -> None:
        while True:
            tries, sequence = await self._read(name)
            try:
                if tries > 1:
                    await self._write(name, tries - 1, sequence)
                elif tries:
                    await self._session.purge(self._bucket, name, expected=sequence)
            except WrongLastSequenceError:
                continue
            return

    async def _read(self, name: str) -> tuple[int, int]:
        """The count, and the key's sequence."""
        entry = await self._session.get(self._bucket, name)
        if entry is None:
            return 0, 0
        return version_number(entry.data.decode(errors="replace")) if entry.data else 0, entry.sequence

    async def _write(self, name: str, tries: int, sequence: int) -> None:
        await self._session.put(self._bucket, name, str(tries).encode(), expected=sequence)
