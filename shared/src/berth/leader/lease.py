"""One Lease object at the API server: read, and written by compare-and-set on its resourceVersion.

Who may lead, judged from a Lease and one's own clock. No I/O: Lease and clock come in, a decision goes out.

Times that a Lease carries are its holder's wall clock and are never reckoned with: a Lease is over when its record has
not been seen to change for its whole duration, by the clock of whoever looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from http import HTTPStatus
from typing import Any

import msgspec

from berth.api.errors import DecodeError, TemporaryError
from berth.api.workloads import Lease, LeaseSpec
from berth.kube.client import DEFAULT_TIMEOUT, KubeClient
from berth.kube.clock import micro_time
from berth.kube.errors import Response, refusal
from berth.process.settings import LeaseSettings

ANNOTATION_TERM = "berth/term"
"""The number of the last leadership, watcher's term or binder's epoch (PROTOCOL 1)."""


ANNOTATION_BUS_ID = "bus.id"
"""Which bus the holder meets the others on (PROTOCOL 2, *one cluster, one bus*)."""


class LeaseConflictError(TemporaryError):
    """Somebody else has written the Lease since it was read, or made or deleted it: read it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLease:
    """A Lease as it was read: typed, and whole, so that writing it back loses nothing that others put there."""

    lease: Lease
    document: dict[str, Any]

    @property
    def annotations(self) -> dict[str, str]:
        """Its annotations."""
        return self.lease.metadata.annotations or {}


class LeaseObject:
    """One Lease by its name."""

    def __init__(self, client: KubeClient, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self.name = name
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"

    def __str__(self) -> str:
        return f"{self._namespace}/{self.name}"

    async def read(self, timeout: timedelta = DEFAULT_TIMEOUT) -> StoredLease | None:  # noqa: ASYNC109 - the client's
        """The Lease, ``None`` when there is none. Raises as :meth:`write`, without conflicts."""
        response = await self._client.request("GET", f"{self._collection}/{self.name}", timeout=timeout)
        if response.status == HTTPStatus.NOT_FOUND:
            return None
        return self._stored("reading", response)

    async def create(
        self,
        spec: Mapping[str, Any],
        annotations: Mapping[str, str],
        timeout: timedelta = DEFAULT_TIMEOUT,  # noqa: ASYNC109 - the client's
    ) -> StoredLease:
        """Make the Lease. Raises as :meth:`write`."""
        document = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": self._namespace, "annotations": dict(annotations)},
            "spec": dict(spec),
        }
        body = msgspec.json.encode(document)
        return self._stored(
            "creating", await self._client.request("POST", self._collection, body=body, timeout=timeout)
        )

    async def write(
        self,
        read: StoredLease,
        spec: Mapping[str, Any],
        annotations: Mapping[str, str],
        timeout: timedelta = DEFAULT_TIMEOUT,  # noqa: ASYNC109 - the client's
    ) -> StoredLease:
        """Write what is given over what was read; everything else stays.

        Raises:
            LeaseConflictError: it is not any more as it was read.
            ApiUnreachableError: no answer; it may have been written.
            ApiRefusedError: the API server does not allow it.
        """
        metadata = read.document["metadata"]
        document = {
            **read.document,
            "metadata": {**metadata, "annotations": {**read.annotations, **annotations}},
            "spec": {**read.document.get("spec", {}), **spec},
        }
        path, body = f"{self._collection}/{self.name}", msgspec.json.encode(document)
        return self._stored("writing", await self._client.request("PUT", path, body=body, timeout=timeout))

    def _stored(self, doing: str, response: Response) -> StoredLease:
        what = f"{doing} lease {str(self)!r}"
        gone = doing == "writing" and response.status == HTTPStatus.NOT_FOUND
        if response.status == HTTPStatus.CONFLICT or gone:
            raise LeaseConflictError(f"{what}: {response.message}")
        if not response.succeeded:
            raise refusal(what, response)
        try:
            lease = msgspec.json.decode(response.body, type=Lease)
            return StoredLease(lease=lease, document=msgspec.json.decode(response.body))
        except msgspec.MsgspecError as exc:
            raise DecodeError(f"{what}: {exc}") from exc


