"""What goes into the scorer's core and what comes out of it.

Events are what the bus shows and what the shell (``berth_scorer.service``) answers to effects. Effects come out; the
shell carries them out. ``held`` names a message of PENDING that this scorer has not settled.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from berth.api.node import Node
from berth.api.pod import Pod
from berth.bus.interface import Delivery, Entry, StoredMessage
from berth.framework.cycle import ToExtend
from berth.framework.extending import Evictions, Extension
from berth.framework.interface import Nomination
from berth.framework.plugincalls import Timing
from berth.messages.attempts import Pending, Ranked

SUSPECT_DELIVERIES: Final = 4
"""From this delivery on, ranking the message may be what ends scorers: it is ranked alone (docs/protocol.md, 6.4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDelivery:
    """A delivery of PENDING. ``taken_at`` is in monotonic seconds.

    Namespaces take turns among consecutive messages of the same ``rank``.
    """

    delivery: Delivery
    pending: Pending
    taken_at: float
    rank: Hashable = None

    @property
    def sequence(self) -> int:
        """The message's sequence in PENDING."""
        return self.delivery.sequence

    @property
    def is_suspect(self) -> bool:
        """Whether the message was delivered so often that ranking it may be what ends scorers."""
        return self.delivery.delivered >= SUSPECT_DELIVERIES


# --- events


class PendingReceived(msgspec.Struct, frozen=True, kw_only=True):
    """PENDING delivers a message of a known profile."""

    delivery: Delivery
    pending: Pending


class MirrorRead(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of the bucket ``cluster``, which is read up to ``position``."""

    entries: Sequence[Entry]
    position: int


class DecisionsRead(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of DECISIONS, which is read up to ``position``."""

    batch: Sequence[StoredMessage]
    position: int


class LiveDataRead(msgspec.Struct, frozen=True, kw_only=True):
    """The Snapshot has everything of a bucket of live data up to ``position``."""

    bucket: str
    position: int


class PeerRankingRead(msgspec.Struct, frozen=True, kw_only=True):
    """RANKED has stored another scorer's ranking, or one that is not known to be this scorer's own."""

    stored: StoredMessage


class OwnRankingRead(msgspec.Struct, frozen=True, kw_only=True):
    """RANKED has stored, at this sequence, what this scorer has sent."""

    sequence: int


class RankedStored(msgspec.Struct, frozen=True, kw_only=True):
    """-> PublishRanked: RANKED has the answer to this message of PENDING."""

    sequence: int


class RankedNotStored(msgspec.Struct, frozen=True, kw_only=True):
    """-> PublishRanked: the answer is not known to be stored."""

    sequence: int


class RankedRefused(msgspec.Struct, frozen=True, kw_only=True):
    """-> PublishRanked: RANKED can never store the answer."""

    sequence: int
    reason: str


class DeadLetterStored(msgspec.Struct, frozen=True, kw_only=True):
    """-> WriteDeadLetter in place of an answer: it is stored, or not."""

    sequence: int
    is_stored: bool


class ExtendersAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """-> AskExtenders."""

    sequence: int
    extension: Extension


class EvictionsAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """-> AskAboutEvictions."""

    sequence: int
    evictions: Evictions


class ExtendersFailed(msgspec.Struct, frozen=True, kw_only=True):
    """-> AskExtenders, AskAboutEvictions: the pod's error."""

    sequence: int
    reason: str


class SuspectCounted(msgspec.Struct, frozen=True, kw_only=True):
    """-> CountSuspect: this many scorers in a row, this one included, have begun to rank the attempt."""

    tries: int


class SuspectNotCounted(msgspec.Struct, frozen=True, kw_only=True):
    """-> CountSuspect: NATS has not stored the count."""


ReadEvent = MirrorRead | DecisionsRead | LiveDataRead | PeerRankingRead
"""What a scorer and a shadow read to come to their view."""
Event = (
    ReadEvent
    | PendingReceived
    | OwnRankingRead
    | RankedStored
    | RankedNotStored
    | RankedRefused
    | DeadLetterStored
    | ExtendersAnswered
    | EvictionsAnswered
    | ExtendersFailed
    | SuspectCounted
    | SuspectNotCounted
)


# --- effects


class PublishRanked(msgspec.Struct, frozen=True, kw_only=True):
    """Publish an answer. -> RankedStored, RankedNotStored, RankedRefused."""

    held: PendingDelivery
    message: Ranked
    headers: Mapping[str, str]


class WriteDeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """Publish a dead letter that quotes the message. ``in_place_of_answer``: -> DeadLetterStored."""

    held: PendingDelivery
    reason: str
    in_place_of_answer: bool = False


class AckPending(msgspec.Struct, frozen=True, kw_only=True):
    """Acknowledge a message of PENDING."""

    delivery: Delivery


class NakPending(msgspec.Struct, frozen=True, kw_only=True):
    """Have a message of PENDING redelivered, to this or another scorer. ``at_once``, or after a pause."""

    delivery: Delivery
    at_once: bool = False


class SetAsidePending(msgspec.Struct, frozen=True, kw_only=True):
    """A newer delivery of the message has come: this one does not count among those that may be held."""

    delivery: Delivery


class KeepAlive(msgspec.Struct, frozen=True, kw_only=True):
    """Send ``in_progress`` for every held message, and show the core's figures."""

    deliveries: Sequence[Delivery]


class AskExtenders(msgspec.Struct, frozen=True, kw_only=True):
    """Ask extenders which nodes they leave. -> ExtendersAnswered, ExtendersFailed."""

    held: PendingDelivery
    to_extend: ToExtend
    nodes: Mapping[str, Node]


class AskAboutEvictions(msgspec.Struct, frozen=True, kw_only=True):
    """Ask extenders which evictions they leave. -> EvictionsAnswered, ExtendersFailed."""

    held: PendingDelivery
    candidates: Sequence[Nomination]
    victims: Mapping[str, Pod]


class CountSuspect(msgspec.Struct, frozen=True, kw_only=True):
    """Store that this scorer begins an attempt; the count outlives it. -> SuspectCounted, SuspectNotCounted."""

    held: PendingDelivery


class ClearSuspect(msgspec.Struct, frozen=True, kw_only=True):
    """Remove the count: this scorer goes on after ranking the attempt."""

    held: PendingDelivery


class ObserveRanking(msgspec.Struct, frozen=True, kw_only=True):
    """A pod was ranked, in ``seconds``, ``held_seconds`` after it was received. ``traceparent`` is the span's."""

    message: Ranked
    timing: Timing
    seconds: float
    held_seconds: float
    traceparent: str
    is_recorded: bool


class LogFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Code of berth or of a plugin has raised for a pod."""

    text: str
    attempt: str
    error: Exception


class ReportUndecodable(msgspec.Struct, frozen=True, kw_only=True):
    """A reader leaves out what cannot be decoded."""

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
    | AskAboutEvictions
    | CountSuspect
    | ClearSuspect
    | ObserveRanking
    | LogFailure
    | ReportUndecodable
)
