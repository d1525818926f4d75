"""One cluster, one bus (docs/protocol.md, 2): whether a service may use this NATS for this cluster.

The bus names its cluster (``control`` ``cluster.id``, the uid of the namespace kube-system); a Lease names its holder's
bus. Two pipelines in one cluster would assign the same resources twice. Two clusters on one bus would bind pods to
nodes of the other cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from berth.bus.interface import Session, WrongLastSequenceError
from berth.bus.topology import CLUSTER_ID_KEY, CONTROL
from berth.clock import Clock, SteadyClock
from berth.decoding import decode_json
from berth.errors import DecodeError
from berth.kube.client import KubeClient
from berth.kube.errors import refusal
from berth.leader.lease import ANNOTATION_BUS_ID, LeaseObject, LeaseObservations, is_live


@dataclass(frozen=True, slots=True, kw_only=True)
class BusAndCluster:
    bus_id: str
    cluster_id: str  # uid of the namespace kube-system.
    served_cluster_id: str  # By the bus; empty until a watcher has written it.
    other_bus: OtherBus | None  # A live Lease in this cluster whose holder uses another bus.


def mismatch(found: BusAndCluster) -> str | None:
    """Why bus and cluster do not belong together, with the remedy; ``None`` if they do."""
    if found.served_cluster_id and found.served_cluster_id != found.cluster_id:
        return (
            f"refusing this NATS: it serves the cluster {found.served_cluster_id!r}, and the API server's is "
            f"{found.cluster_id!r} (uid of namespace kube-system): name the right one with --nats or --kubeconfig"
        )
    if found.other_bus is not None:
        return (
            f"refusing this NATS (bus.id {found.bus_id!r}): {found.other_bus}: "
            "two pipelines in one cluster: stop the other one, or join it with --nats"
        )
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherBus:
    """A live Lease whose holder uses another bus."""

    lease: str
    holder: str
    bus_id: str

    def __str__(self) -> str:
        return f"lease {self.lease!r} is held by {self.holder!r} on the bus {self.bus_id!r}"


class OtherBusWatch:
    """Finds live Leases of berth whose holder uses another bus.

    A Lease is live for its duration after it was first read or changed, by this process's clock, so that a dead
    process's Lease is live at first.
    """

    def __init__(  # noqa: PLR0913 - the Leases, the process, its clock and its observations
        self,
        client: KubeClient,
        namespace: str,
        names: Sequence[str],
        *,
        identity: str,
        clock: Clock | None = None,
        observations: LeaseObservations | None = None,
    ) -> None:
        self._leases = [LeaseObject(client, namespace, name) for name in names]
        self._identity = identity
        self._clock = clock or SteadyClock()
        self._observations = observations or LeaseObservations()

    async def find(self, bus_id: str) -> OtherBus | None:
        """Read every Lease; return the first live one of another holder with another ``bus.id``.

        Raises:
            ApiUnreachableError: no answer.
            ApiRefusedError: the API server refuses the read.
        """
        others = [await self._other(lease, bus_id) for lease in self._leases]
        return next((other for other in others if other is not None), None)

    async def _other(self, lease: LeaseObject, bus_id: str) -> OtherBus | None:
        stored = await lease.read()
        observation = self._observations.note(lease, None if stored is None else stored.lease, self._clock.now())
        if observation is None:
            return None
        theirs = (observation.lease.metadata.annotations or {}).get(ANNOTATION_BUS_ID, bus_id)
        if theirs == bus_id or observation.holder == self._identity or not is_live(observation, self._clock.now()):
            return None
        return OtherBus(lease=lease.name, holder=observation.holder, bus_id=theirs)


async def claim_cluster(session: Session, cluster_id: str) -> None:
    """Write the cluster's id to ``control``, unless one is already written."""
    entry = await session.get(CONTROL, CLUSTER_ID_KEY)
    if entry is not None and entry.data is not None:
        return
    with suppress(WrongLastSequenceError):  # another watcher was faster; its value is checked next
        await session.put(CONTROL, CLUSTER_ID_KEY, cluster_id.encode(), expected=entry.sequence if entry else 0)


async def read_served_cluster(session: Session) -> str:
    """uid of the cluster that this bus serves; empty until a watcher has written it."""
    entry = await session.get(CONTROL, CLUSTER_ID_KEY)
    return entry.data.decode(errors="replace") if entry is not None and entry.data is not None else ""


async def cluster_is_named(session: Session) -> None:
    """Wait until a watcher has written which cluster this bus serves.

    Raises:
        BusLostError: the session is lost.
    """
    async with session.read_bucket(CONTROL, filters=(CLUSTER_ID_KEY,)) as reader:
        async for batch in reader.batches():
            if any(entry.data is not None for entry in batch):
                return


class _Metadata(msgspec.Struct, frozen=True):
    uid: str


class _Namespace(msgspec.Struct, frozen=True):
    metadata: _Metadata


_namespace_decoder: Final = msgspec.json.Decoder(_Namespace)


async def read_cluster_id(client: KubeClient) -> str:
    """uid of the namespace kube-system. It identifies the cluster, because that namespace is never deleted.

    Raises:
        ApiUnreachableError: no answer.
        ApiRefusedError: the API server refuses the read.
        DecodeError: the answer is not a namespace.
    """
    doing = "reading namespace 'kube-system'"
    response = await client.call("GET", "/api/v1/namespaces/kube-system")
    if not response.succeeded:
        raise refusal(doing, response)
    try:
        return decode_json(_namespace_decoder, response.body, "a namespace").metadata.uid
    except DecodeError as exc:
        raise DecodeError(f"{doing}: {exc}") from exc
