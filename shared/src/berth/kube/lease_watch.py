"""One cluster, one bus: whether another berth, on another bus, is alive in this cluster (PROTOCOL 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from berth.kube.client import KubeClient
from berth.kube.clock import Clock, SteadyClock
from berth.kube.election import Sighting, is_live, sight
from berth.kube.lease_object import ANNOTATION_BUS_ID, LeaseObject


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherBus:
    """A live Lease of berth whose holder meets the others on another bus."""

    lease: str
    holder: str
    bus_id: str

    def __str__(self) -> str:
        return f"lease {self.lease!r} is held by {self.holder!r} on the bus {self.bus_id!r}"


class LeaseWatch:
    """Looks at berth's Leases, again and again.

    A Lease is live while less than its duration has passed, on one's own clock, since it was first seen or seen to
    change: one that a dead process has left behind counts as live at first.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        names: Sequence[str],
        *,
        identity: str,
        clock: Clock | None = None,
    ) -> None:
        self._leases = [LeaseObject(client, namespace, name) for name in names]
        self._identity = identity
        self._clock = clock or SteadyClock()
        self._sightings: dict[str, Sighting] = {}

    async def other_bus(self, bus_id: str) -> OtherBus | None:
        """Look at every Lease now; the first live one of somebody else with another ``bus.id``.

        Raises:
            ApiUnreachableError: no answer.
            ApiRefusedError: the API server does not allow it.
        """
        for lease in self._leases:
            await self._look(lease)
        others = (self._other(name, sighting, bus_id) for name, sighting in self._sightings.items())
        return next((other for other in others if other is not None), None)

    async def _look(self, lease: LeaseObject) -> None:
        stored = await lease.read()
        if stored is None:
            self._sightings.pop(lease.name, None)
        else:
            self._sightings[lease.name] = sight(self._sightings.get(lease.name), stored.lease, self._clock.now())

    def _other(self, name: str, sighting: Sighting, bus_id: str) -> OtherBus | None:
        theirs = (sighting.lease.metadata.annotations or {}).get(ANNOTATION_BUS_ID, bus_id)
        if theirs == bus_id or sighting.holder == self._identity or not is_live(sighting, self._clock.now()):
            return None
        return OtherBus(lease=name, holder=sighting.holder, bus_id=theirs)
