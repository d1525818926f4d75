"""The Lease object at the API server: who may lead, how the Lease is written, and leading without election.

The times in a Lease are from its holder's clock and are never compared with another clock. A Lease has expired when its
record has not changed for its whole duration, by the reader's own clock. Writes are compare-and-set on the
resourceVersion.

``--leader-elect=false`` leads without election: the Lease has no holder, but its annotations are kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Protocol

import msgspec

from berth.api.errors import BerthError, DecodeError, TemporaryError
from berth.api.workloads import Lease, LeaseSpec
from berth.kube.client import DEFAULT_TIMEOUT, KubeClient
from berth.kube.clock import Clock, SteadyClock, micro_time
from berth.kube.errors import Response, refusal
from berth.kube.listwatch import LineSplitter
from berth.process.settings import LeaseSettings

logger = logging.getLogger(__name__)

ANNOTATION_TERM = "berth/term"
"""The number of the last leadership, watcher's term or binder's epoch (docs/protocol.md, 1)."""


ANNOTATION_BUS_ID = "bus.id"
"""The bus that the holder uses (docs/protocol.md, 2, *one cluster, one bus*)."""


ANNOTATION_SETTLED = "berth/settled"
"""The number of the last leadership, when it ended with every request answered; cleared when the next one begins."""

WATCH_SECONDS = 25
"""Length of a watch of the Lease; then the next one begins, so that a half-open connection is found."""


RELEASE_TIMEOUT = timedelta(seconds=2)
"""How long releasing the Lease may take at the end of a process. After that it is left to expire."""

CONFLICTS = 5
"""How often one write is tried when others write the Lease at the same time."""


class LeaseConflictError(TemporaryError):
    """Another process wrote, created or deleted the Lease after it was read: read it again."""


class LeadershipLostError(TemporaryError):
    """Leading is over: another process holds the Lease, it was deleted, or it was not renewed in time."""


class AnnotationConflictError(TemporaryError):
    """Another process has changed the annotation: read it and decide again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLease:
    """A Lease as it was read: typed, and as a whole document, so that a write keeps the fields of other writers."""

    lease: Lease
    document: dict[str, Any]

    @property
    def annotations(self) -> dict[str, str]:
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
        """Create the Lease, and its namespace when there is none. Raises as :meth:`write`."""
        document = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": self._namespace, "annotations": dict(annotations)},
            "spec": dict(spec),
        }
        body = msgspec.json.encode(document)
        response = await self._client.request("POST", self._collection, body=body, timeout=timeout)
        if response.status == HTTPStatus.NOT_FOUND:
            await self._create_namespace(timeout)
            response = await self._client.request("POST", self._collection, body=body, timeout=timeout)
        return self._stored("creating", response)

    async def _create_namespace(self, timeout: timedelta) -> None:  # noqa: ASYNC109 - the client's
        body = msgspec.json.encode({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self._namespace}})
        response = await self._client.request("POST", "/api/v1/namespaces", body=body, timeout=timeout)
        if not response.succeeded and response.status != HTTPStatus.CONFLICT:
            what = f"creating namespace {self._namespace!r}, which is to hold the Leases"
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

    async def holders(self) -> AsyncGenerator[str, None]:
        """The holder now and after each change, empty for none, by a watch; ends with the watch.

        Raises:
            ApiUnreachableError: no answer, or a broken connection.
            ApiRefusedError: the API server does not allow it.
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
                    yield _holder_in(line)

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


class _Event(msgspec.Struct):
    """An event of a watch; an error has an object without these fields."""

    object: Lease


def _holder_in(line: bytes) -> str:
    try:
        return msgspec.json.decode(line, type=_Event).object.spec.holder_identity or ""
    except msgspec.MsgspecError as exc:
        raise DecodeError(f"watching a lease: {exc}") from exc


async def write_annotations(lease: LeaseObject, read: StoredLease | None, changes: Mapping[str, str]) -> StoredLease:
    """Write annotations for a leader without election, with an empty holder. Creates the Lease if it does not exist.

    ``read`` is the state that the changes were decided on. Raises as :meth:`LeaseObject.write`.
    """
    if read is None:
        return await lease.create({}, changes)
    spec = {"holderIdentity": ""} if read.lease.spec.holder_identity else {}
    return await lease.write(read, spec, changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseObservation:
    """A Lease as it was read, and since when its record is unchanged, by the reader's clock."""

    lease: Lease
    unchanged_since: float

    @property
    def holder(self) -> str:
        """The identity of the holder; empty for none."""
        return self.lease.spec.holder_identity or ""


