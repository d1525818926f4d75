"""What the core asks its shell to do. Each effect is one request; its answer comes back as an event of the core.

What becomes of an attempt, before it is a message.

What each answer of the API server to a Binding, and to the reading of a pod, means (PROTOCOL 5). Pure tables.

An answer is an HTTP status with the server's words; no answer at all is status 0. What leaves open whether the Binding
was or will be carried out is never an outcome: the pod is read, and the same node is tried again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from http import HTTPStatus
from typing import Any, Final

from berth.api.messages import Decision, Outcome, Preemption, Reason, Rejection
from berth.api.pod import Pod, changed, is_gated, is_gone_while_unbound
from berth.framework import interface
from berth.framework.status import Status


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankedMessage:
    """A RANKED message lent by the bus. ``delivery`` is the shell's own; the core only hands it back."""

    sequence: int
    """In the stream: the order in which POSTs are started."""
    delivery: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """Start a Binding: the pod as this uid and resourceVersion, to this node."""

    pod: Pod
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetPod:
    """Read the pod from the API server."""

    pod: Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """Have these pods go from the node, and keep it for this one."""

    pod: Pod
    node: str
    victims: tuple[Pod, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demote:
    """Write on the pod that no node is kept for it any more."""

    pod: Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteVolumes:
    """Write what plugins want written before the pod is bound."""

    pod: Pod
    requests: tuple[interface.Write, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Publish a Decision on what ``held`` says. ``bury``: first copy it to ``dead``, we have failed at it too often."""

    decision: Decision
    held: RankedMessage
    bury: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Its effect is durable: the message is done."""

    held: RankedMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Nak:
    """Somebody else may know what to do with it: the message comes again after the delay."""

    held: RankedMessage
    delay: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordEvent:
    """Tell people what became of the pod: Event and condition, when there is room in their budget."""

    decision: Decision
    pod: Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWarning:
    """Say in the log what an operator must mend; the shell says each text once."""

    text: str


Request = Post | GetPod | Evict | Demote | WriteVolumes | Publish
"""What is answered later."""

Effect = Request | Ack | Nak | RecordEvent | LogWarning


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An outcome with its node, a reason in one word and a message for people, where it has them.

    ``refusals`` replace the scorer's rejections: on a conflict it was the binder who refused. ``preemption``: who was
    evicted for the pod.
    """

    outcome: Outcome
    node: str = ""
    reason: str = ""
    message: str = ""
    refusals: tuple[Rejection, ...] = ()
    blockers: tuple[str, ...] = ()
    preemption: Preemption | None = None


GONE = Verdict(outcome=Outcome.GONE)

CHANGED = Verdict(
    outcome=Outcome.CONFLICT, reason=Reason.CHANGED, message="the pod has changed since it was ranked, or was gated"
)


def bound(node: str) -> Verdict:
    """The API shows or has said that the pod is on the node."""
    return Verdict(outcome=Outcome.BOUND, node=node)


def bound_somewhere(node: str, among: frozenset[str]) -> Verdict:
    """The pod is on a node: one of those that were ours to give, or else somebody else has bound it."""
    if node in among:
        return bound(node)
    return Verdict(outcome=Outcome.GONE, node=node, message=f"the pod was bound to {node} by somebody else")


def failed(message: str, reason: str = "") -> Verdict:
    """The attempt cannot succeed, and people must hear why."""
    return Verdict(outcome=Outcome.ERROR, message=message, reason=reason)


def refused(node: str, status: Status) -> Verdict:
    """A plugin of Reserve, Permit or PreBind does not let the pod onto the node."""
    reasons = ", ".join(status.reasons)
    rejection = Rejection(plugin=status.plugin, reason=reasons, nodes=1, examples=[node])
    return Verdict(outcome=Outcome.UNSCHEDULABLE, message=reasons, refusals=(rejection,), blockers=(status.plugin,))


def waiting(node: str, message: str) -> Verdict:
    """Not decided yet: the room stays reserved, the place in the window is free."""
    return Verdict(outcome=Outcome.WAITING, node=node, message=message)


NO_ANSWER: Final = 0

_OPEN: Final = frozenset({NO_ANSWER, HTTPStatus.UNAUTHORIZED, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """To a Binding. ``missing_right`` is the rule to add where berth's own account lacks one."""

    status: int
    message: str = ""
    retry_after: timedelta | None = None
    missing_right: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it says nothing of the pod: not there, overloaded, not let in."""
        return self.status in _OPEN or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAnswer(Answer):
    """To the reading of a pod; ``pod`` when there is one of that name."""

    pod: Pod | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted(Answer):
    """To the first request about an eviction that failed, or to the last; ``pod`` is the one that it was for."""

    pod: Pod | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Written(Answer):
    """To the first request of a write that failed, or to the last; ``versions`` are what was written, by kind."""

    versions: Mapping[str, int] = field(default_factory=dict)


class Next(Enum):
    """What to do when an answer is no outcome."""

    READ = "read the pod at once"
    PAUSE = "back off, then read the pod"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Try again with this state of the pod."""

    pod: Pod


def after_binding(answer: Answer, node: str) -> Verdict | Next:
    """What an answer to the Binding means."""
    if HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
        return bound(node)
    if answer.status == HTTPStatus.CONFLICT:
        return Next.READ
    if answer.is_open:
        return Next.PAUSE
    return GONE if answer.status == HTTPStatus.NOT_FOUND else _refused(answer)


def after_evicting(evicted: Evicted, node: str, message: str, preemption: Preemption) -> Verdict | Next:
    """What the answers to an eviction mean for the pod that it was for."""
    if evicted.is_open:
        return Next.PAUSE
    if evicted.pod is not None:
        return Verdict(outcome=Outcome.PREEMPTING, node=node, message=message, preemption=preemption)
    if evicted.status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
        return GONE
    return _refused(evicted, "evicting pods for it")


def after_writing(written: Written) -> Verdict | Next | None:
    """What the answers to a write mean; ``None``: it stands. What was changed meanwhile is looked at anew."""
    if written.is_open:
        return Next.PAUSE
    if written.status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
        return Verdict(outcome=Outcome.CONFLICT, reason=Reason.VOLUMES, message=written.message)
    succeeded = HTTPStatus.OK <= written.status < HTTPStatus.MULTIPLE_CHOICES
    return None if succeeded else _refused(written, "what comes before the Binding was")


def after_reading(reading: PodAnswer, ranked: Pod, node: str) -> Verdict | Retry | Next:
    """What the pod as the API shows it means for an attempt on ``node`` that was ranked on ``ranked``."""
    if reading.is_open:
        return Next.PAUSE
    if reading.pod is not None:
        return _after_seeing(reading.pod, ranked, node)
    return GONE if reading.status == HTTPStatus.NOT_FOUND else _refused(reading)


def _after_seeing(pod: Pod, ranked: Pod, node: str) -> Verdict | Retry:
    if pod.uid != ranked.uid:
        return GONE
    if pod.spec.node_name:
        return bound_somewhere(pod.spec.node_name, frozenset({node}))
    if is_gone_while_unbound(pod):
        return GONE
    if changed(ranked, pod) or is_gated(pod):
        return CHANGED
    return Retry(pod=pod)


def _refused(answer: Answer, what: str = "binding") -> Verdict:
    words = answer.missing_right or answer.message or "no reason given"
    return failed(f"{what} rejected by the API server: {answer.status}: {words}", reason=str(answer.status))
