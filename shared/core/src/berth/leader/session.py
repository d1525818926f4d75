"""Leading by Lease, with a unique number, on the one bus of the one cluster (docs/protocol.md, 1 and 2).

    async with lead(role="binder", session=session, client=client, process=process) as leadership:
        await run_until(serve(leadership.number), leadership.lost, process.stopping)

A lost connection ends the leadership. The service then opens a new session, takes a new number and does a takeover.
Before each action that only a leader may do, the service calls ``leadership.check()``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, Literal

from berth.bus.interface import BusLostError, BusRefusedError, Entry, MissingError, Session, WrongLastSequenceError
from berth.bus.topology import BUS_ID_KEY
from berth.decoding import bounded_number
from berth.errors import BerthError, DecodeError, TemporaryError
from berth.kube.client import KubeClient
from berth.leader.elector import Elector, Unelected
from berth.leader.heldlease import AnnotationConflictError, HeldLease
from berth.leader.lease import ANNOTATION_BUS_ID, ANNOTATION_TERM, LeaseObservations
from berth.leader.onecluster import (
    BusAndCluster,
    OtherBusWatch,
    claim_cluster,
    cluster_is_named,
    mismatch,
    read_cluster_id,
    read_served_cluster,
)
from berth.leader.otherschedulers import CHECK_SECONDS, OtherSchedulers
from berth.lifecycle.process import Process, in_background, run_until
from berth.observability.health import ONCE, WaitReporter
from berth.observability.logging import get_logger
from berth.settings.settings import LeaderElectionSettings

log = get_logger()

Role = Literal["watcher", "binder"]

ROLES: Final[tuple[Role, ...]] = ("watcher", "binder")
CONTROL: Final = "control"
_QUOTED: Final = 100  # Quoted characters of an invalid number.

# Pause between two checks while the bus does not belong to the cluster or the API server does not answer
# (docs/protocol.md, 2).
RETRY_SECONDS: Final = 2.0

_CONNECTION_LOST: Final = "the connection to NATS was lost"


class NotLeadingError(TemporaryError):
    """Leading did not begin: the session was lost or the process is stopping."""


class NoLongerLeadingError(TemporaryError):
    """Leading is over: another process may lead now."""


@asynccontextmanager
async def lead(  # noqa: PLR0913 - the role, the clients, the process, its observations of Leases
    *,
    role: Role,
    session: Session,
    client: KubeClient,
    process: Process,
    observations: LeaseObservations | None = None,
    others: OtherSchedulers | None = None,
) -> AsyncIterator[LeaderSession]:
    """Wait until this process leads, lead inside the block, release the Lease at its end.

    ``observations``: the process's, so that a session need not wait again for a Lease. ``others``: schedulers of the
    same pods, which block leading.

    The wait has no limit: for another leader, for the API server, for the right bus, for another scheduler to end. The
    log and /readyz show its cause. ``leadership.lost`` does not cancel the block: the block must watch it.

    Raises:
        NotLeadingError: before leading began, the session was lost, the bus had changed since the session was verified,
            or the process was stopped.
    """
    seen = observations or LeaseObservations()
    candidate = _Candidate(role=role, session=session, client=client, process=process, observations=seen, others=others)
    _show(process, role, candidate.lease_name, 0)
    try:
        lease, number = await candidate.acquire()
        leadership = LeaderSession(role=role, number=number, lease=lease, session=session, process=process)
        candidate.reporter.over(f"leading as {role} {number}")
        log.info("leading", role=role, number=number, lease=candidate.lease_name)
        _show(process, role, candidate.lease_name, number)
        process.metrics.count("berth_leaderships_total", role=role)
        try:
            async with in_background(leadership.watch(others), name="watching the leadership"):
                yield leadership
        finally:
            leadership.end("it was given up")
            log.info("leading ended", role=role, number=number, reason=leadership.reason)
            _show(process, role, candidate.lease_name, 0)
            process.metrics.count("berth_leaderships_ended_total", role=role)
    finally:
        await candidate.release()


class LeaderSession:
    """A leadership that has begun. ``number`` is the watcher's term or the binder's epoch."""

    def __init__(self, *, role: Role, number: int, lease: HeldLease, session: Session, process: Process) -> None:
        self.role: Role = role
        self.number = number
        self.since = process.clock.now()  # Monotonic seconds.
        self.lost = asyncio.Event()  # Set once leading is over, for any reason.
        self.reason = ""  # Why leading ended; empty while it lasts.
        self._lease = lease
        self._session = session
        self._process = process

    def expired(self) -> bool:
        """Whether leading is over, by this process's own clock or for another reason."""
        return self.lost.is_set() or self._lease.expired()

    def check(self) -> None:
        """Call right before each action that only a leader may do.

        Raises:
            NoLongerLeadingError: leading is over.
        """
        if self.expired():
            why = self.reason or "the Lease was not renewed in time"
            raise NoLongerLeadingError(f"leading as {self.role} {self.number}: {why}")

    @property
    def follows_settled(self) -> bool:
        """Whether no request of a former leadership can be under way: this is the first, or the Lease says so."""
        return self.number == 1 or self._lease.former_settled == str(self.number - 1)

    def settled(self) -> None:
        """Every request of this leadership was answered, and no more follow. The release writes so to the Lease."""
        # Else a pod may have stalled this process, and the next leader must look for it (docs/protocol.md, 6).
        if not self._lease.expired():
            self._lease.settled = str(self.number)

    async def confirm(self) -> None:
        """Check by the Lease and ``control`` whether another process leads.

        Called when a fence has a higher number: anybody who may patch a pod can write one (docs/protocol.md, 5).

        Raises:
            NoLongerLeadingError: leading is over.
            BusLostError, UnansweredError, ApiUnreachableError, ApiRefusedError: no usable answer.
        """
        await self._lease.annotate({})
        self.report_higher(number_on_lease(self._lease), seen_in="the Lease")
        entry = await self._session.get(CONTROL, term_key(self.role))
        self.report_higher(number_in_control(entry, self.role), seen_in=CONTROL)
        self.check()

    def report_higher(self, number: int, *, seen_in: str = "a message") -> None:
        """Report a number of this role from the Lease or ``control``. A higher one ends this leadership."""
        if number > self.number:
            self.end(f"{self.role} {number} was seen in {seen_in}, this is {self.number}")

    def end(self, reason: str) -> None:
        """Stop leading; only the first reason counts."""
        if not self.lost.is_set():
            self.reason = reason
            self._process.health.condition("leadership").waiting(f"leads no longer as {self.role}: {reason}")
            self.lost.set()

    async def watch(self, others: OtherSchedulers | None = None) -> None:
        """Watch the connection, the Lease, the keys in ``control``, other schedulers: each can end the leadership."""
        watches = [self._watch_connection(), self._watch_lease(), self._watch_number_on_lease(), self._watch_control()]
        if others is not None:
            watches.append(self._watch_others(others))
        tasks = [asyncio.create_task(watch) for watch in watches]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for error in filter(None, [task.exception() for task in done]):
                self.end(f"watching the leadership failed: {type(error).__name__}: {error}")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch_connection(self) -> None:
        await self._session.lost.wait()
        self.end(_CONNECTION_LOST)

    async def _watch_lease(self) -> None:
        await self._lease.lost.wait()
        self.end("the Lease was lost or could not be renewed in time")

    async def _watch_number_on_lease(self) -> None:
        # Each renewal reads the Lease, so that its number needs no further request.
        try:
            while True:
                self.report_higher(number_on_lease(self._lease), seen_in="the Lease")
                await self._process.clock.sleep(self._process.settings.leader_election.retry_period.total_seconds())
        except BerthError as error:
            self.end(str(error))

    async def _watch_control(self) -> None:
        filters = (term_key(self.role), BUS_ID_KEY)
        try:
            async with self._session.read_bucket(CONTROL, filters=filters) as following:
                async for batch in following.batches():
                    for entry in batch:
                        self._take_control_entry(entry)
        except BusLostError:
            self.end(_CONNECTION_LOST)
        except BerthError as error:
            self.end(f"following {CONTROL}: {error}")

    async def _watch_others(self, others: OtherSchedulers) -> None:
        while (other := await others.appeared()) is None:
            await self._process.clock.sleep(CHECK_SECONDS)
        self.end(str(other))

    def _take_control_entry(self, entry: Entry) -> None:
        if entry.data is None:
            self.end(f"{CONTROL} {entry.key!r} was removed")
        elif entry.key == BUS_ID_KEY:
            if entry.data.decode(errors="replace") != self._session.bus_id:
                self.end("bus.id has changed: this is another store")
        else:
            self.report_higher(number_in_control(entry, self.role), seen_in=CONTROL)


