"""The bus in memory: the same promises as the real one, without a server, with a clock that is handed in.

One :class:`MemoryBus` stands for a server and its store. It can be stopped and started, lose its store, or cut a
session off, at moments that a test or a simulation chooses; on a deterministic event loop all of it is deterministic.
"""

from __future__ import annotations

import asyncio
from typing import Final

from berth.bus.clock import BusClock, LoopClock
from berth.bus.interface import Bus, BusLostError
from berth.bus.memory_session import MemorySession, Registered
from berth.bus.memory_store import MemoryStore
from berth.bus.settings import TopologySettings

__all__ = ["MemoryBus", "MemorySession", "Registered"]


class MemoryBus(Bus):
    """A server and its store. Keeps :class:`berth.bus.interface.Bus`."""

    def __init__(
        self, settings: TopologySettings | None = None, *, clock: BusClock | None = None, name: str = "memory"
    ) -> None:
        """``name`` is what ``bus.id`` begins with; each store has a number of its own after it."""
        self.settings: Final = settings or TopologySettings()
        self.clock: Final = clock or LoopClock()
        self.name: Final = name
        self.sessions: Final[list[MemorySession]] = []
        self._store = MemoryStore(self.settings, self.clock, name)
        self._running = True

    async def connect(self, *, name: str) -> MemorySession:
        """A new client; see the port."""
        await asyncio.sleep(0)
        if not self._running:
            raise BusLostError(f"connecting to the bus {self.name!r} in memory as {name!r}: it is stopped")
        session = MemorySession(
            self._store, name, on_lost=self.sessions.remove, verify=self.verify, everybody=self.services
        )
        self.sessions.append(session)
        return session

    # --- what befalls a server

    def stop(self) -> None:
        """Every session is lost, and nobody can connect until :meth:`start`. The store stays."""
        self._running = False
        self._cut_all("the server was stopped")

    def start(self) -> None:
        """Take sessions again."""
        self._running = True

    def wipe(self) -> None:
        """The server is back with an empty store: every session is lost, ``apply`` makes another ``bus.id``."""
        self._cut_all("the server lost its store")
        self._store.wipe()

    def cut(self, session: MemorySession) -> None:
        """One session is lost."""
        session.lose("the connection was cut")

    def _cut_all(self, cause: str) -> None:
        for session in list(self.sessions):
            session.lose(cause)

    # --- what somebody does on the server itself

    def apply(self) -> str:
        """Make what is declared, as ``berth bus apply`` does; returns ``bus.id``."""
        return self._store.apply()

    def verify(self) -> None:
        """What every session's ``verify`` asks; a test may put its own answer in the place."""
        self._store.verify()

    def bus_id(self) -> str:
        """``bus.id`` as it stands, or nothing."""
        return self._store.bus_id()

    def services(self) -> list[Registered]:
        """Who is registered."""
        return [one for session in self.sessions for one in session.registered]
