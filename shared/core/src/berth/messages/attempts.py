"""The messages between the services, and the values of the bucket ``cluster`` (docs/protocol.md, 1 to 5).

What is pending, what was ranked, what was decided. Payloads are JSON that a person can read. Every message carries its
schema and the digest of its writer's configuration, so that two versions or two configurations can run side by side.

The watcher writes objects and watermarks to ``cluster``; scorers and ``berth why --now`` read them. Objects stay bytes
here: their readers decode them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Annotated, Final, TypeVar

import msgspec

from berth.api.meta import Int64, ObjectMeta
from berth.api.pod import Pod
from berth.decoding import MAX_DIGITS, decode_json
from berth.errors import DecodeError
from berth.messages.subjects import Attempt, Term, key

SCHEMA: Final = 1
"""The schema that is written and read. The release that raises it also reads the one before (docs/protocol.md, 4)."""

NAME_CHARACTERS: Final = 253
"""Of the names of an object and a namespace, and of a uid: what Kubernetes allows. They become tokens of subjects, and
NATS closes the connection of a client that sends a longer subject than 4 KiB."""
_NAME: Final = re.compile("[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,251}[a-zA-Z0-9])?")
"""No more than an object of Kubernetes can be called: these become subjects, headers and paths at the API server."""
SENTENCE_CHARACTERS: Final = 1024
"""Of a reason for which a plugin rejects nodes, and of what it says about its points: as many as an Event takes."""
MESSAGE_CHARACTERS: Final = 8192
"""Of a message or an error, which has many reasons in a row. A watcher keeps that of each pod that waits."""
MOST_PLUGINS: Final = 256
"""Plugins that are named for one pod, ten times those of the default profile."""
MOST_REJECTIONS: Final = 4096
MOST_VICTIMS: Final = 4096
"""More pods than a node has."""

Name = Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS)]
Sentence = Annotated[str, msgspec.Meta(max_length=SENTENCE_CHARACTERS)]
Text = Annotated[str, msgspec.Meta(max_length=MESSAGE_CHARACTERS)]
AttemptText = Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS + 2 * (MAX_DIGITS + 1))]
"""The uid, and two numbers."""


def _schema() -> int:
    return SCHEMA


class Versioned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A value on the bus. Its schema comes first and is always written, as a factory's value is."""

    schema: int = msgspec.field(default_factory=_schema)


class Message(Versioned, frozen=True, kw_only=True):
    """A message of a stream. ``config`` is the digest of its writer's configuration."""

    config: Name = ""


class Outcome(StrEnum):
    """What became of an attempt (docs/protocol.md, 5). All are final but ``waiting``."""

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
    """Why an attempt ended in a conflict."""

    NO_CANDIDATE = "no-candidate"
    """No candidate fits any more."""
    CHANGED = "changed"
    """The pod was changed after the ranking."""
    PROPOSALS = "proposals"
    """The pod was unschedulable only because of proposals that are not bound yet."""
    BEHIND = "behind"
    """The pod was rejected on a view that had not read everything that PENDING asked for."""
    VICTIMS = "victims"
    """The binder found other victims than the scorer, or none."""
    FITS = "fits"
    """Preemption was proposed, but by the binder's cache the pod fits on a node without it."""
    VIEW = "view"
    """Preemption was proposed on a view that was old, or had fewer nodes than the binder's cache."""
    VOLUMES = "volumes"
    """Another client changed a volume or claim that the pod was to use."""


Time = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time with its zone: without one it cannot be compared with those that NATS gives."""


class Positions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stream sequence up to which a scorer's view has read each source."""

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


