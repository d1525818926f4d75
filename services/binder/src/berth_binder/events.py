"""The core's events and effects.

A request to the API server is an effect; its answer is an event with an HTTP status and the server's message. Structs,
because several are made for each pod and a frozen dataclass takes five times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import msgspec

from berth.api.node import Node
from berth.api.pod import Pod
from berth.api.podgroups import PodGroup
from berth.framework.interface import CreateClaim, FreeClaim, Nomination, ReleaseClaim, ReserveClaim, Write
from berth.framework.preemption import Evictions
from berth.messages.attempts import Decision, Ranked, Reason
from berth.messages.groupattempts import GroupRanked
from berth.messages.subjects import TRACEPARENT, Attempt, trace_of_pod

ClaimKey = tuple[str, str]  # namespace and name of a ResourceClaim

NO_ANSWER: Final = 0  # status of a request without an answer
_OPEN: Final = frozenset({NO_ANSWER, HTTPStatus.UNAUTHORIZED, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})


def leaves_open(status: int) -> bool:
    """Whether an answer leaves the pod undecided: no answer, server overloaded or failing, not authenticated."""
    return status in _OPEN or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def may_have_been_executed(status: int) -> bool:
    """Whether the API server may carry out a request, now or later, after this answer."""
    return status in {NO_ANSWER, HTTPStatus.REQUEST_TIMEOUT} or status >= HTTPStatus.INTERNAL_SERVER_ERROR


# Events.


class RankedDelivery(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A delivered RANKED message, held until its effect is durable."""

    ranked: Ranked
    attempt: Attempt
    sequence: int  # in the stream; Bindings are started in this order
    delivery: Any  # the bus's Delivery, which the core only passes back
    # Whether a former binder left the message when it crashed: it may have crashed on this pod.
    is_suspect: bool = False
    # Whether the watch showed no such pod when it came. -> Strays
    is_stray: bool = False


