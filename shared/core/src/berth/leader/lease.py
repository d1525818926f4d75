"""The Lease object: reads, writes, and the decision who may lead.

Times in a Lease come from its holder's clock and are never compared with another clock. A Lease has expired when its
record was unchanged for its whole duration, by the reader's clock. Writes are compare-and-set by resourceVersion.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Final

import msgspec

from berth.api.workloads import Lease, LeaseSpec
from berth.clock import micro_time
from berth.errors import DecodeError, TemporaryError
from berth.kube.client import DEFAULT_TIMEOUT, KubeClient
from berth.kube.errors import refusal
from berth.kube.http1 import Response
from berth.kube.listwatch import LineSplitter
from berth.settings.settings import LeaseSettings

# Number of the last leadership, watcher's term or binder's epoch (docs/protocol.md, 1).
ANNOTATION_TERM = "berth/term"


# The holder's bus (docs/protocol.md, 2, *one cluster, one bus*).
ANNOTATION_BUS_ID = "bus.id"


# Number of the last leadership, if it ended with every request answered; cleared when the next one begins.
ANNOTATION_SETTLED = "berth/settled"

WATCH_SECONDS = 25  # Duration of a watch, after which a half-open connection is found.


class LeaseConflictError(TemporaryError):
    """Another process wrote, created or deleted the Lease after it was read: read it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLease:
    """A Lease, decoded and as a whole document, so that a write keeps the fields of other writers."""

    lease: Lease
    document: dict[str, Any]

    @property
    def annotations(self) -> dict[str, str]:
        return self.lease.metadata.annotations or {}


