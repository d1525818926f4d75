"""From a session to a leadership: the pairing is looked at, the Lease taken, the pairing again, the number taken.

Following what can end a leadership: its key and ``bus.id`` in ``control``, its Lease, its connection.

Leading: by Lease, with a number that never comes again, on the one bus of the one cluster (PROTOCOL 1 and 2).

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
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from berth.api.errors import BerthError, TemporaryError
from berth.bus.interface import BusLostError, BusRefusedError, Entry, MissingError, Session
from berth.bus.topology import BUS_ID_KEY
from berth.kube.client import KubeClient
from berth.leader.elector import Elector, ElectorStatus, Unelected
from berth.leader.elector import HeldLease as LeaseHeld
from berth.leader.lease import ANNOTATION_BUS_ID
from berth.leader.term import (
    CONTROL,
    LeaseWatch,
    Pair,
    Role,
    claim_cluster,
    number_of,
    number_on,
    read_cluster_id,
    read_served_cluster,
    refusal,
    take_number,
    term_key,
)
from berth.process.health import ONCE, Condition, WaitReporter
from berth.process.lifecycle import Process
from berth.process.logging import get_logger
from berth.process.settings import LeaderElectionSettings, Settings
from berth.process.tasks import run_until

LOOK_AGAIN_SECONDS: Final = 2.0
"""Between two looks at a pairing that is refused, or at an API server that does not answer (PROTOCOL 2)."""

ROLES: Final[tuple[Role, ...]] = ("watcher", "binder")


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A leadership that may begin."""

    number: int
    lease: LeaseHeld
    lease_name: str
    waiting: WaitReporter


class _RefusedError(Exception):
    """This bus and this cluster do not belong together; the text is for people."""


class Candidacy:
    """One try to lead, for one session. ``close`` gives back the Lease when there is one."""

    def __init__(
        self, *, role: Role, session: Session, client: KubeClient, settings: Settings, process: Process
    ) -> None:
        election = settings.leader_election
        names = {each: lease_name(election, each) for each in ROLES}
        self._role: Role = role
        self._session = session
        self._client = client
        self._settings = settings
        self._process = process
        self._name = names[role]
        self._waiting = WaitReporter(
            process.health.condition("leadership", f"waiting to lead as {role}"), process.clock
        )
        self._held = AsyncExitStack()
        self._watch = LeaseWatch(
            client,
            election.resource_namespace,
            list(names.values()),
            identity=process.identity,
            clock=process.clock,
        )

    async def take(self) -> Taken:
        """Try until it works.

        Raises:
            BusLostError, MissingError, BusRefusedError: the bus is not what it was when the session was verified.
        """
        while True:
            try:
                return await self._try()
            except _RefusedError as error:
                self._waiting.say(str(error), every=ONCE)
            except (BusLostError, MissingError, BusRefusedError):
                raise
            except BerthError as error:
                self._waiting.say(f"waiting to lead as {self._role}: {error}")
            await self.close()
            await self._process.clock.sleep(LOOK_AGAIN_SECONDS)

    async def close(self) -> None:
        """Give the Lease back, if it was taken."""
        await self._held.aclose()

    async def _try(self) -> Taken:
        cluster_id = await read_cluster_id(self._client)
        await self._look(cluster_id)
        lease = await self._lease(cluster_id)
        # The bus id first, then the look: of two that take the two Leases at once at least one sees the other.
        await lease.annotate({ANNOTATION_BUS_ID: self._session.bus_id})
        if self._role == "watcher":
            await claim_cluster(self._session, cluster_id)
        await self._look(cluster_id)
        number = await take_number(self._session, lease, self._role)
        return Taken(number=number, lease=lease, lease_name=self._name, waiting=self._waiting)

    async def _look(self, cluster_id: str) -> None:
        """Look at the pairing. A binder waits for the watcher to say whose cluster the bus serves."""
        bus_id = self._session.bus_id
        served = await read_served_cluster(self._session)
        other = await self._watch.other_bus(bus_id)
        pair = Pair(bus_id=bus_id, cluster_id=cluster_id, served_cluster_id=served, other_bus=other)
        if sentence := refusal(pair):
            raise _RefusedError(sentence)
        if not served and self._role != "watcher":
            raise TemporaryError("no watcher has written 'cluster.id' to control yet")

    async def _lease(self, cluster_id: str) -> LeaseHeld:
        """Wait for the Lease. Meanwhile the pairing is looked at: a standby must not stay ready on a wrong bus."""
        election = self._election()
        attending = asyncio.create_task(self._attend(election, cluster_id), name="standing by")
        entering = asyncio.create_task(self._held.enter_async_context(election.lead()), name="waiting for the Lease")
        try:
            await asyncio.wait([attending, entering], return_when=asyncio.FIRST_COMPLETED)
            if not entering.done():
                await attending
            return await entering
        finally:
            for task in (attending, entering):
                task.cancel()
            await asyncio.gather(attending, entering, return_exceptions=True)

    async def _attend(self, election: Elector | Unelected, cluster_id: str) -> None:
        """Say who leads meanwhile, and end in an error when the pairing is not right any more."""
        while True:
            self._say_who_leads(election)
            await self._process.clock.sleep(LOOK_AGAIN_SECONDS)
            try:
                await self._look(cluster_id)
            except (BusLostError, MissingError, BusRefusedError):
                raise
            except BerthError as error:
                self._waiting.say(f"waiting to lead as {self._role}: {error}")

    def _say_who_leads(self, election: Elector | Unelected) -> None:
        status = election.status if isinstance(election, Elector) else ElectorStatus()
        if status.last_error is not None:
            self._waiting.say(f"waiting to lead as {self._role}: {status.last_error}")
        elif status.holder and not status.leading:
            self._waiting.standby(f"standing by: Lease {self._name!r} is held by {status.holder!r}")

    def _election(self) -> Elector | Unelected:
        election, clock = self._settings.leader_election, self._process.clock
        if not election.leader_elect:
            return Unelected(self._client, election.resource_namespace, self._name, clock)
        return Elector(
            self._client, election.resource_namespace, self._name, self._process.identity, election.election, clock
        )


