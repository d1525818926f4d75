"""Following what can end a leadership: its key and ``bus.id`` in ``control``, its Lease, its connection."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from berth.api.errors import BerthError
from berth.bus.port import BusLostError, Entry, Session
from berth.bus.topology import BUS_ID_KEY
from berth.kube.leadership import Leadership as LeaseHeld
from berth.service.process import Process
from berth.service.terms import CONTROL, Role, number_of, number_on, term_key

LOST: Final = "the connection to NATS was lost"


class Ends(Protocol):
    """The leadership that may have to end."""

    role: Role

    def report_higher(self, number: int, *, seen_in: str) -> None:
        """A number was seen; a higher one is the end."""
        ...

    def end(self, reason: str) -> None:
        """It is the end."""
        ...


class Following:
    """Watches until the leadership is over."""

    def __init__(self, leadership: Ends, lease: LeaseHeld, session: Session, process: Process) -> None:
        self._leadership = leadership
        self._lease = lease
        self._session = session
        self._process = process

    async def follow(self) -> None:
        """Watch everything at once; what ends first ends the leadership."""
        ways = [self._connection(), self._lease_lost(), self._lease_number(), self._control()]
        tasks = [asyncio.create_task(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _connection(self) -> None:
        await self._session.lost.wait()
        self._leadership.end(LOST)

    async def _lease_lost(self) -> None:
        await self._lease.lost.wait()
        self._leadership.end("the Lease was lost or could not be renewed in time")

    async def _lease_number(self) -> None:
        """The Lease is read anew by each renewal, so looking at what was read is enough."""
        try:
            while True:
                self._leadership.report_higher(number_on(self._lease), seen_in="the Lease")
                await self._process.clock.sleep(self._process.settings.leader_election.retry_period.total_seconds())
        except BerthError as error:
            self._leadership.end(str(error))

    async def _control(self) -> None:
        filters = (term_key(self._leadership.role), BUS_ID_KEY)
        try:
            async with self._session.follow_bucket(CONTROL, filters=filters) as following:
                async for batch in following.batches():
                    for entry in batch:
                        self._look_at(entry)
        except BusLostError:
            self._leadership.end(LOST)
        except BerthError as error:
            self._leadership.end(f"following {CONTROL}: {error}")

    def _look_at(self, entry: Entry) -> None:
        if entry.data is None:
            self._leadership.end(f"{CONTROL} {entry.key!r} was removed")
        elif entry.key == BUS_ID_KEY:
            if entry.data.decode(errors="replace") != self._session.bus_id:
                self._leadership.end("bus.id has changed: this is another store")
        else:
            self._leadership.report_higher(number_of(entry, self._leadership.role), seen_in=CONTROL)
