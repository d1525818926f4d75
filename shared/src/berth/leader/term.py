"""Taking the number of a leadership: one more than any before, also when the bus has lost its store (PROTOCOL 1).

One cluster, one bus: whether another berth, on another bus, is alive in this cluster (PROTOCOL 2).

One cluster, one bus (PROTOCOL 2): whether a service may work with this NATS on this cluster.

The bus says whose cluster it serves (``control`` ``cluster.id``, the uid of the namespace kube-system); a Lease says on
which bus its holder meets the others. Two pipelines on one cluster would give the same room away twice, two clusters on
one bus would place pods on nodes that are not theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from berth.api.errors import DecodeError
from berth.bus.interface import Entry, Session, WrongLastSequenceError
from berth.kube.client import KubeClient
from berth.kube.clock import Clock, SteadyClock
from berth.kube.errors import refusal as api_refusal
from berth.leader.elector import AnnotationConflictError
from berth.leader.elector import HeldLease as LeaseHeld
from berth.leader.lease import ANNOTATION_BUS_ID, ANNOTATION_TERM, LeaseObject, LeaseObservation, is_live, sight
from berth.process.logging import get_logger

log = get_logger()


Role = Literal["watcher", "binder"]


CONTROL: Final = "control"

CLUSTER_ID_KEY: Final = "cluster.id"


def term_key(role: Role) -> str:
    """The key of ``control`` under which a role's number stands."""
    return f"term.{role}"


def read_number(text: str | None, *, where: str) -> int:
    """The number that stands there, 0 for none.

    Raises:
        DecodeError: something else stands there.
    """
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise DecodeError(f"reading {where}: want a number, got {text!r}: remove it, it is written anew")
    return int(text)


def number_of(entry: Entry | None, role: Role) -> int:
    """The number in an entry of ``control``; raises as :func:`read_number`."""
    text = entry.data.decode(errors="replace") if entry is not None and entry.data is not None else None
    return read_number(text, where=f"{CONTROL} {term_key(role)!r}")


def number_on(lease: LeaseHeld) -> int:
    """The number in a Lease's annotation; raises as :func:`read_number`."""
    return read_number(lease.annotations.get(ANNOTATION_TERM), where=f"annotation {ANNOTATION_TERM!r} of the Lease")


def _number_in_control(entry: Entry | None, role: Role, lease: LeaseHeld) -> int:
    """The number in ``control``; what stands there and is none gives way to the Lease's, which is written first."""
    try:
        return number_of(entry, role)
    except DecodeError as error:
        if not lease.annotations.get(ANNOTATION_TERM):
            raise
        log.warning("writing a number anew", reason=str(error))
        return 0


async def take_number(session: Session, lease: LeaseHeld, role: Role) -> int:
    """One more than the greater of both places, written to both, the Lease first, each by compare-and-set.

    Raises:
        DecodeError: one of the places holds no number.
        BusLostError: the session is gone.
        LeadershipLostError: the Lease is.
        ApiUnreachableError, ApiRefusedError: the API server did not take it.
    """
    while True:
        entry = await session.get(CONTROL, term_key(role))
        number = max(_number_in_control(entry, role, lease), number_on(lease)) + 1
        try:
            # Nothing is awaited between reading the annotation and here: what it is decided on is what it was read as.
            await lease.annotate({ANNOTATION_TERM: str(number)})
            expected = entry.sequence if entry is not None else 0
            await session.put(CONTROL, term_key(role), str(number).encode(), expected=expected)
        except (AnnotationConflictError, WrongLastSequenceError):
            continue  # somebody took a number at the same time: read both again and go above it
        return number


async def claim_cluster(session: Session, cluster_id: str) -> None:
    """Say whose cluster this bus serves, unless somebody has said so already."""
    entry = await session.get(CONTROL, CLUSTER_ID_KEY)
    if entry is not None and entry.data is not None:
        return
    with suppress(WrongLastSequenceError):  # somebody was faster: what stands there is looked at next
        await session.put(CONTROL, CLUSTER_ID_KEY, cluster_id.encode(), expected=entry.sequence if entry else 0)


async def read_served_cluster(session: Session) -> str:
    """Whose cluster this bus serves; empty when nobody has said so yet."""
    entry = await session.get(CONTROL, CLUSTER_ID_KEY)
    return entry.data.decode(errors="replace") if entry is not None and entry.data is not None else ""


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
        self._sightings: dict[str, LeaseObservation] = {}

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

    def _other(self, name: str, sighting: LeaseObservation, bus_id: str) -> OtherBus | None:
        theirs = (sighting.lease.metadata.annotations or {}).get(ANNOTATION_BUS_ID, bus_id)
        if theirs == bus_id or sighting.holder == self._identity or not is_live(sighting, self._clock.now()):
            return None
        return OtherBus(lease=name, holder=sighting.holder, bus_id=theirs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A bus and a cluster, as a service finds them."""

    bus_id: str
    cluster_id: str
    """The uid of the namespace kube-system at the API server."""
    served_cluster_id: str
    """Whose cluster the bus says that it serves; empty when nobody has said so yet."""
    other_bus: OtherBus | None
    """A live Lease of berth's in this cluster whose holder is on another bus."""


def refusal(pair: Pair) -> str | None:
    """Why nobody must work with this pair, in a sentence with what to do; ``None`` when it is all right."""
    if pair.served_cluster_id and pair.served_cluster_id != pair.cluster_id:
        return (
            f"refusing this NATS: it serves the cluster {pair.served_cluster_id!r}, and the API server's is "
            f"{pair.cluster_id!r} (uid of namespace kube-system): name the right one with --nats or --kubeconfig"
        )
    if pair.other_bus is not None:
        return (
            f"refusing this NATS (bus.id {pair.bus_id!r}): {pair.other_bus}: "
            "two pipelines in one cluster: stop the other one, or join it with --nats"
        )
    return None


class _Metadata(msgspec.Struct, frozen=True):
    uid: str


class _Namespace(msgspec.Struct, frozen=True):
    metadata: _Metadata


async def read_cluster_id(client: KubeClient) -> str:
    """The uid of the namespace kube-system: it lives as long as the cluster.

    Raises:
        ApiUnreachableError: no answer.
        ApiRefusedError: the API server does not allow it.
        DecodeError: what came is no namespace.
    """
    doing = "reading namespace 'kube-system'"
    response = await client.request("GET", "/api/v1/namespaces/kube-system")
    if not response.succeeded:
        raise api_refusal(doing, response)
    try:
        return msgspec.json.decode(response.body, type=_Namespace).metadata.uid
    except msgspec.MsgspecError as exc:
        raise DecodeError(f"{doing}: {exc}") from exc
