"""From a session to a leadership: the pairing is looked at, the Lease taken, the pairing again, the number taken."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from berth.api.errors import BerthError, TemporaryError
from berth.bus.port import BusLostError, BusRefusedError, MissingError, Session
from berth.kube.client import KubeClient
from berth.kube.leadership import Leadership as LeaseHeld
from berth.kube.lease import Elector, ElectorStatus
from berth.kube.lease_object import ANNOTATION_BUS_ID
from berth.kube.lease_watch import LeaseWatch
from berth.kube.unelected import Unelected
from berth.service.pairing import Pair, read_cluster_id, refusal
from berth.service.process import Process
from berth.service.settings import LeaderElectionSettings, Settings
from berth.service.terms import Role, claim_cluster, read_served_cluster, take_number
from berth.service.waiting import ONCE, Waiting

LOOK_AGAIN_SECONDS: Final = 2.0
"""Between two looks at a pairing that is refused, or at an API server that does not answer (PROTOCOL 2)."""
ROLES: Final[tuple[Role, ...]] = ("watcher", "binder")


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A leadership that may begin."""

    number: int
    lease: LeaseHeld
    lease_name: str
    waiting: Waiting


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
        self._waiting = Waiting(process.health.condition("leadership", f"waiting to lead as {role}"), process.clock)
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
