"""One connected and verified session after the other, for as long as the service lives (PROTOCOL 2).

    async for session in sessions(bus, name="scorer", process=process):
        ...work until session.lost...

Each look at NATS is a client of its own whose first request reads ``bus.id``; one that finds something missing or
different is closed again. NATS that is away, incomplete or different never ends the process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import stamina

from berth.bus.port import Bus, BusLostError, BusRefusedError, MissingError, Session
from berth.service.logging import get_logger
from berth.service.process import Process
from berth.service.until import run_until
from berth.service.waiting import ONCE, Waiting

log = get_logger()

LOOK_AGAIN_SECONDS: Final = 2.0
"""Between two looks at what only others can change."""
FIRST_WAIT_SECONDS: Final = 0.1
LONGEST_WAIT_SECONDS: Final = 2.0
"""Back-off of connecting, doubled each time and jittered by up to as much as the first wait."""
SHORT_LIFE_SECONDS: Final = 1.0
"""A session that lived shorter is followed by a pause, so that a server which drops everybody is not stormed."""


class _NotReadyError(Exception):
    """This look ended in waiting; ``again_in`` overrides the back-off."""

    def __init__(self, again_in: float | None) -> None:
        super().__init__()
        self.again_in = again_in


async def sessions(
    bus: Bus, *, name: str, process: Process, apply_when_missing: bool = False
) -> AsyncIterator[Session]:
    """Yield a session each time that one is connected and verified; the one before is closed first. Ends on stopping.

    ``apply_when_missing``: create what is missing (the watcher does); otherwise wait for whoever does. An exception of
    the loop's body leaves the loop, as everywhere: catch :class:`BusLostError` there to get the next session.
    """
    waiting = Waiting(process.health.condition("nats", "waiting for NATS"), process.clock)
    looks = _Looks(bus, name=name, waiting=waiting, process=process, applies=apply_when_missing)
    while not process.stopping.is_set():
        session = await run_until(looks.verified(), process.stopping)
        if session is None:
            return
        began = process.clock.now()
        waiting.over()
        process.metrics.count("berth_bus_sessions_total")
        try:
            yield session
        finally:
            process.health.condition("nats").waiting("waiting for a new connection to NATS")
            await session.close()
        if process.clock.now() - began < SHORT_LIFE_SECONDS:
            await process.sleep(LOOK_AGAIN_SECONDS / 2)


class _Looks:
    """Looks at NATS until one ends in a session."""

    def __init__(self, bus: Bus, *, name: str, waiting: Waiting, process: Process, applies: bool) -> None:
        self._bus = bus
        self._name = name
        self._waiting = waiting
        self._process = process
        self._applies = applies

    async def verified(self) -> Session:
        retries = stamina.retry_context(
            on=_again,
            attempts=None,
            timeout=None,
            wait_initial=FIRST_WAIT_SECONDS,
            wait_max=LONGEST_WAIT_SECONDS,
            wait_jitter=FIRST_WAIT_SECONDS,
        )
        async for attempt in retries:
            with attempt:
                return await self._look()
        raise AssertionError("connecting to NATS: tried without end, and yet it ended")

    async def _look(self) -> Session:
        try:
            session = await self._bus.connect(name=self._name)
        except BusLostError as error:
            raise self._wait("unreachable", f"waiting for NATS: {error}") from error
        except BusRefusedError as error:
            raise self._wait("refused", str(error), LOOK_AGAIN_SECONDS, every=ONCE) from error
        try:
            await self._verify(session)
        except BaseException:
            await session.close()
            raise
        return session

    async def _verify(self, session: Session) -> None:
        try:
            await session.verify()
        except MissingError as error:
            await self._missing(session, error)
        except BusLostError as error:
            raise self._wait("unreachable", f"waiting for NATS: {error}") from error
        except BusRefusedError as error:
            raise self._wait("refused", str(error), LOOK_AGAIN_SECONDS, every=ONCE) from error
        if not session.bus_id:
            # The bucket came after this client's first request: a new client reads the id that counts.
            raise self._wait("missing", "waiting for bus.id", FIRST_WAIT_SECONDS)

    async def _missing(self, session: Session, error: MissingError) -> None:
        if not self._applies:
            sentence = f"waiting for a watcher or `berth bus apply`: {error}"
            raise self._wait("missing", sentence, LOOK_AGAIN_SECONDS) from error
        log.info("creating what is missing on NATS", missing=str(error))
        try:
            await session.apply()
        except (BusLostError, MissingError) as lost:
            raise self._wait("unreachable", f"waiting for NATS: {lost}") from lost
        except BusRefusedError as refused:
            raise self._wait("refused", str(refused), LOOK_AGAIN_SECONDS, every=ONCE) from refused
        raise self._wait("missing", "waiting for NATS: streams and buckets were just created", FIRST_WAIT_SECONDS)

    def _wait(self, cause: str, sentence: str, again_in: float | None = None, *, every: float = 10.0) -> _NotReadyError:
        self._process.metrics.count("berth_bus_waits_total", cause=cause)
        self._waiting.say(sentence, every=every)
        return _NotReadyError(again_in)


def _again(error: Exception) -> bool | float:
    """Whether and when to look again, in stamina's terms: seconds, or its own back-off."""
    if not isinstance(error, _NotReadyError):
        return False
    return True if error.again_in is None else error.again_in