class GroupDelivery(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A delivered RANKED of a group, held until its effect is durable; otherwise as of a pod."""

    ranked: GroupRanked
    attempt: Attempt  # the group's
    sequence: int
    delivery: Any
    is_suspect: bool = False


Held = RankedDelivery | GroupDelivery


class MemberDelivery:
    """A member's part of a group's message, which is settled as a whole."""

    def __init__(self, delivery: Any, uid: str) -> None:
        self._delivery = delivery
        self.headers: Mapping[str, str] = {TRACEPARENT: trace_of_pod(uid)}

    @property
    def time(self) -> datetime:
        time: datetime = self._delivery.time
        return time

    def ack(self) -> None:
        """Nothing: the group's message is acknowledged with its last member."""

    def in_progress(self) -> None:
        """Nothing."""

    def set_aside(self) -> None:
        """Nothing."""


class RequestAnswer(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    status: int
    message: str = ""
    retry_after: timedelta | None = None
    missing_right: str = ""  # the RBAC rule to add, if berth's account lacks one

    @property
    def is_open(self) -> bool:
        """Whether it leaves the pod undecided."""
        return leaves_open(self.status)

    @property
    def reason(self) -> str:
        """The reason of the API server's rejection, for users."""
        return self.missing_right or self.message or "no reason given"

    @property
    def succeeded(self) -> bool:
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES


class BindingAnswer(RequestAnswer, frozen=True, kw_only=True):
    """The answer to a Binding, with the pod's state after an extender was to bind it."""

    failure: str = ""  # of the extender, for users


class RehearsalAnswer(RequestAnswer, frozen=True, kw_only=True):
    """The answer to ``RehearseBinding``."""


class PodAnswer(RequestAnswer, frozen=True, kw_only=True):
    """The answer to the GET of a pod, or to ``VoidBindings``."""

    pod: Pod | None = None  # the pod of that name, if it exists


class EvictionAnswer(RequestAnswer, frozen=True, kw_only=True):
    """The answer to evictions and the nomination after them: to the first failed request, or else to the last."""

    pod: Pod | None = None  # the preemptor with its nominated node, if all succeeded


class WritesAnswer(RequestAnswer, frozen=True, kw_only=True):
    """The answer to the writes before a Binding: to the first failed one, or else to the last."""

    versions: Mapping[str, int] = msgspec.field(default_factory=dict)  # highest written resourceVersion by kind
    conflict: str = Reason.VOLUMES  # what changed meanwhile, if the status is 404 or 409


class ReleaseAnswer(RequestAnswer, frozen=True, kw_only=True):
    """The answer to ``ReleaseClaims``: to the first failed write, or else to the last."""

    version: int = 0  # highest written resourceVersion


class NominationAnswer(RequestAnswer, frozen=True, kw_only=True):
    """The answer to ``Nominate``."""

    pod: Pod | None = None  # with its nominated node, if it was written


class NominationCleared(RequestAnswer, frozen=True, kw_only=True):
    """The answer to ``ClearNomination``."""


class EvictionsAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """Extenders have answered about evictions for this pod, or failed. -> AskAboutEvictions."""

    pod: Pod
    evictions: Evictions


class NodesAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """Extenders have filtered these nodes for this pod, or one has failed. -> AskAboutNodes."""

    pod: Pod
    asked: frozenset[str]
    left: frozenset[str] = frozenset()
    failure: str = ""


class RequestFailed(msgspec.Struct, frozen=True, kw_only=True):
    """A request for the pod of this uid raised an exception: a bug, or an unreadable answer."""

    uid: str
    error: str


class TryCounted(msgspec.Struct, frozen=True, kw_only=True):
    """The bus has stored the count of binders that began the pod of this uid and did not finish it."""

    uid: str
    tries: int


class DecisionStored(msgspec.Struct, frozen=True, kw_only=True):
    """The stream has acknowledged the Decision (PubAck)."""

    decision: Decision


class PodShown(msgspec.Struct, frozen=True, kw_only=True):
    """The watch shows an awaited pod, its end, or the writes before its Binding."""

    uid: str


# Of the API server.
Answer = (
    BindingAnswer
    | RehearsalAnswer
    | PodAnswer
    | EvictionAnswer
    | WritesAnswer
    | ReleaseAnswer
    | NominationAnswer
    | NominationCleared
)


class DecisionNotStored(msgspec.Struct, frozen=True, kw_only=True):
    """The stream has not acknowledged a Decision in time, or has rejected it for now."""

    publish: PublishDecision


Event = (
    RankedDelivery
    | GroupDelivery
    | Answer
    | EvictionsAnswered
    | NodesAnswered
    | RequestFailed
    | TryCounted
    | DecisionStored
    | DecisionNotStored
    | PodShown
)


# Effects.


class PostBinding(msgspec.Struct, frozen=True, kw_only=True):
    """POST a Binding to the node; the pod's uid and resourceVersion are its preconditions. -> BindingAnswer."""

    pod: Pod
    node: str
    by_extender: bool = False  # then without these preconditions


class RehearseBinding(msgspec.Struct, frozen=True, kw_only=True):
    """POST the Binding as a dry run, which binds nothing. -> RehearsalAnswer."""

    pod: Pod
    node: str


class GetPod(msgspec.Struct, frozen=True, kw_only=True):
    """GET the pod. -> PodAnswer. ``keeps_whole``: with its complete JSON, for extenders."""

    pod: Pod
    keeps_whole: bool = False


class VoidBindings(msgspec.Struct, frozen=True, kw_only=True):
    """Write the pod's status, so that no earlier Binding can land any more. -> PodAnswer."""

    pod: Pod


class EvictPods(msgspec.Struct, frozen=True, kw_only=True):
    """Evict the victims from the node and nominate it for the pod. -> EvictionAnswer."""

    pod: Pod
    node: str
    victims: tuple[Pod, ...]


class Nominate(msgspec.Struct, frozen=True, kw_only=True):
    """Write the pod's nominated node before a wait, for other schedulers and autoscalers. -> NominationAnswer."""

    pod: Pod
    node: str


class ClearNomination(msgspec.Struct, frozen=True, kw_only=True):
    """Clear the pod's nominated node. -> NominationCleared."""

    pod: Pod


class WriteObjects(msgspec.Struct, frozen=True, kw_only=True):
    """Carry out the writes of PreBind plugins. -> WritesAnswer."""

    pod: Pod
    requests: tuple[Write, ...]

    @property
    def claims(self) -> Iterator[ClaimKey]:
        """The ResourceClaims that it writes."""
        for each in self.requests:
            if isinstance(each, ReserveClaim):
                yield each.claim.namespace, each.claim.name
            elif isinstance(each, CreateClaim):
                yield each.claim.metadata.namespace, each.claim.metadata.name


class AskAboutNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Ask extenders which of these nodes, on which the pod fits, they keep. ``nodes``: by name. -> NodesAnswered."""

    pod: Pod
    nodes: Mapping[str, Node]


class ReleaseClaims(msgspec.Struct, frozen=True, kw_only=True):
    """Take back what was written to claims. -> ReleaseAnswer.

    ``voids``: a write for the pod may have no answer; it must fail when it arrives.
    """

    pod: Pod
    requests: tuple[ReleaseClaim | FreeClaim, ...]
    voids: bool = False

    @property
    def claims(self) -> Iterator[ClaimKey]:
        """The ResourceClaims that it may write."""
        return ((each.claim.namespace, each.claim.name) for each in self.requests)


class AskAboutEvictions(msgspec.Struct, frozen=True, kw_only=True):
    """Ask extenders which of these evictions they keep. ``victims``: by uid. -> EvictionsAnswered."""

    pod: Pod
    candidates: Sequence[Nomination]
    victims: Mapping[str, Pod]


class CountTry(msgspec.Struct, frozen=True, kw_only=True):
    """Store in a bucket that a binder begins the pod of this uid once more. -> TryCounted."""

    uid: str


class ClearTries(msgspec.Struct, frozen=True, kw_only=True):
    """Remove the count: this binder has survived the pod. Has no answer."""

    uid: str


class PublishDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Publish a Decision on the held message. -> DecisionStored, DecisionNotStored."""

    decision: Decision
    held: Held
    dead_letter: bool = False  # whether to copy the message to dead before, after too many failures
    is_repeat: bool = False  # whether it was published before; then after a pause


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """The message's effect is durable: acknowledge it."""

    held: Held


class PutOff(msgspec.Struct, frozen=True, kw_only=True):
    """Have the message redelivered, within bounds, because a newer binder may understand it; else reject it."""

    held: Held
    reason: str


class RejectRanked(msgspec.Struct, frozen=True, kw_only=True):
    """Copy an unusable message to ``dead`` and acknowledge it."""

    held: Held
    reason: str


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """Keep the message of a waiting pod without counting it against ``max_unacked`` (docs/protocol.md, 5)."""

    held: Held


class RecordEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Record the Decision on the pod: Event and condition, as their budget allows."""

    decision: Decision
    pod: Pod


class GroupState(Enum):
    GATED = auto()
    PARTIAL = auto()  # for longer than its timeout
    EVICTED = auto()  # for that reason
    EARMARKED = auto()  # it has waited long for room
    WHOLE = auto()


class GroupReport(NamedTuple):
    """``group`` is None without a PodGroup; ``pods`` wait. ``was_whole``: its condition says so, and stays."""

    state: GroupState
    group: PodGroup | None
    pods: list[Pod]
    message: str = ""
    was_whole: bool = False


class RecordGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Record a group's Decision: an Event on its PodGroup, and the condition of each pod that waits for it."""

    decision: Decision
    group: PodGroup
    pods: tuple[Pod, ...]


class LogMissingRight(msgspec.Struct, frozen=True, kw_only=True):
    """Log once, by text, the RBAC rule to add."""

    text: str


# To the API server.
ApiRequest = (
    PostBinding
    | RehearseBinding
    | GetPod
    | VoidBindings
    | EvictPods
    | Nominate
    | ClearNomination
    | WriteObjects
    | ReleaseClaims
)

Effect = (
    ApiRequest
    | AskAboutEvictions
    | AskAboutNodes
    | CountTry
    | ClearTries
    | PublishDecision
    | Ack
    | PutOff
    | RejectRanked
    | SetAside
    | RecordEvent
    | RecordGroup
    | LogMissingRight
)
