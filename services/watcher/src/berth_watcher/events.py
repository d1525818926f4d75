"""Events and effects of the watcher's core.

``berth.kube.listwatch`` defines the events of reflectors; the events of bus and API are here.
``berth_watcher.effects`` carries out the effects and answers with events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

import msgspec

from berth.api.meta import KubernetesObject
from berth.api.pod import Pod
from berth.api.podgroups import Dialect
from berth.bus.interface import Entry
from berth.kube.listwatch import Current, Deleted, Listed, ListedPart, ReflectorEvent, Undecodable, Upserted
from berth.messages.attempts import DeadLetter, DecisionSummary, Pending
from berth.messages.groupattempts import GroupPending
from berth.messages.livedata import FailuresOnNode, LiveBucket
from berth.messages.subjects import Attempt, PodSubject, Uid


class DecisionReceived(msgspec.Struct, frozen=True, kw_only=True):
    """A Decision that DECISIONS stored at ``time``."""

    decision: DecisionSummary
    sequence: int
    time: datetime


class BucketEntryRead(msgspec.Struct, frozen=True, kw_only=True):
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketComplete:
    """The bucket ``cluster`` has been read up to ``position``, its last sequence at the start of the takeover."""

    position: int


class KeyWritten(msgspec.Struct, frozen=True, kw_only=True):
    """A write or removal of a key of ``cluster`` is stored at a sequence."""

    key: str
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyWriteFailed:
    """A write of a key failed because the key had changed, or had no answer and may be stored or not."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTooLarge:
    """A write of a key exceeds the bus's maximum payload and was not sent."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLookedUp:
    """``entry`` is ``None`` without a value or delete marker."""

    key: str
    entry: Entry | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRead:
    """The API's answer about a pod. ``pod`` is ``None`` if no pod has this name and uid."""

    uid: Uid
    pod: Pod | None


WorkQueue = Literal["pending", "ranked"]
Service = Literal["scorer", "binder"]
CONSUMERS: Final[Mapping[WorkQueue, Service]] = {"pending": "scorer", "ranked": "binder"}  # who takes the messages


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLookedUp:
    attempt: Attempt
    held_by: WorkQueue | None = None
    is_worked_on: bool = False  # a scorer has said in the last seconds that it holds the attempt
    decision: DecisionSummary | None = None  # the last one of the subject; perhaps of another attempt
    time: datetime | None = None  # when the stream stored it


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDataReceived:
    """Live data of a node was put, or removed (``data`` is ``None``)."""

    bucket: LiveBucket
    key: str
    sequence: int
    data: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDataComplete:
    """The bucket has been read to its end at the start of the takeover."""

    bucket: LiveBucket


@dataclass(frozen=True, slots=True, kw_only=True)
class FactNotWritten:
    """NATS has not stored the failures of a node."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundInFlight:
    """A message that a takeover found in PENDING or RANKED: its attempt, and the pod as published.

    Of a group, ``pod`` has only its name, and ``members`` are the attempts of its members.
    """

    attempt: Attempt
    pod: Pod
    members: tuple[Attempt, ...] = ()
    failures: int = 0  # consecutive attempts before it that ended in back-off


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDecision:
    """The last Decision of a subject, ``age_seconds`` after the stream stored it."""

    decision: DecisionSummary
    time: datetime
    age_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsRead:
    """A takeover has read PENDING, RANKED and DECISIONS, so the queue may run. Both mappings are by uid."""

    in_flight: Mapping[str, FoundInFlight] = field(default_factory=dict)
    decisions: Mapping[str, FoundDecision] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRefused:
    """The bus will never store this attempt's message, for example because it exceeds the maximum payload."""

    attempt: Attempt
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishNotStored:
    """The bus has no room for this attempt's message, or did not answer: it may be stored or not."""

    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRead:
    """The key ``drain`` of ``control``: if draining, no pod is published. A higher sequence wins."""

    is_draining: bool
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRequested:
    """A person requeues a pod that backs off or is unschedulable."""

    uid: Uid


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroupsSought:
    """The API server was asked anew for a dialect's PodGroups; its answer has come as the reflector's events."""

    dialect: Dialect


REFLECTOR_EVENTS: Final = (ListedPart, Listed, Upserted, Deleted, Current, Undecodable)

Event = (
    ReflectorEvent[KubernetesObject]
    | DecisionReceived
    | BucketEntryRead
    | BucketComplete
    | KeyWritten
    | KeyWriteFailed
    | KeyTooLarge
    | KeyLookedUp
    | PodRead
    | AttemptLookedUp
    | PublishRefused
    | PublishNotStored
    | LiveDataReceived
    | LiveDataComplete
    | FactNotWritten
    | StreamsRead
    | DrainRead
    | RetryRequested
    | PodGroupsSought
)


class PublishPending(msgspec.Struct, frozen=True, kw_only=True):
    """Publish an attempt. Answered only if it is refused or not stored; a look-up finds lost ones."""

    message: Pending
    waited_seconds: float | None = None  # in the active queue; None if it replaces an attempt in flight


class PublishGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The same for an attempt of a group."""

    message: GroupPending
    waited_seconds: float | None = None


class WriteKey(msgspec.Struct, frozen=True, kw_only=True):
    """Write a key of ``cluster`` if its last sequence is ``expected``.

    Answered by KeyWritten, KeyWriteFailed or KeyTooLarge.
    """

    key: str
    data: bytes
    expected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeKey:
    """Remove a key of ``cluster`` if its last sequence is ``expected``. Answered by KeyWritten or KeyWriteFailed."""

    key: str
    expected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFailures:
    """Write the fact of a node's failures, or remove it (``None``). Answered only if it is not stored."""

    node: str
    fact: FailuresOnNode | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpKey:
    """Read a key of ``cluster``. Answered by KeyLookedUp."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpAttempt:
    """Look for an attempt in PENDING, then RANKED, then DECISIONS. Answered by AttemptLookedUp."""

    attempt: Attempt
    profile: str
    namespace: str
    pod: str

    def subject(self, stage: str) -> PodSubject:
        return PodSubject(stage=stage, profile=self.profile, namespace=self.namespace, pod=self.pod)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeekPodGroups:
    """Ask the API server anew whether it serves a dialect's PodGroups. Answered by PodGroupsSought."""

    dialect: Dialect


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPod:
    """Read a pod from the API. Answered by PodRead unless the API fails."""

    uid: Uid
    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishDeadLetter:
    dead_letter: DeadLetter


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    message: str
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Log at level info."""

    message: str
    fields: Mapping[str, str] = field(default_factory=dict)


class CountScheduled(msgspec.Struct, frozen=True, kw_only=True):
    """Count a pod that the watch shows on a node after an attempt of berth's."""

    pod: Pod
    attempts: int
    seconds: float  # since it was first active


@dataclass(frozen=True, slots=True, kw_only=True)
class CountWholeGroup:
    """Count a group whose minimum the watch shows on nodes."""

    seconds: float  # since this leader knew its minimum of members


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDown:
    """A higher term was seen: the term ends if Lease or ``control`` confirm it."""

    reason: str
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStarted:
    """The takeover is complete: the queue runs."""


Effect = (
    PublishPending
    | PublishGroup
    | WriteKey
    | PurgeKey
    | WriteFailures
    | LookUpKey
    | LookUpAttempt
    | ReadPod
    | SeekPodGroups
    | PublishDeadLetter
    | Warn
    | Note
    | CountScheduled
    | CountWholeGroup
    | StepDown
    | QueueStarted
)
