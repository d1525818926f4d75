"""What each answer of the API server to a Binding, and to the reading of a pod, means (PROTOCOL 5). Pure tables.

An answer is an HTTP status with the server's words; no answer at all is status 0. What leaves open whether the Binding
was or will be carried out is never an outcome: the pod is read, and the same node is tried again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from http import HTTPStatus
from typing import Final

from berth.api.messages import Outcome, Preemption, Reason
from berth.api.pod import Pod, changed, is_gated, is_gone_while_unbound
from binder.verdict import CHANGED, GONE, Verdict, bound, bound_somewhere, failed

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
class Reading(Answer):
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
class Again:
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


def after_reading(reading: Reading, ranked: Pod, node: str) -> Verdict | Again | Next:
    """What the pod as the API shows it means for an attempt on ``node`` that was ranked on ``ranked``."""
    if reading.is_open:
        return Next.PAUSE
    if reading.pod is not None:
        return _after_seeing(reading.pod, ranked, node)
    return GONE if reading.status == HTTPStatus.NOT_FOUND else _refused(reading)


def _after_seeing(pod: Pod, ranked: Pod, node: str) -> Verdict | Again:
    if pod.uid != ranked.uid:
        return GONE
    if pod.spec.node_name:
        return bound_somewhere(pod.spec.node_name, frozenset({node}))
    if is_gone_while_unbound(pod):
        return GONE
    if changed(ranked, pod) or is_gated(pod):
        return CHANGED
    return Again(pod=pod)


def _refused(answer: Answer, what: str = "binding") -> Verdict:
    words = answer.missing_right or answer.message or "no reason given"
    return failed(f"{what} rejected by the API server: {answer.status}: {words}", reason=str(answer.status))
