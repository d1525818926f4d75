"""What goes into the binder's core and what comes out: events, and effects that the runner carries out.

A request to the API server is an effect; its answer comes back as an event. An answer is an HTTP status with the
server's message; no answer at all is status 0. Structs, because several are made for each pod: a frozen dataclass takes
five times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final

import msgspec

from berth.api.pod import Pod
from berth.framework.interface import Write
from berth.messages.attempts import Decision, Ranked
from berth.messages.subjects import Attempt

NO_ANSWER: Final = 0
"""The status of a request that was not answered."""
_OPEN: Final = frozenset({NO_ANSWER, HTTPStatus.UNAUTHORIZED, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})


def leaves_open(status: int) -> bool:
    """Whether an answer leaves the pod undecided: no answer, server overloaded or failing, not authenticated."""
    return status in _OPEN or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def may_have_been_executed(status: int) -> bool:
    """Whether the API server may execute a request, now or later, that it answered so."""
    return status in {NO_ANSWER, HTTPStatus.REQUEST_TIMEOUT} or status >= HTTPStatus.INTERNAL_SERVER_ERROR


# Events.


class RankedDelivery(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A RANKED message was delivered. It is held until its effect is durable."""

    ranked: Ranked
    attempt: Attempt
    sequence: int
    """The message's sequence in the stream. Bindings are started in this order."""
    delivery: Any
    """The bus's object for the message; the core only passes it back."""
    is_suspect: bool = False
    """Whether a former binder may have ended while it bound this pod: it left the message, and not in good order."""


class RequestAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The API server answered a request for the pod of this uid, or did not."""

    uid: str
    status: int
    message: str = ""
    retry_after: timedelta | None = None
    missing_right: str = ""
    """The RBAC rule to add, if berth's account lacks one."""

    @property
    def is_open(self) -> bool:
        """Whether it leaves the pod undecided."""
        return leaves_open(self.status)

    @property
    def reason(self) -> str:
        """Why the API server has refused it, for users."""
        return self.missing_right or self.message or "no reason given"

    @property
    def succeeded(self) -> bool:
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES


class BindingAnswer(RequestAnswer, frozen=True, kw_only=True):
    """The answer to the POST of a Binding, or what the API server shows after an extender was to bind the pod."""

    failure: str = ""
    """Why the extender has not bound it, for users."""


class PodAnswer(RequestAnswer, frozen=True, kw_only=True):
    """The answer to the GET of a pod, or to ``VoidBindings``."""

    pod: Pod | None = None
    """The pod of that name, when there is one."""


class EvictionAnswer(RequestAnswer, frozen=True, kw_only=True):
    """The answer to evictions and the nomination after them: to the first request that failed, or else to the last."""

    pod: Pod | None = None
    """The preemptor with its nominated node, when all succeeded."""


class VolumesAnswer(RequestAnswer, frozen=True, kw_only=True):
    """The answer to the writes before a Binding: to the first that failed, or else to the last."""

    versions: Mapping[str, int] = msgspec.field(default_factory=dict)
    """The highest resourceVersion that was written, by kind."""


class NominationCleared(RequestAnswer, frozen=True, kw_only=True):
    """The answer to ``ClearNomination``."""


class RequestFailed(msgspec.Struct, frozen=True, kw_only=True):
    """A request for the pod of this uid ended in an exception: a bug, or an answer that cannot be read."""

    uid: str
    error: str


class TryCounted(msgspec.Struct, frozen=True, kw_only=True):
    """The bus has stored that the pod of this uid is begun: ``tries`` times by binders that have not finished it."""

    uid: str
    tries: int


class DecisionStored(msgspec.Struct, frozen=True, kw_only=True):
    """The stream has acknowledged the Decision (PubAck)."""

    decision: Decision


class PodShown(msgspec.Struct, frozen=True, kw_only=True):
    """The watch shows a pod, or its end, for which an attempt waits."""

    uid: str


Answer = BindingAnswer | PodAnswer | EvictionAnswer | VolumesAnswer | NominationCleared
"""The answers of the API server."""


class DecisionNotStored(msgspec.Struct, frozen=True, kw_only=True):
    """The stream has not acknowledged a Decision in time, or has refused it for now."""

    publish: PublishDecision


Event = RankedDelivery | Answer | RequestFailed | TryCounted | DecisionStored | DecisionNotStored | PodShown


# Effects.


class PostBinding(msgspec.Struct, frozen=True, kw_only=True):
    """POST a Binding to the node; the pod's uid and resourceVersion are its preconditions. -> BindingAnswer."""

    pod: Pod
    node: str
    by_extender: bool = False
    """Whether an extender binds it, without these preconditions."""


class GetPod(msgspec.Struct, frozen=True, kw_only=True):
    """GET the pod. -> PodAnswer."""

    pod: Pod


class VoidBindings(msgspec.Struct, frozen=True, kw_only=True):
    """Write the pod's status, so that no Binding that was sent before can land any more. -> PodAnswer."""

    pod: Pod


class EvictPods(msgspec.Struct, frozen=True, kw_only=True):
    """Evict the victims from the node and nominate it for the pod. -> EvictionAnswer."""

    pod: Pod
    node: str
    victims: tuple[Pod, ...]


class ClearNomination(msgspec.Struct, frozen=True, kw_only=True):
    """Clear the pod's nominated node. -> NominationCleared."""

    pod: Pod


class WriteVolumes(msgspec.Struct, frozen=True, kw_only=True):
    """Carry out the writes of PreBind plugins. -> VolumesAnswer."""

    pod: Pod
    requests: tuple[Write, ...]


class CountTry(msgspec.Struct, frozen=True, kw_only=True):
    """Store that the pod of this uid is begun once more, where it outlives the process. -> TryCounted."""

    uid: str


class ClearTries(msgspec.Struct, frozen=True, kw_only=True):
    """Remove the count: this binder goes on without the pod. There is no answer."""

    uid: str


class PublishDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Publish a Decision about the held message. -> DecisionStored, DecisionNotStored."""

    decision: Decision
    held: RankedDelivery
    dead_letter: bool = False
    """Whether to copy the message to ``dead`` before: it has failed too often."""
    is_repeat: bool = False
    """Whether it was published before: after a pause then."""


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """The message's effect is durable: acknowledge it."""

    held: RankedDelivery


class Nak(msgspec.Struct, frozen=True, kw_only=True):
    """Have the message delivered again after the delay: another binder may be able to use it."""

    held: RankedDelivery
    delay: timedelta


class RejectRanked(msgspec.Struct, frozen=True, kw_only=True):
    """Copy the message to ``dead`` and acknowledge it: it can never be used."""

    held: RankedDelivery
    reason: str


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """Keep the message without counting it among those that may be held: its pod waits (docs/protocol.md, 5)."""

    held: RankedDelivery


class RecordEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Record the Decision on the pod: Event and condition, as their budget allows."""

    decision: Decision
    pod: Pod


class LogError(msgspec.Struct, frozen=True, kw_only=True):
    """Log what an operator must change; the runner logs each text once."""

    text: str


ApiRequest = PostBinding | GetPod | VoidBindings | EvictPods | ClearNomination | WriteVolumes
"""The requests to the API server."""

Effect = (
    ApiRequest | CountTry | ClearTries | PublishDecision | Ack | Nak | RejectRanked | SetAside | RecordEvent | LogError
)
