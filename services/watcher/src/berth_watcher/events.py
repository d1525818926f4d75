"""What the watcher's core is told: the reflectors' events (``berth.kube.watch``), and what the bus says and answers.

What the watcher's core asks to be done. The shell does it and answers with events; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from berth.api.livedata import LiveBucket
from berth.api.messages import DeadLetter, Decision, Pending
from berth.api.meta import KubernetesObject
from berth.api.pod import Pod
from berth.api.subjects import Attempt, PodSubject, Uid
from berth.bus.interface import Entry
from berth.kube.watch import Current, Deleted, Listed, Undecodable, Upserted


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionReceived:
    """A Decision was read from DECISIONS. ``time`` is when the stream stored it."""

    decision: Decision
    sequence: int
    time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRead:
    """An entry of the bucket ``cluster`` was read back."""

    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketComplete:
    """Everything that the bucket held at the start of the takeover has been read; ``position`` is where it ended."""

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyWritten:
    """A write or removal of a key of ``cluster`` is stored at a sequence."""

    key: str
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRefused:
    """A write of a key was not taken: somebody wrote it in between, or nobody knows whether it arrived."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLookedUp:
    """A key as it stands after a refused write; ``None`` when there is nothing, not even a marker."""

    key: str
    entry: Entry | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRead:
    """The API's own answer about a pod; ``None`` when there is none of that name with that uid."""

    uid: Uid
    pod: Pod | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedUp:
    """Where a silent attempt was found.

    ``held`` tells whether PENDING or RANKED has it; ``decision`` is the last one of its subject, of whichever attempt.
    """

    attempt: Attempt
    held: bool
    decision: Decision | None = None
    time: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDataReceived:
    """Somebody put live data for a node, or removed it (``data`` is ``None``)."""

    bucket: LiveBucket
    key: str
    sequence: int
    data: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundInFlight:
    """A message of PENDING or RANKED that a takeover met: the attempt and the pod as it was published."""

    attempt: Attempt
    pod: Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDecision:
    """The last Decision of a subject that a takeover met; ``age_seconds`` since the stream stored it."""

    decision: Decision
    time: datetime
    age_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StagesRead:
    """PENDING, RANKED and DECISIONS were looked through, in this order: the queue may run. Both are by uid."""

    in_flight: Mapping[str, FoundInFlight] = field(default_factory=dict)
    decisions: Mapping[str, FoundDecision] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRefused:
    """The bus will never take this attempt's message, such as one that is larger than the server allows."""

    attempt: Attempt
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed: what was due by now is done."""


Event = (
    Listed[KubernetesObject]
    | Upserted[KubernetesObject]
    | Deleted[KubernetesObject]
    | Current
    | Undecodable
    | DecisionReceived
    | BucketRead
    | BucketComplete
    | KeyWritten
    | KeyRefused
    | KeyLookedUp
    | PodRead
    | LookedUp
    | PublishRefused
    | LiveDataReceived
    | StagesRead
    | Tick
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPending:
    """Publish an attempt. Not answered: one that is lost is found by the look-up."""

    message: Pending
    waited_seconds: float | None = None
    """For its turn; ``None`` when it had none: an attempt that takes another's place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteKey:
    """Write a key of ``cluster`` that stands at ``expected``; answered by KeyWritten or KeyRefused."""

    key: str
    data: bytes
    expected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeKey:
    """Remove a key of ``cluster`` that stands at ``expected``; answered by KeyWritten or KeyRefused."""

    key: str
    expected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpKey:
    """Read a key of ``cluster``; answered by KeyLookedUp."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpAttempt:
    """Look for a silent attempt in PENDING, then RANKED, then DECISIONS, in this order; answered by LookedUp."""

    attempt: Attempt
    profile: str
    namespace: str
    pod: str

    def subject(self, stage: str) -> PodSubject:
        """The pod's subject at a stage of its way."""
        return PodSubject(stage=stage, profile=self.profile, namespace=self.namespace, pod=self.pod)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPod:
    """Ask the API for a pod; answered by PodRead, however long it takes."""

    uid: Uid
    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishDeadLetter:
    """Copy what failed to ``dead``, with its reason."""

    letter: DeadLetter


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """Say a sentence in the log."""

    sentence: str
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountScheduled:
    """A pod was seen on the node that it had been waiting for."""

    attempts: int
    seconds: float
    """Since it first waited for its turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDown:
    """A higher term was seen: somebody else leads. Give up the Lease and start anew."""

    reason: str
    term: int


Effect = (
    PublishPending
    | WriteKey
    | PurgeKey
    | LookUpKey
    | LookUpAttempt
    | ReadPod
    | PublishDeadLetter
    | Warn
    | CountScheduled
    | StepDown
)
