"""What the watcher's core asks to be done. The shell does it and answers with events; nothing here waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from berth.api.identity import Attempt, Uid
from berth.api.messages import DeadLetter, Pending
from berth.api.subjects import PodSubject


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
class Bury:
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
    PublishPending | WriteKey | PurgeKey | LookUpKey | LookUpAttempt | ReadPod | Bury | Warn | CountScheduled | StepDown
)
