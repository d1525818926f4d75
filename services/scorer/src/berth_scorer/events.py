"""Events and effects of the scorer's core.

Events are reads from the bus, and the results of effects. ``berth_scorer.effects`` carries the effects out. ``held``
names an unsettled PENDING message; `->` leads to the effect that an event answers, or to an effect's answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from berth.api.node import Node
from berth.api.pod import Pod
from berth.bus.interface import Delivery, Entry, StoredMessage
from berth.framework.cycle import ToExtend
from berth.framework.extending import Extension
from berth.framework.plugincalls import Timing
from berth.messages.attempts import Pending, Ranked
from berth.messages.groupattempts import GroupPending, GroupRanked


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDelivery:
    """A delivery of PENDING, about a pod or a group. ``taken_at`` is in monotonic seconds.

    Namespaces take turns among consecutive messages of the same ``rank``.
    """

    delivery: Delivery
    pending: Pending | GroupPending
    sequence: int  # in the stream
    taken_at: float
    rank: Hashable = None
    is_suspect: bool = False  # it may have ended scorers, and is ranked alone

    @property
    def namespace(self) -> str:
        pending = self.pending
        return pending.pod.metadata.namespace if isinstance(pending, Pending) else pending.group.namespace


# --- events


class PendingReceived(msgspec.Struct, frozen=True, kw_only=True):
    """PENDING delivers a message of a known profile."""

    delivery: Delivery
    pending: Pending | GroupPending


class MirrorRead(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of the bucket ``cluster``, read up to ``position``."""

    entries: Sequence[Entry]
    position: int


class DecisionsRead(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of DECISIONS, read up to ``position``."""

    batch: Sequence[StoredMessage]
    position: int


class LiveDataRead(msgspec.Struct, frozen=True, kw_only=True):
    """The Snapshot has all of ``bucket`` up to ``position``."""

    bucket: str
    position: int


class PeerRankingRead(msgspec.Struct, frozen=True, kw_only=True):
    """RANKED has stored a ranking of a peer, or one not recognized as this scorer's own."""

    stored: StoredMessage


class OwnRankingRead(msgspec.Struct, frozen=True, kw_only=True):
    """RANKED has stored this scorer's own ranking at ``sequence``."""

    sequence: int


class CopiesMissed(msgspec.Struct, frozen=True, kw_only=True):
    """``count`` messages of RANKED up to ``sequence`` were stored, and their copies did not arrive."""

    sequence: int
    count: int


class RankedStored(msgspec.Struct, frozen=True, kw_only=True):
    """-> PublishRanked: RANKED has the answer."""

    sequence: int


class RankedNotStored(msgspec.Struct, frozen=True, kw_only=True):
    """-> PublishRanked: the answer may not be stored."""

    sequence: int


class RankedRefused(msgspec.Struct, frozen=True, kw_only=True):
    """-> PublishRanked: RANKED can never store the answer."""

    sequence: int
    reason: str


class DeadLetterStored(msgspec.Struct, frozen=True, kw_only=True):
    """-> WriteDeadLetter in place of an answer."""

    sequence: int
    is_stored: bool


class ExtendersAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """-> AskExtenders."""

    sequence: int
    extension: Extension


class ExtendersFailed(msgspec.Struct, frozen=True, kw_only=True):
    """-> AskExtenders, AskAboutEvictions: the pod's error."""

    sequence: int
    reason: str


class SuspectCounted(msgspec.Struct, frozen=True, kw_only=True):
    """-> CountSuspect: ``tries`` scorers in a row, this one included, have begun to rank the attempt."""

    tries: int


class SuspectNotCounted(msgspec.Struct, frozen=True, kw_only=True):
    """-> CountSuspect: NATS has not stored the count."""


ReadEvent = MirrorRead | DecisionsRead | LiveDataRead | PeerRankingRead  # read by scorers and shadows into their view
Event = (
    ReadEvent
    | PendingReceived
    | OwnRankingRead
    | CopiesMissed
    | RankedStored
    | RankedNotStored
    | RankedRefused
    | DeadLetterStored
    | ExtendersAnswered
    | ExtendersFailed
    | SuspectCounted
    | SuspectNotCounted
)


# --- effects


class PublishRanked(msgspec.Struct, frozen=True, kw_only=True):
    """Publish an answer. -> RankedStored, RankedNotStored, RankedRefused."""

    held: PendingDelivery
    message: Ranked | GroupRanked
    headers: Mapping[str, str]


class WriteDeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """Publish a dead letter that quotes the message. ``in_place_of_answer``: -> DeadLetterStored."""

    held: PendingDelivery
    reason: str
    in_place_of_answer: bool = False


class AckPending(msgspec.Struct, frozen=True, kw_only=True):
    delivery: Delivery


class NakPending(msgspec.Struct, frozen=True, kw_only=True):
    """Have a PENDING message redelivered, ``at_once`` or after a pause."""

    delivery: Delivery
    at_once: bool = False


class SetAsidePending(msgspec.Struct, frozen=True, kw_only=True):
    """Stop counting this delivery as held, because a newer one of the same message has come."""

    delivery: Delivery


class KeepAlive(msgspec.Struct, frozen=True, kw_only=True):
    """Send ``in_progress`` for all held messages and set the gauges."""

    deliveries: Sequence[Delivery]


class AskExtenders(msgspec.Struct, frozen=True, kw_only=True):
    """Ask extenders to filter nodes for ``pod``: a member if a group is held. -> ExtendersAnswered, ExtendersFailed."""

    held: PendingDelivery
    pod: Pod
    to_extend: ToExtend
    nodes: Mapping[str, Node]


class CountMissedCopies(msgspec.Struct, frozen=True, kw_only=True):
    """So many peers' rankings did not arrive, and do not count here."""

    count: int


class CountSuspect(msgspec.Struct, frozen=True, kw_only=True):
    """Store the start of an attempt's ranking; the count outlives this scorer. -> SuspectCounted, SuspectNotCounted."""

    held: PendingDelivery


class ClearSuspect(msgspec.Struct, frozen=True, kw_only=True):
    """Remove the count: this scorer survived the ranking."""

    held: PendingDelivery


class ObserveRanking(msgspec.Struct, frozen=True, kw_only=True):
    """A pod was ranked in ``seconds``, ``held_seconds`` after its receipt. ``traceparent`` belongs to the span."""

    message: Ranked
    timing: Timing
    seconds: float
    held_seconds: float
    traceparent: str
    is_recorded: bool


class ObservePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A group was planned, which began at ``began`` by the stopwatch. Otherwise as ``ObserveRanking``."""

    message: GroupRanked
    began: float
    held_seconds: float
    traceparent: str


class LogFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Code of berth or of a plugin has raised for a pod."""

    text: str
    attempt: str
    error: Exception


class ReportUndecodable(msgspec.Struct, frozen=True, kw_only=True):
    """A reader has skipped an undecodable message."""

    subject: str
    reason: str


Effect = (
    PublishRanked
    | WriteDeadLetter
    | AckPending
    | NakPending
    | SetAsidePending
    | KeepAlive
    | AskExtenders
    | CountMissedCopies
    | CountSuspect
    | ClearSuspect
    | ObserveRanking
    | ObservePlan
    | LogFailure
    | ReportUndecodable
)