class LeaseObservations:
    """What a process has seen of Leases, for all its sessions and elections.

    So none of them waits again for a Lease that another has seen unchanged.
    """

    def __init__(self) -> None:
        self._seen: dict[str, LeaseObservation] = {}

    def note(self, lease: LeaseObject, stored: StoredLease | None, now: float) -> LeaseObservation | None:
        """Record a read of the Lease at ``now``; ``None`` when there is no such Lease."""
        if stored is None:
            self._seen.pop(str(lease), None)
            return None
        seen = self._seen[str(lease)] = observe(self._seen.get(str(lease)), stored.lease, now)
        return seen


class ElectionStep(Enum):
    """The next step of a candidate."""

    CREATE = auto()
    """The Lease does not exist."""
    TAKE = auto()
    """The Lease has no holder, has expired, or is held by the candidate."""
    WAIT = auto()
    """Another process holds the Lease."""


def observe(before: LeaseObservation | None, lease: Lease, now: float) -> LeaseObservation:
    """Record a read of the Lease at ``now``. An unchanged record keeps its age; annotations do not count."""
    same = before is not None and before.lease.metadata.uid == lease.metadata.uid and before.lease.spec == lease.spec
    return LeaseObservation(lease=lease, unchanged_since=before.unchanged_since if same and before else now)


def is_live(observation: LeaseObservation, now: float) -> bool:
    """Whether it is held, and was first read or changed less than its duration ago."""
    seconds = observation.lease.spec.lease_duration_seconds or 0
    return bool(observation.holder) and now - observation.unchanged_since < seconds


def next_step(observation: LeaseObservation | None, identity: str, now: float) -> ElectionStep:
    """The next step of the candidate ``identity``, which does not lead."""
    if observation is None:
        return ElectionStep.CREATE
    if observation.holder == identity or not is_live(observation, now):
        return ElectionStep.TAKE
    return ElectionStep.WAIT


def held_record(identity: str, before: LeaseSpec, settings: LeaseSettings, wall: datetime) -> dict[str, Any]:
    """The spec with which ``identity`` acquires or renews the Lease. Only acquiring counts as a transition."""
    renewing = before.holder_identity == identity
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": round(settings.duration.total_seconds()),
        "acquireTime": before.acquire_time if renewing and before.acquire_time else micro_time(wall),
        "renewTime": micro_time(wall),
        "leaseTransitions": (before.lease_transitions or 0) + (0 if renewing else 1),
    }


def released_record(before: LeaseSpec, wall: datetime) -> dict[str, Any]:
    """The spec with which a holder releases the Lease: no holder, and a duration of one second."""
    return {
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "acquireTime": micro_time(wall),
        "renewTime": micro_time(wall),
        "leaseTransitions": before.lease_transitions or 0,
    }


class HeldLease(Protocol):
    """A leader's Lease, with or without election: whether it still leads, and the Lease's annotations."""

    @property
    def lost(self) -> asyncio.Event:
        """Set once leading is over."""
        ...

    @property
    def annotations(self) -> Mapping[str, str]:
        """The annotations of the Lease, at most one retry period old while the API server answers."""
        ...

    former_settled: str
    """``ANNOTATION_SETTLED`` as it was when this leader took the Lease; empty for none."""
    settled: str
    """The same for this leader, written when the Lease is released."""

    def expired(self) -> bool:
        """Whether leading is over, by the clock. Call it before each action that only a leader may do."""
        ...

    async def annotate(self, changes: Mapping[str, str]) -> None:
        """Write annotations by compare-and-set: they must still have the values in ``annotations``.

        Raises:
            AnnotationConflictError: another process changed one of them; ``annotations`` has the new value.
            LeadershipLostError: leading is over.
            ApiUnreachableError: no answer; they may have been written.
            ApiRefusedError: the API server does not allow it.
        """
        ...