def lease_name(election: LeaderElectionSettings, role: Role) -> str:
    """The Lease of a role: ``<resourceName>-watcher`` or ``-binder``."""
    return f"{election.resource_name}-{role}"


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


class LeadershipWatch:
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
            async with self._session.read_bucket(CONTROL, filters=filters) as following:
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


log = get_logger()


class NotLeadingError(TemporaryError):
    """Leading has not begun: the session was lost or the process is stopping."""


class NoLongerLeadingError(TemporaryError):
    """Leading is over: somebody else may lead by now."""


class LeaderSession:
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

    def check(self) -> None:
        """Call right before each thing that only a leader may do.

        Raises:
            NoLongerLeadingError: leading is over, by this process's own clock or for another reason.
        """
        if self.expired():
            why = self.reason or "the Lease was not renewed in time"
            raise NoLongerLeadingError(f"leading as {self.role} {self.number}: {why}")

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
async def lead(*, role: Role, session: Session, client: KubeClient, process: Process) -> AsyncIterator[LeaderSession]:
    """Wait until this process leads, lead inside the block, give the Lease back at its end.

    Waiting can take for ever: for another leader, for the API server, for a wrong bus to be exchanged. The log and
    /readyz say what is waited for. ``leadership.lost`` does not cancel the block: watch it.

    Raises:
        NotLeadingError: before leading began the session was lost, the bus was no longer what it was when the session
            was verified, or the process was told to stop.
    """
    candidacy = Candidacy(role=role, session=session, client=client, settings=process.settings, process=process)
    _show(process, role, lease_name(process.settings.leader_election, role), 0)
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
async def _begun(taken: Taken, role: Role, session: Session, process: Process) -> AsyncIterator[LeaderSession]:
    condition = process.health.condition("leadership")
    leadership = LeaderSession(role=role, number=taken.number, lease=taken.lease, condition=condition)
    taken.waiting.over(f"leading as {role} {taken.number}")
    log.info("leading", role=role, number=taken.number, lease=taken.lease_name)
    _count(process, leadership, taken.lease_name, leads=True)
    following = asyncio.create_task(
        LeadershipWatch(leadership, taken.lease, session, process).follow(), name="following leadership"
    )
    try:
        yield leadership
    finally:
        following.cancel()
        await asyncio.wait([following])
        leadership.end("it was given up")
        log.info("leading no longer", role=role, number=taken.number, reason=leadership.reason)
        _count(process, leadership, taken.lease_name, leads=False)


def _count(process: Process, leadership: LeaderSession, lease: str, *, leads: bool) -> None:
    _show(process, leadership.role, lease, leadership.number if leads else 0)
    process.metrics.count("berth_leaderships_total" if leads else "berth_leaderships_ended_total", role=leadership.role)


def _show(process: Process, role: Role, lease: str, number: int) -> None:
    """A number of 0 is one who does not lead: he says so, since one who says nothing may have been lost."""
    process.metrics.set("leader_election_master_status", int(number > 0), name=lease)
    process.metrics.set("berth_leadership_number", number, role=role)