async def write_annotations(lease: LeaseObject, read: StoredLease | None, changes: Mapping[str, str]) -> StoredLease:
    """Write annotations for a leader that was not elected: the Lease is made when there is none, its holder is empty.

    ``read`` is what the changes were decided on. Raises as :meth:`LeaseObject.write`.
    """
    if read is None:
        return await lease.create({}, changes)
    spec = {"holderIdentity": ""} if read.lease.spec.holder_identity else {}
    return await lease.write(read, spec, changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseObservation:
    """A Lease as it was read, and since when its record has been the same, on one's own clock."""

    lease: Lease
    unchanged_since: float

    @property
    def holder(self) -> str:
        """Who holds it; empty when nobody does."""
        return self.lease.spec.holder_identity or ""


class ElectionStep(Enum):
    """What someone who wants to lead does about the Lease."""

    CREATE = auto()
    """There is none."""
    TAKE = auto()
    """It is free, or over, or one's own."""
    WAIT = auto()
    """Somebody holds it."""


def sight(before: LeaseObservation | None, lease: Lease, now: float) -> LeaseObservation:
    """The Lease has been read just now. A record that is the same as before keeps its age; annotations do not count."""
    same = before is not None and before.lease.metadata.uid == lease.metadata.uid and before.lease.spec == lease.spec
    return LeaseObservation(lease=lease, unchanged_since=before.unchanged_since if same and before else now)


def is_live(sighting: LeaseObservation, now: float) -> bool:
    """Whether somebody holds it and its duration has not passed since it was first seen, or seen to change."""
    seconds = sighting.lease.spec.lease_duration_seconds or 0
    return bool(sighting.holder) and now - sighting.unchanged_since < seconds


def decide(sighting: LeaseObservation | None, identity: str, now: float) -> ElectionStep:
    """What ``identity``, who does not lead, does about the Lease."""
    if sighting is None:
        return ElectionStep.CREATE
    if sighting.holder == identity or not is_live(sighting, now):
        return ElectionStep.TAKE
    return ElectionStep.WAIT


def held_by(identity: str, before: LeaseSpec, settings: LeaseSettings, wall: datetime) -> dict[str, Any]:
    """The record by which ``identity`` takes or renews the Lease; taking it counts a transition, renewing does not."""
    renewing = before.holder_identity == identity
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": round(settings.duration.total_seconds()),
        "acquireTime": before.acquire_time if renewing and before.acquire_time else micro_time(wall),
        "renewTime": micro_time(wall),
        "leaseTransitions": (before.lease_transitions or 0) + (0 if renewing else 1),
    }


def released(before: LeaseSpec, wall: datetime) -> dict[str, Any]:
    """The record by which a holder gives the Lease back: nobody's, and over after a second for whoever reckons so."""
    return {
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "acquireTime": micro_time(wall),
        "renewTime": micro_time(wall),
        "leaseTransitions": before.lease_transitions or 0,
    }


@dataclass(slots=True)
class LeaseDeadline:
    """A leadership by its holder's clock: it ends when its renewals do, and once over it stays over."""

    renewed_at: float
    deadline_seconds: float
    over: bool = False

    def expired(self, now: float) -> bool:
        """Whether the renew deadline has passed; others may begin only some seconds later."""
        self.over = self.over or self.seconds_left(now) <= 0
        return self.over

    def seconds_left(self, now: float) -> float:
        """Seconds until the renew deadline."""
        return self.renewed_at + self.deadline_seconds - now

    def renewed(self, sent_at: float, now: float) -> bool:
        """A renewal that was sent at ``sent_at`` is answered. Whether it came in time; later it changes nothing."""
        if self.expired(now):
            return False
        self.renewed_at = sent_at
        return True