class Unelected:
    """Leading without election, for the only process of its role."""

    def __init__(self, client: KubeClient, namespace: str, name: str, clock: Clock | None = None) -> None:
        self._lease = LeaseObject(client, namespace, name)
        self._clock = clock or SteadyClock()
        self._period = LeaseSettings().retry_period

    @asynccontextmanager
    async def lead(self, annotations: Mapping[str, str] | None = None) -> AsyncIterator[HeldLease]:
        """Write these annotations to the Lease, with no holder, then lead."""
        before, made = await self._made(annotations or {})
        lease = UnelectedLease(self._lease, made, self._period, self._clock)
        lease.former_settled = settled_of(before)
        following = asyncio.create_task(lease.follow(), name=f"following lease {self._lease}")
        try:
            yield lease
        finally:
            await cancel(following)
            await lease.release()

    async def _made(self, annotations: Mapping[str, str]) -> tuple[StoredLease | None, StoredLease]:
        """The Lease as it was, and as it is written now."""
        while True:
            try:
                before = await self._lease.read()
                return before, await write_annotations(self._lease, before, {**cleared(before), **annotations})
            except BerthError as exc:
                logger.warning("%s", exc)
            await self._clock.sleep(self._period.total_seconds())


class UnelectedLease:
    """The Lease of a leader without election. It is lost only when the process ends or reads a higher number."""

    def __init__(self, lease: LeaseObject, stored: StoredLease, period: timedelta, clock: Clock) -> None:
        self.lost = asyncio.Event()
        self.former_settled = self.settled = ""
        self._lease = lease
        self._stored = stored
        self._period = period
        self._clock = clock
        self._write_lock = asyncio.Lock()

    @property
    def annotations(self) -> Mapping[str, str]:
        return self._stored.annotations

    def expired(self) -> bool:
        return self.lost.is_set()

    async def annotate(self, changes: Mapping[str, str]) -> None:
        decided_on = self.annotations
        async with self._write_lock:
            for _ in range(CONFLICTS):
                check_unchanged(self.annotations, changes, decided_on)
                if await self._written(changes):
                    return
        raise LeaseConflictError(f"writing lease {str(self._lease)!r}: written by others {CONFLICTS} times in a row")

    async def release(self) -> None:
        """Write that nothing is under way, if so. Raises no error of the API."""
        self.lost.set()
        if not self.settled:
            return
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT.total_seconds()):
                await write_annotations(self._lease, self._stored, {ANNOTATION_SETTLED: self.settled})
        except (BerthError, TimeoutError) as exc:
            logger.info("lease %s was not written, the next leader takes longer: %s", self._lease, exc or "no answer")

    async def follow(self) -> None:
        """Read the Lease periodically, to find a higher number on it."""
        while True:
            await self._clock.sleep(self._period.total_seconds())
            try:
                async with self._write_lock:
                    await self._read_again()
            except BerthError as exc:
                logger.warning("%s", exc)

    async def _written(self, changes: Mapping[str, str]) -> bool:
        try:
            self._stored = await write_annotations(self._lease, self._stored, changes)
        except LeaseConflictError:
            await self._read_again()
            return False
        return True

    async def _read_again(self) -> None:
        stored = await self._lease.read()
        self._stored = stored or await write_annotations(self._lease, None, {})


async def cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end; log any other exception of it."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and task.exception() is not None:
        logger.error("%s: %r", task.get_name(), task.exception())


def settled_of(stored: StoredLease | None) -> str:
    """What the former leader wrote about its end; empty for nothing."""
    return "" if stored is None else stored.annotations.get(ANNOTATION_SETTLED, "")


def cleared(stored: StoredLease | None) -> dict[str, str]:
    """The change that takes back what the former leader wrote about its end, if it wrote anything."""
    return {ANNOTATION_SETTLED: ""} if settled_of(stored) else {}


def check_unchanged(now: Mapping[str, str], changes: Mapping[str, str], decided_on: Mapping[str, str]) -> None:
    """Compare before setting. An annotation with the new value is no conflict: the answer to the write was lost.

    Raises:
        AnnotationConflictError: an annotation has neither the expected nor the new value.
    """
    for key, wanted in changes.items():
        if now.get(key) not in (decided_on.get(key), wanted):
            raise AnnotationConflictError(
                f"writing annotation {key!r}: decided on {decided_on.get(key)!r}, but it is {now.get(key)!r} now"
            )
