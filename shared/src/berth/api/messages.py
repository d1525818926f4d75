"""The messages between the services: what is pending, what was ranked, what was decided (PROTOCOL 1, 4, 5).

Payloads are JSON that a person can read. Every message names its schema and the digest of the configuration that its
writer runs, so that two versions or two configurations can run side by side.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from berth.api.errors import DecodeError
from berth.api.pod import Pod
from berth.api.subjects import Attempt

SCHEMA: Final = 1
"""The schema written. Readers take this one and the one before."""


class Outcome(StrEnum):
    """What became of an attempt (PROTOCOL 5). All are final but ``waiting``."""

    BOUND = "bound"
    UNSCHEDULABLE = "unschedulable"
    CONFLICT = "conflict"
    PREEMPTING = "preempting"
    GONE = "gone"
    ERROR = "error"
    WAITING = "waiting"

    @property
    def final(self) -> bool:
        """Whether the attempt ends with it."""
        return self is not Outcome.WAITING


class Reason(StrEnum):
    """Why an attempt ended in conflict, for the watcher to tell a touched node from a full one."""

    STALE = "stale"
    NO_CANDIDATE = "no-candidate"
    CHANGED = "changed"
    PROPOSALS = "proposals"
    VICTIMS = "victims"
    """Other pods than those that the scorer named would have to be evicted by now, or none any more."""
    VOLUMES = "volumes"
    """A volume or claim that the pod was to have was changed by somebody else."""


def _schema() -> int:
    return SCHEMA


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all messages carry. Readers look at ``schema`` first: a factory's value is always written."""

    schema: int = msgspec.field(default_factory=_schema)
    config: str = ""


class Positions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a view stands: the stream sequences up to which each source was read."""

    cluster: int = 0
    decisions: int = 0
    bandwidth: int = 0
    facts: int = 0

    def covers(self, wanted: Positions) -> bool:
        """Whether a view at these positions has read everything up to the wanted ones."""
        return (
            self.cluster >= wanted.cluster
            and self.decisions >= wanted.decisions
            and self.bandwidth >= wanted.bandwidth
            and self.facts >= wanted.facts
        )


class Pending(Message, frozen=True, kw_only=True):
    """PENDING: rank this pod. ``after`` are the positions that the scorer must have reached first."""

    attempt: str
    profile: str
    pod: Pod
    after: Positions = Positions()


class Candidate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of the K best nodes.

    ``scores`` are weighted and after NormalizeScore, by plugin; ``total`` is their sum; ``pods`` is how many pods the
    scorer counted on the node, proposals included, the pod itself and nominated pods not. ``details`` are for people:
    what a plugin's points were made of where they do not tell by themselves (a sample's value, its age).
    """

    node: str
    total: int
    scores: dict[str, int] = {}
    pods: int = 0
    details: dict[str, str] = {}


class Rejection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reason for which nodes were refused: by which plugin, how many, and some of them by name."""

    plugin: str
    reason: str
    nodes: int
    examples: list[str] = []
    resolvable: bool = True


class Victim(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that is evicted for a more important one."""

    uid: str
    namespace: str
    name: str