class _Candidate:
    # Waits to lead on one session: checks that bus and cluster belong together, takes the Lease, takes the number.

    def __init__(  # noqa: PLR0913 - the role, the clients, the process, its observations of Leases
        self,
        *,
        role: Role,
        session: Session,
        client: KubeClient,
        process: Process,
        observations: LeaseObservations,
        others: OtherSchedulers | None,
    ) -> None:
        self._settings = process.settings.leader_election
        names = {each: _lease_name(self._settings, each) for each in ROLES}
        self.lease_name = names[role]
        condition = process.health.condition("leadership", f"waiting to lead as {role}")
        self.reporter = WaitReporter(condition, process.clock)
        self._role: Role = role
        self._session = session
        self._client = client
        self._process = process
        self._observations = observations
        self._others = others
        self._held = AsyncExitStack()
        self._other_buses = OtherBusWatch(
            client,
            self._settings.resource_namespace,
            list(names.values()),
            identity=process.identity,
            clock=process.clock,
            observations=observations,
        )

    async def acquire(self) -> tuple[HeldLease, int]:
        """Wait until this process may lead; return the Lease and the number.

        Raises:
            NotLeadingError: the session was lost, the bus has changed, or the process is stopping.
        """
        try:
            acquired = await run_until(self._try_until_acquired(), self._session.lost, self._process.stopping)
        except (BusLostError, MissingError, BusRefusedError) as error:
            raise NotLeadingError(f"waiting to lead as {self._role}: {error}") from error
        if acquired is None:
            why = "the process is stopping" if self._process.stopping.is_set() else _CONNECTION_LOST
            raise NotLeadingError(f"waiting to lead as {self._role}: {why}")
        return acquired

    async def release(self) -> None:
        await self._held.aclose()

    async def _try_until_acquired(self) -> tuple[HeldLease, int]:
        while True:
            try:
                return await self._try()
            except (_MismatchError, _OtherSchedulerError) as error:
                self.reporter.waiting(str(error), every=ONCE)
            except _UnnamedClusterError as error:
                self.reporter.waiting(f"waiting to lead as {self._role}: {error}")
                await self.release()
                await self._wait_for_cluster_id()
                continue
            except (BusLostError, MissingError, BusRefusedError):
                raise
            except BerthError as error:
                self.reporter.waiting(f"waiting to lead as {self._role}: {error}")
            await self.release()
            await self._process.clock.sleep(RETRY_SECONDS)

    async def _wait_for_cluster_id(self) -> None:
        # At most for one pause, because the bus may turn out to be the wrong one meanwhile.
        named = asyncio.create_task(cluster_is_named(self._session), name="waiting for cluster.id")
        pause = asyncio.create_task(self._process.clock.sleep(RETRY_SECONDS), name="pausing")
        try:
            await asyncio.wait([named, pause], return_when=asyncio.FIRST_COMPLETED)
            if named.done():
                named.result()
        finally:
            for task in (named, pause):
                task.cancel()
            await asyncio.gather(named, pause, return_exceptions=True)

    async def _try(self) -> tuple[HeldLease, int]:
        cluster_id = await read_cluster_id(self._client)
        await self._check(cluster_id)
        lease = await self._wait_for_lease(cluster_id)
        # The bus id is written before the check, so that of two processes that take the two Leases at once, at least
        # one
        # finds the other.
        await lease.annotate({ANNOTATION_BUS_ID: self._session.bus_id})
        if self._role == "watcher":
            await claim_cluster(self._session, cluster_id)
        await self._check(cluster_id)
        return lease, await take_number(self._session, lease, self._role)

    async def _check(self, cluster_id: str) -> None:
        # All reasons against leading, also when another process holds the Lease.
        await self._check_bus(cluster_id)
        if self._others is not None and (other := await self._others.blocking()) is not None:
            raise _OtherSchedulerError(str(other))

    async def _check_bus(self, cluster_id: str) -> None:
        # A binder waits until a watcher has written `cluster.id`.
        found = BusAndCluster(
            bus_id=self._session.bus_id,
            cluster_id=cluster_id,
            served_cluster_id=await read_served_cluster(self._session),
            other_bus=await self._other_buses.find(self._session.bus_id),
        )
        if reason := mismatch(found):
            raise _MismatchError(reason)
        if not found.served_cluster_id and self._role != "watcher":
            raise _UnnamedClusterError("no watcher has written 'cluster.id' to control yet")

    async def _wait_for_lease(self, cluster_id: str) -> HeldLease:
        # The bus is checked meanwhile: a standby on a wrong bus must not stay ready.
        election = self._election()
        standing_by = asyncio.create_task(self._stand_by(election, cluster_id), name="standing by")
        entering = asyncio.create_task(self._held.enter_async_context(election.lead()), name="waiting for the Lease")
        try:
            await asyncio.wait([standing_by, entering], return_when=asyncio.FIRST_COMPLETED)
            if not entering.done():
                await standing_by
            return await entering
        finally:
            for task in (standing_by, entering):
                task.cancel()
            await asyncio.gather(standing_by, entering, return_exceptions=True)

    async def _stand_by(self, election: Elector | Unelected, cluster_id: str) -> None:
        # Shows the current leader. Raises once bus and cluster no longer belong together.
        while True:
            self._show_holder(election)
            await self._process.clock.sleep(RETRY_SECONDS)
            try:
                await self._check(cluster_id)
            except (BusLostError, MissingError, BusRefusedError):
                raise
            except BerthError as error:
                self.reporter.waiting(f"waiting to lead as {self._role}: {error}")

    def _show_holder(self, election: Elector | Unelected) -> None:
        if isinstance(election, Unelected):
            return
        status = election.status
        if status.last_error is not None:
            self.reporter.waiting(f"waiting to lead as {self._role}: {status.last_error}")
        elif status.holder and not status.leading:
            self.reporter.standby(f"standing by: Lease {self.lease_name!r} is held by {status.holder!r}")

    def _election(self) -> Elector | Unelected:
        namespace, clock = self._settings.resource_namespace, self._process.clock
        if not self._settings.leader_elect:
            return Unelected(self._client, namespace, self.lease_name, clock)
        return Elector(
            self._client,
            namespace,
            self.lease_name,
            self._process.identity,
            self._settings.election,
            clock,
            self._observations,
        )


class _UnnamedClusterError(TemporaryError):
    """The bus does not name its cluster yet."""


class _OtherSchedulerError(Exception):
    """Another scheduler of the same pods leads; the text contains the remedy."""


class _MismatchError(Exception):
    """This bus and this cluster do not belong together; the text contains the remedy."""


def _lease_name(settings: LeaderElectionSettings, role: Role) -> str:
    return f"{settings.resource_name}-{role}"


def _show(process: Process, role: Role, lease: str, number: int) -> None:
    # The gauges are exported with 0 too, because a missing series may be a failed scrape.
    process.metrics.set("leader_election_master_status", int(number > 0), name=lease)
    process.metrics.set("berth_leadership_number", number, role=role)


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