class Heard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a scorer's view had at a ranking besides its ``Positions``, so that the ranking can be made again.

    ``ranked``: the sequence in RANKED up to which its peers' rankings counted; its own count from the ranking on.
    ``pending``: the newest message of PENDING that it had received, whose time is the least that its clock shows.
    ``expired``: the pods whose proposals had expired since this scorer's last ranking.
    """

    ranked: int = 0
    pending: int = 0
    expired: Annotated[list[Name], msgspec.Meta(max_length=65536)] = []


_MOST: Final = 2.0**53
"""More than any loss."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One of the K best nodes.

    ``scores`` are weighted and after NormalizeScore, by plugin; ``total`` is their sum. ``pods`` is how many pods the
    scorer counted on the node: proposals are included, the pod itself and nominated pods are not. ``loss`` are the
    points that one more pod like this one costs there, on average of the next four that fit. ``newcomers``, in
    Decisions only, is how many pods more than the scorer the binder counted when it chose. ``place``, in Decisions
    only, is its place in RANKED if Decisions leave out others before it; 0 otherwise. ``details`` are texts by plugin
    that explain its points to a person (a sample's value and age). Only the first few of RANKED have ``scores`` and
    ``details``.

    Python's garbage collection leaves them out (``gc=False``): RANKED has 32 or 64, and none can be part of a cycle.
    """

    node: Name
    total: Int64
    scores: Annotated[dict[Name, Int64], msgspec.Meta(max_length=MOST_PLUGINS)] = {}
    pods: Int64 = 0
    loss: Annotated[float, msgspec.Meta(ge=-_MOST, le=_MOST)] = 0
    newcomers: Int64 = 0
    place: Int64 = 0
    details: Annotated[dict[Name, Sentence], msgspec.Meta(max_length=MOST_PLUGINS)] = {}

    @property
    def estimate(self) -> float:
        """The total that the node has with its newcomers, as far as they are like this pod."""
        return self.total - self.loss * self.newcomers


def by_best_estimate(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The order in which the binder tries the nodes (docs/protocol.md, 5): the highest estimate first.

    Equal ones: the fewest newcomers first, then the scorer's order, which is that of ``candidates``.
    """
    return sorted(candidates, key=lambda each: (each.loss * each.newcomers - each.total, each.newcomers))


def explaining_candidates(candidates: Sequence[Candidate], needed: Sequence[Candidate]) -> list[Candidate]:
    """What a Decision repeats of RANKED's candidates, in their order: those with scores, and the ``needed`` ones.

    That is all that ``berth why`` shows; each that others were left out before has its place in RANKED.
    """
    nodes = {each.node for each in needed}
    kept: list[Candidate] = []
    for place, each in enumerate(candidates, start=1):
        if each.scores or each.node in nodes:
            kept.append(each if place == len(kept) + 1 else msgspec.structs.replace(each, place=place))
    return kept


class Rejection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reason for which nodes were rejected: by which plugin, how many nodes, and some of their names.

    ``resolvable``: evicting pods may help.
    """

    plugin: Sentence
    reason: Sentence
    nodes: int
    examples: Annotated[list[Name], msgspec.Meta(max_length=16)] = []
    resolvable: bool = True


class Victim(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that is evicted for one of higher priority."""

    uid: Name
    namespace: Name
    name: Name


class Preemption(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The node that the pod is nominated to, and the pods to evict there, those of the highest priority first.

    Without victims, pods that are already terminating make enough room. ``violations`` is how many evictions violate a
    PodDisruptionBudget.
    """

    node: Name
    victims: Annotated[list[Victim], msgspec.Meta(max_length=MOST_VICTIMS)] = []
    violations: int = 0


class Pending(Message, frozen=True, kw_only=True):
    """PENDING: rank this pod. ``after`` are the positions that the scorer's view must have reached first.

    ``error``: the pod cannot be ranked, for this reason, and ``pod`` may have only its name. The reason goes on in
    RANKED to the binder, which tells the pod's owner. ``failures`` are the pod's consecutive attempts before this one
    that ended in back-off; RANKED and the Decision repeat the number, for the next watcher.
    """

    attempt: str
    profile: str
    pod: Pod
    failures: int = 0
    after: Positions = Positions()
    error: str = ""


class AttemptReport(Message, frozen=True, kw_only=True):
    """What messages of RANKED and DECISIONS share: the attempt and the result of its ranking.

    ``positions`` and ``view_age_seconds`` are those of the scorer's view. ``blockers`` are the plugins that rejected
    nodes, as they are or after evictions: the events that they registered for may help the pod. ``asked_at``
    is when NATS stored the PENDING message. ``evaluated`` is how many of the ``nodes`` of the scorer's view were tried:
    fewer when the profile's percentageOfNodesToScore was reached, and one when the pod's nominated node passed, which
    is tried first (``nominated_first``). ``nodes`` is ``None`` when ranking failed.
    """

    attempt: AttemptText
    profile: Name
    failures: int = 0
    scorer: Name = ""
    asked_at: Time | None = None
    positions: Positions = Positions()
    view_age_seconds: float | None = None
    evaluated: int = 0
    feasible: int = 0
    nodes: int | None = None
    nominated_first: bool = False
    candidates: Annotated[list[Candidate], msgspec.Meta(max_length=256)] = []
    rejections: Annotated[list[Rejection], msgspec.Meta(max_length=MOST_REJECTIONS)] = []
    blockers: Annotated[list[Name], msgspec.Meta(max_length=MOST_PLUGINS)] = []
    preemption: Preemption | None = None
    message: Text = ""


class Ranked(AttemptReport, frozen=True, kw_only=True):
    """RANKED: the best K nodes, or why there is none, or why ranking failed.

    It has exactly one of the three: ``candidates``, ``rejections`` with ``message``, or ``error``. Next to
    ``rejections``, ``preemption`` is where evictions would make the pod fit, and ``clears_nomination`` means that
    the pod's nomination does not help it. ``proposals_counted``: the rejections may be due to a proposal that is not
    bound yet. ``behind``: they are those of a view that had not read what PENDING asked for. ``heard`` is what else the
    scorer's view had read; ``berth replay`` needs it.
    """

    pod: Pod
    heard: Heard = Heard()
    proposals_counted: bool = False
    behind: bool = False
    clears_nomination: bool = False
    error: Text = ""


class Decision(AttemptReport, frozen=True, kw_only=True):
    """DECISIONS: what became of an attempt, with everything that explains it.

    ``preemption`` is what the binder has evicted, and where. ``resource_versions`` name, on a conflict, the newest
    **object or event** of each kind that the binder had seen: the watcher tries again once its own reflectors have
    reached them. ``repeat`` counts Decisions of the outcome ``waiting``. ``ranked_at`` is when NATS stored RANKED.
    """

    epoch: Annotated[int, msgspec.Meta(ge=0, lt=10**15)]
    outcome: Outcome
    namespace: Name
    pod: Name
    uid: Name
    node: Name = ""
    reason: Name = ""
    repeat: int = 0
    resource_versions: Annotated[dict[Name, Name], msgspec.Meta(max_length=256)] = {}
    ranked_at: Time | None = None


R = TypeVar("R", bound=AttemptReport)

_TEXTS: Final = {
    "message": MESSAGE_CHARACTERS,
    "error": MESSAGE_CHARACTERS,
    "reason": NAME_CHARACTERS,
    "scorer": NAME_CHARACTERS,
}


def within_bounds(report: R) -> R:
    """The report with what is longer than its readers take cut: plugins and the API server may say anything.

    A report of nearly every pod is returned as it is.
    """
    changes: dict[str, object] = {}
    for name, most in _TEXTS.items():
        text = getattr(report, name, "")
        if len(text) > most:
            changes[name] = shortened(text, most)
    if report.rejections:
        changes["rejections"] = [_bounded_rejection(each) for each in report.rejections[:MOST_REJECTIONS]]
    if report.blockers:
        changes["blockers"] = [shortened(name, NAME_CHARACTERS) for name in report.blockers[:MOST_PLUGINS]]
    if report.preemption is not None and len(report.preemption.victims) > MOST_VICTIMS:
        changes["preemption"] = None  # of fewer victims the binder would find that others are needed
    if not _are_within_bounds(report.candidates):
        changes["candidates"] = [_bounded_candidate(each) for each in report.candidates]
    return msgspec.structs.replace(report, **changes) if changes else report


def shortened(text: str, most: int) -> str:
    """The text, with dots at the end where it has more characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _bounded_rejection(given: Rejection) -> Rejection:
    if len(given.plugin) <= SENTENCE_CHARACTERS and len(given.reason) <= SENTENCE_CHARACTERS:
        return given
    plugin, reason = shortened(given.plugin, SENTENCE_CHARACTERS), shortened(given.reason, SENTENCE_CHARACTERS)
    return msgspec.structs.replace(given, plugin=plugin, reason=reason)


def _are_within_bounds(candidates: Sequence[Candidate]) -> bool:
    """Whether their explanations are; all that have points have those of the same plugins."""
    scores = candidates[0].scores if candidates else {}
    if scores and (len(scores) > MOST_PLUGINS or max(map(len, scores)) > NAME_CHARACTERS):
        return False
    return not any(each.details and max(map(len, each.details.values())) > SENTENCE_CHARACTERS for each in candidates)


def _bounded_candidate(given: Candidate) -> Candidate:
    """Without the points of plugins whose names are too long: cut, two of them might be one."""
    named = [name for name in given.scores if len(name) <= NAME_CHARACTERS][:MOST_PLUGINS]
    details = {name: shortened(given.details[name], SENTENCE_CHARACTERS) for name in named if name in given.details}
    return msgspec.structs.replace(given, scores={name: given.scores[name] for name in named}, details=details)


class RankedNode(msgspec.Struct, frozen=True):
    """The name of a candidate; what else RANKED says about it is not read."""

    node: Name


class RankedSummary(Message, frozen=True, kw_only=True):
    """What scorers read of each other's RANKED: the pod, and the node that is proposed for it.

    Everything else is skipped when it is decoded, which takes a third of the time.
    """

    attempt: AttemptText
    pod: Pod
    candidates: Annotated[list[RankedNode], msgspec.Meta(max_length=256)] = []
    preemption: Preemption | None = None
    proposals_counted: bool = False


class DecisionSummary(Message, frozen=True, kw_only=True):
    """What watcher and scorers read of a Decision: what became of the attempt, without what explains it to people.

    Everything else is skipped when it is decoded, which takes a third of the time.
    """

    attempt: AttemptText
    profile: Name
    epoch: Annotated[int, msgspec.Meta(ge=0, lt=10**15)]
    outcome: Outcome
    uid: Name
    node: Name = ""
    reason: Name = ""
    failures: int = 0
    message: Text = ""
    asked_at: Time | None = None
    ranked_at: Time | None = None
    positions: Positions = Positions()
    blockers: Annotated[list[Name], msgspec.Meta(max_length=MOST_PLUGINS)] = []
    resource_versions: Annotated[dict[Name, Name], msgspec.Meta(max_length=256)] = {}


class DeadLetter(Message, frozen=True, kw_only=True):
    """dead: what could not be decoded or failed too often, and why. ``payload`` is cut to a readable length."""

    subject: str
    reason: str
    service: str
    attempt: str = ""
    payload: str = ""


V = TypeVar("V", bound=Versioned)
M = TypeVar("M", bound=Message)


class UnknownSchemaError(DecodeError):
    """A well-formed value of a schema that this reader does not support. A newer process may support it."""


_encoder: Final = msgspec.json.Encoder()


def encode(message: Versioned) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes, kind: type[M]) -> M:
    """Read a message. Raises as :func:`decode_versioned`."""
    return decode_versioned(data, kind, "a message")


def decode_versioned(data: bytes, kind: type[V], what: str) -> V:
    """Read a value of the bus; errors call it ``what``.

    Raises:
        UnknownSchemaError: of another schema.
        DecodeError: anything else that is wrong with it.
    """
    try:
        value: V = decode_json(_decoder(kind), data, f"{what} of {len(data)} bytes")
    except DecodeError:
        # A newer schema may have another shape: then the schema is the error, not the shape.
        _check_schema(_schema_of(data), what)
        raise
    _check_schema(value.schema, what)
    return value


def attempt_of(message: Pending | Ranked) -> Attempt:
    """The attempt of a message. Raises as :func:`check_attempt`, and for a profile with too long a name."""
    attempt = check_attempt(message)
    if len(message.profile.encode()) > NAME_CHARACTERS:
        raise DecodeError(f"decoding a message: want a profile of {NAME_CHARACTERS} bytes at most")
    return attempt


def check_attempt(message: Pending | Ranked | RankedSummary) -> Attempt:
    """The attempt of a message, which is one of its pod.

    Raises:
        DecodeError: it is not written as one, it is of another pod than the message's, or a name can be no object's.
    """
    metadata = message.pod.metadata
    attempt, uid = Attempt.parse(message.attempt), metadata.uid
    if not attempt.uid or attempt.uid != uid:
        raise DecodeError(f"decoding a message: want an attempt of pod {uid!r:.80}, got {message.attempt!r:.80}")
    check_names(metadata)
    return attempt


def check_names(metadata: ObjectMeta) -> None:
    """Check the names and the uid of a message's pod.

    Raises:
        DecodeError: one can be no object's.
    """
    for name in (metadata.uid, metadata.name, metadata.namespace):
        if not _NAME.fullmatch(name):
            want = f"letters, digits, '-', '_' and '.', {NAME_CHARACTERS} at most"
            raise DecodeError(f"decoding a message: want names of {want}, got {name!r:.80}")


@cache
def _decoder(kind: type[V]) -> msgspec.json.Decoder[V]:
    return msgspec.json.Decoder(kind)


class _Schema(msgspec.Struct):
    schema: int


_schema_decoder: Final = msgspec.json.Decoder(_Schema)


def _schema_of(data: bytes) -> int:
    """The schema of a value of unknown shape; ``SCHEMA`` when it has none that can be read."""
    try:
        return decode_json(_schema_decoder, data, "a schema").schema
    except DecodeError:
        return SCHEMA


def _check_schema(schema: int, what: str) -> None:
    if schema != SCHEMA:
        raise UnknownSchemaError(f"decoding {what}: want schema {SCHEMA}, got {schema}")


WATERMARK: Final = "watermark"
"""The first token of a watermark's key: ``watermark.<kind>``."""


class Mirrored(Versioned, frozen=True, kw_only=True):
    """A value of the bucket. ``term`` is that of the watcher that wrote it."""

    term: Annotated[Term, msgspec.Meta(ge=0, lt=10**15)]


class MirrorEntry(Mirrored, frozen=True, kw_only=True):
    """An object, trimmed to what plugins read.

    ``object`` is its JSON. ``bound_at``, of pods on a node only, is the RFC 3339 time at which it was bound, if the
    watcher has it.
    """

    object: msgspec.Raw = msgspec.Raw(b"null")
    bound_at: str | None = None


class Watermark(Mirrored, frozen=True, kw_only=True):
    """A kind is complete up to this resourceVersion. Its age is that of the message, by NATS' clock."""

    resource_version: str


def encode_entry(entry: MirrorEntry) -> bytes:
    return encode(entry)


def decode_entry(data: bytes) -> MirrorEntry:
    """Read an entry; ``object`` is JSON of any shape.

    Raises:
        UnknownSchemaError: of another schema.
        DecodeError: anything else that is wrong with it.
    """
    return decode_versioned(data, MirrorEntry, "a mirrored value")


def watermark_key(kind: str) -> str:
    """The key of a kind's watermark."""
    return key(WATERMARK, kind)


def encode_watermark(watermark: Watermark) -> bytes:
    return encode(watermark)


def decode_watermark(data: bytes) -> Watermark:
    """Read a watermark. Raises as :func:`decode_entry`."""
    return decode_versioned(data, Watermark, "a mirrored value")