class LeaseObject:
    def __init__(self, client: KubeClient, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self.name = name
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"

    def __str__(self) -> str:
        return f"{self._namespace}/{self.name}"

    async def read(self, timeout: timedelta = DEFAULT_TIMEOUT) -> StoredLease | None:  # noqa: ASYNC109 - the client's
        """Read the Lease; ``None`` if it does not exist. Raises as :meth:`write`, without conflicts."""
        response = await self._client.call("GET", f"{self._collection}/{self.name}", timeout=timeout)
        if response.status == HTTPStatus.NOT_FOUND:
            return None
        return self._stored("reading", response)

    async def create(
        self,
        spec: Mapping[str, Any],
        annotations: Mapping[str, str],
        timeout: timedelta = DEFAULT_TIMEOUT,  # noqa: ASYNC109 - the client's
    ) -> StoredLease:
        """Create the Lease, and its namespace if needed. Raises as :meth:`write`."""
        document = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": self._namespace, "annotations": dict(annotations)},
            "spec": dict(spec),
        }
        response = await self._client.call("POST", self._collection, body=document, timeout=timeout)
        if response.status == HTTPStatus.NOT_FOUND:
            await self._create_namespace(timeout)
            response = await self._client.call("POST", self._collection, body=document, timeout=timeout)
        return self._stored("creating", response)

    async def _create_namespace(self, timeout: timedelta) -> None:  # noqa: ASYNC109 - the client's
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self._namespace}}
        response = await self._client.call("POST", "/api/v1/namespaces", body=body, timeout=timeout)
        if not response.succeeded and response.status != HTTPStatus.CONFLICT:
            what = f"creating namespace {self._namespace!r} for the Leases"
            raise refusal(f"{what} (`kubectl create namespace {self._namespace}`)", response)

    async def write(
        self,
        read: StoredLease,
        spec: Mapping[str, Any],
        annotations: Mapping[str, str],
        timeout: timedelta = DEFAULT_TIMEOUT,  # noqa: ASYNC109 - the client's
    ) -> StoredLease:
        """Replace these parts of the Lease; all other fields stay.

        Raises:
            LeaseConflictError: it has changed since it was read.
            ApiUnreachableError: no answer; it may have been written.
            ApiRefusedError: the API server refuses the write.
        """
        metadata = read.document["metadata"]
        document = {
            **read.document,
            "metadata": {**metadata, "annotations": {**read.annotations, **annotations}},
            "spec": {**read.document.get("spec", {}), **spec},
        }
        path = f"{self._collection}/{self.name}"
        return self._stored("writing", await self._client.call("PUT", path, body=document, timeout=timeout))

    async def changes(self) -> AsyncGenerator[Lease, None]:
        """The Lease now and after each change, by one watch.

        Raises:
            ApiUnreachableError: no answer, or a broken connection.
            ApiRefusedError: the API server refuses the watch.
        """
        params = {
            "watch": "true",
            "fieldSelector": f"metadata.name={self.name}",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        silence = timedelta(seconds=2 * WATCH_SECONDS)
        async with self._client.stream(self._collection, params=params, read_timeout=silence) as stream:
            if stream.status != HTTPStatus.OK:
                raise refusal(f"watching lease {str(self)!r}", await stream.whole())
            splitter = LineSplitter()
            async for chunk in stream.chunks:
                for line in splitter.feed(chunk):
                    event = _event_in(line)
                    if event.type in {"ADDED", "MODIFIED"}:
                        yield event.object

    def _stored(self, doing: str, response: Response) -> StoredLease:
        what = f"{doing} lease {str(self)!r}"
        gone = doing == "writing" and response.status == HTTPStatus.NOT_FOUND
        if response.status == HTTPStatus.CONFLICT or gone:
            raise LeaseConflictError(f"{what}: {response.message}")
        if not response.succeeded:
            raise refusal(what, response)
        try:
            return StoredLease(lease=_decode_lease(response.body), document=_decode_document(response.body))
        except msgspec.MsgspecError as exc:
            raise DecodeError(f"{what}: {exc}") from exc


_decode_lease: Final = msgspec.json.Decoder(Lease).decode
_decode_document: Final = msgspec.json.Decoder(dict[str, Any]).decode


class _Event(msgspec.Struct):
    # An event of a watch; the object of an error lacks a Lease's fields.

    type: str
    object: Lease


def _event_in(line: bytes) -> _Event:
    try:
        return msgspec.json.decode(line, type=_Event)
    except msgspec.MsgspecError as exc:
        raise DecodeError(f"watching a lease: {exc}") from exc


async def write_annotations(lease: LeaseObject, read: StoredLease | None, changes: Mapping[str, str]) -> StoredLease:
    """Write annotations for a leader without election, with an empty holder. Creates the Lease if it does not exist.

    ``read``: the state behind the decision. Raises as :meth:`LeaseObject.write`.
    """
    if read is None:
        return await lease.create({}, changes)
    spec = {"holderIdentity": ""} if read.lease.spec.holder_identity else {}
    return await lease.write(read, spec, changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseObservation:
    """A Lease, and the time since which its record is unchanged, by the reader's clock."""

    lease: Lease
    unchanged_since: float

    @property
    def holder(self) -> str:
        return self.lease.spec.holder_identity or ""

    @property
    def expires_at(self) -> float:
        """When another process may take the Lease, unless its record changes before."""
        return self.unchanged_since + (self.lease.spec.lease_duration_seconds or 0)


class LeaseObservations:
    """The Leases that a process has read, for all its sessions and elections.

    Shared, so that a new session need not wait again for a Lease that another one has seen unchanged.
    """

    def __init__(self) -> None:
        self._seen: dict[str, LeaseObservation] = {}

    def note(self, lease: LeaseObject, found: Lease | None, now: float) -> LeaseObservation | None:
        """Record the Lease as read or watched at ``now``; ``None``: it does not exist."""
        if found is None:
            self._seen.pop(str(lease), None)
            return None
        seen = self._seen[str(lease)] = observe(self._seen.get(str(lease)), found, now)
        return seen


class ElectionStep(Enum):
    CREATE = auto()  # The Lease does not exist.
    TAKE = auto()  # The Lease has no holder, has expired, or is held by the candidate.
    WAIT = auto()  # Another process holds the Lease.


def observe(before: LeaseObservation | None, lease: Lease, now: float) -> LeaseObservation:
    """An unchanged record keeps its age; annotations do not count."""
    same = before is not None and before.lease.metadata.uid == lease.metadata.uid and before.lease.spec == lease.spec
    return LeaseObservation(lease=lease, unchanged_since=before.unchanged_since if same and before else now)


def is_live(observation: LeaseObservation, now: float) -> bool:
    """Whether the Lease has a holder, and was first read or changed less than its duration ago."""
    return bool(observation.holder) and now < observation.expires_at


def next_step(observation: LeaseObservation | None, identity: str, now: float) -> ElectionStep:
    """The next step of the candidate ``identity``, which does not lead."""
    if observation is None:
        return ElectionStep.CREATE
    if observation.holder == identity or not is_live(observation, now):
        return ElectionStep.TAKE
    return ElectionStep.WAIT


_MOST_TRANSITIONS: Final = 2**31 - 1


def held_record(identity: str, before: LeaseSpec, settings: LeaseSettings, wall: datetime) -> dict[str, Any]:
    """The spec with which ``identity`` acquires or renews the Lease. Only acquiring counts as a transition."""
    renewing = before.holder_identity == identity
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": round(settings.duration.total_seconds()),
        "acquireTime": before.acquire_time if renewing and before.acquire_time else micro_time(wall),
        "renewTime": micro_time(wall),
        "leaseTransitions": _transitions(before, new=0 if renewing else 1),
    }


def released_record(before: LeaseSpec, wall: datetime) -> dict[str, Any]:
    """The spec of a released Lease: no holder, and a duration of one second."""
    return {
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "acquireTime": micro_time(wall),
        "renewTime": micro_time(wall),
        "leaseTransitions": _transitions(before, new=0),
    }


def _transitions(before: LeaseSpec, *, new: int) -> int:
    # The API server refuses a number that it cannot store, and then the Lease could be taken by no one.
    return max(0, min(_MOST_TRANSITIONS, (before.lease_transitions or 0) + new))


def settled_of(stored: StoredLease | None) -> str:
    """The former leader's ``ANNOTATION_SETTLED``; may be empty."""
    return "" if stored is None else stored.annotations.get(ANNOTATION_SETTLED, "")


def cleared(stored: StoredLease | None) -> dict[str, str]:
    """The change that clears ``ANNOTATION_SETTLED``, if it is set."""
    return {ANNOTATION_SETTLED: ""} if settled_of(stored) else {}
