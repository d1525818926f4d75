"""Leading: by Lease, with a number that never comes again, on the one bus of the one cluster (PROTOCOL 1 and 2).

    async for session in sessions(bus, name="binder", process=process):
        try:
            async with lead(
                role="binder", session=session, client=client, settings=settings, process=process
            ) as leadership:
                await run_until(serve(leadership.number), leadership.lost, process.stopping)
        except (NotLeadingError, BusLostError) as error:
            log.info("starting anew", cause=str(error))

A lost connection is a lost leadership: whatever ends one, the way back is the next session, the next number and a
takeover. Before each thing that only a leader may do the service asks ``leadership.expired()``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from berth.api.errors import TemporaryError
from berth.bus.port import BusLostError, BusRefusedError, MissingError, Session
from berth.kube.client import KubeClient
from berth.kube.leadership import Leadership as LeaseHeld
from berth.service.candidacy import Candidacy, Taken, lease_name
from berth.service.following import Following
from berth.service.health import Condition
from berth.service.logging import get_logger
from berth.service.process import Process
from berth.service.settings import Settings
from berth.service.terms import Role
from berth.service.until import run_until

log = get_logger()


class NotLeadingError(TemporaryError):
    """Nobody leads here: the session was lost or the process told to stop before leading began."""


class Leadership:
    """A leadership that has begun. ``number`` is the watcher's term or the binder's epoch."""

    def __init__(self, *, role: Role, number: int, lease: LeaseHeld, condition: Condition) -> None:
        self.role: Role = role
        self.number = number
        self.lost = asyncio.Event()
        """Set once leading is over, for whatever reason."""
        self.reason = ""
        """Why it is over; empty while it is not."""
        self._lease = lease
        self._condition = condition

    def expired(self) -> bool:
        """Whether leading is over, by this process's own clock. Ask before each thing that only a leader does."""
        return self.lost.is_set() or self._lease.expired()

    def report_higher(self, number: int, *, seen_in: str = "a message") -> None:
        """A number of this role was seen, in a ``cluster`` write or a fence; a higher one ends this leadership."""
        if number > self.number:
            self.end(f"{self.role} {number} was seen in {seen_in}, this is {self.number}")

    def end(self, reason: str) -> None:
        """Stop leading, for a reason that a person can read; only the first one counts."""
        if not self.lost.is_set():
            self.reason = reason
            self._condition.waiting(f"leads no longer as {self.role}: {reason}")
            self.lost.set()


@asynccontextmanager
async def lead(
    *, role: Role, session: Session, client: KubeClient, settings: Settings, process: Process
) -> AsyncIterator[Leadership]:
    """Wait until this process leads, lead inside the block, give the Lease back at its end.

    Waiting can take for ever: for another leader, for the API server, for a wrong bus to be exchanged. The log and
    /readyz say what is waited for. ``leadership.lost`` does not cancel the block: watch it.

    Raises:
        NotLeadingError: before leading began the session was lost, the bus was no longer what it was when the session
            was verified, or the process was told to stop.
    """
    candidacy = Candidacy(role=role, session=session, client=client, settings=settings, process=process)
    _show(process, role, lease_name(settings.leader_election, role), 0)
    try:
        taken = await _taken(candidacy, role, session, process)
        async with _begun(taken, role, session, process) as leadership:
            yield leadership
    finally:
        await candidacy.close()


async def _taken(candidacy: Candidacy, role: Role, session: Session, process: Process) -> Taken:
    try:
        taken = await run_until(candidacy.take(), session.lost, process.stopping)
    except (BusLostError, MissingError, BusRefusedError) as error:
        raise NotLeadingError(f"waiting to lead as {role}: {error}") from error
    if taken is None:
        why = "the process is stopping" if process.stopping.is_set() else "the connection to NATS was lost"
        raise NotLeadingError(f"waiting to lead as {role}: {why}")
    return taken


@asynccontextmanager
async def _begun(taken: Taken, role: Role, session: Session, process: Process) -> AsyncIterator[Leadership]:
    condition = process.health.condition("leadership")
    leadership = Leadership(role=role, number=taken.number, lease=taken.lease, condition=condition)
    taken.waiting.over(f"leading as {role} {taken.number}")
    log.info("leading", role=role, number=taken.number, lease=taken.lease_name)
    _count(process, leadership, taken.lease_name, leads=True)
    following = asyncio.create_task(
        Following(leadership, taken.lease, session, process).follow(), name="following leadership"
    )
    try:
        yield leadership
    finally:
        following.cancel()
        await asyncio.wait([following])
        leadership.end("it was given up")
        log.info("leading no longer", role=role, number=taken.number, reason=leadership.reason)
        _count(process, leadership, taken.lease_name, leads=False)


def _count(process: Process, leadership: Leadership, lease: str, *, leads: bool) -> None:
    _show(process, leadership.role, lease, leadership.number if leads else 0)
    process.metrics.count("berth_leaderships_total" if leads else "berth_leaderships_ended_total", role=leadership.role)


def _show(process: Process, role: Role, lease: str, number: int) -> None:
    """A number of 0 is one who does not lead: he says so, since one who says nothing may have been lost."""
    process.metrics.set("leader_election_master_status", int(number > 0), name=lease)
    process.metrics.set("berth_leadership_number", number, role=role)