class Preemption(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node on which room is made for the pod, and whom that costs it, the most important one first.

    Without victims: they are going already. Of the evictions, ``violations`` are against a disruption budget.
    """

    node: str
    victims: list[Victim] = []
    violations: int = 0


class Ranked(Message, frozen=True, kw_only=True):
    """RANKED: the best K nodes, or why there is none, or why ranking failed.

    Exactly one of the three: ``candidates``, ``rejections`` with ``message``, or ``error``. Beside ``rejections``,
    ``preemption`` says where room can be made; ``clears_nomination`` that a node which is kept for the pod is of no use
    to it. ``untouched_first`` says
    whether more pods make a node worse, so that the binder may ask for another ranking when a node was touched since.
    ``blockers`` are the plugins that refused nodes: the events that they name may help the pod.
    ``proposals_counted`` tells that the "no" hangs on somebody's proposal that is not yet bound. ``asked_at`` is when
    NATS stored the PENDING that this answers.
    """

    attempt: str
    profile: str
    pod: Pod
    scorer: str = ""
    asked_at: datetime | None = None
    positions: Positions = Positions()
    view_age_seconds: float | None = None
    evaluated: int = 0
    feasible: int = 0
    untouched_first: bool = True
    candidates: list[Candidate] = []
    rejections: list[Rejection] = []
    blockers: list[str] = []
    proposals_counted: bool = False
    preemption: Preemption | None = None
    clears_nomination: bool = False
    message: str = ""
    error: str = ""


class Decision(Message, frozen=True, kw_only=True):
    """DECISIONS: what became of an attempt, with everything that explains it.

    ``resource_versions`` name, on a conflict, the newest **object or event** of each kind that the binder had seen: the
    watcher tries again once its own reflectors have reached them. ``positions`` and ``view_age_seconds`` are those of
    the ranking; ``preemption`` is whom the binder has evicted for it, and where; ``asked_at`` and ``ranked_at`` are
    when NATS stored the PENDING and the RANKED that led here.
    """

    attempt: str
    epoch: int
    outcome: Outcome
    profile: str
    namespace: str
    pod: str
    uid: str
    node: str = ""
    reason: str = ""
    message: str = ""
    repeat: int = 0
    evaluated: int = 0
    feasible: int = 0
    candidates: list[Candidate] = []
    rejections: list[Rejection] = []
    blockers: list[str] = []
    preemption: Preemption | None = None
    positions: Positions = Positions()
    resource_versions: dict[str, str] = {}
    scorer: str = ""
    view_age_seconds: float | None = None
    asked_at: datetime | None = None
    ranked_at: datetime | None = None


class DeadLetter(Message, frozen=True, kw_only=True):
    """dead: what could not be decoded or failed too often, and why. ``payload`` is cut to a readable length."""

    subject: str
    reason: str
    service: str
    attempt: str = ""
    payload: str = ""


M = TypeVar("M", bound=Message)
_encoder = msgspec.json.Encoder()
MALFORMED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding foreign JSON may raise: text that is not UTF-8 and nesting without end come through as they are."""


class UnknownSchemaError(DecodeError):
    """A message of a schema that this reader does not know: somebody newer may."""


def encode(message: Message) -> bytes:
    """The message as JSON."""
    return _encoder.encode(message)


class _Header(msgspec.Struct):
    schema: int


def decoder(kind: type[M]) -> msgspec.json.Decoder[M]:
    """A decoder for one kind of message, to be made once and kept."""
    return msgspec.json.Decoder(kind)


def decode(data: bytes, using: msgspec.json.Decoder[M]) -> M:
    """Read a message.

    Raises:
        UnknownSchemaError: well formed, but of a schema that is neither this one nor the one before.
        DecodeError: anything else that is wrong with it.
    """
    try:
        message = using.decode(data)
    except MALFORMED as exc:
        _refuse_unknown_schema(data)
        raise DecodeError(f"decoding a message of {len(data)} bytes: {exc}") from exc
    if message.schema not in (SCHEMA, SCHEMA - 1):
        raise UnknownSchemaError(f"decoding a message: want schema {SCHEMA} or {SCHEMA - 1}, got {message.schema}")
    return message


def attempt_of(message: Pending | Ranked) -> Attempt:
    """The attempt that a message is about.

    Raises:
        DecodeError: it has not the form of one, or is one of another pod than the message's.
    """
    attempt, uid = Attempt.parse(message.attempt), message.pod.uid
    if not attempt.uid or attempt.uid != uid:
        raise DecodeError(f"decoding a message: want an attempt of pod {uid!r}, got {message.attempt!r}")
    return attempt


def _refuse_unknown_schema(data: bytes) -> None:
    """A newer schema may have another shape: then the shape is not what is wrong."""
    try:
        schema = msgspec.json.decode(data, type=_Header).schema
    except MALFORMED:
        return
    if schema not in (SCHEMA, SCHEMA - 1):
        raise UnknownSchemaError(f"decoding a message: want schema {SCHEMA} or {SCHEMA - 1}, got {schema}")
