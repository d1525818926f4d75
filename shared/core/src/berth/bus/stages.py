"""Messages of the stages: PENDING, RANKED, Decisions and dead letters.

Each goes to its pod's subject with a message id, by which a repeat is a duplicate (docs/protocol.md, 1). A message
above NATS's limit is cut: first explanations, then candidates, then all but the pod's name and the reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec

from berth.api.meta import NAME_CHARACTERS
from berth.api.pod import name_of
from berth.bus.interface import MESSAGE_ID, PubAck, Session, TooLargeError, message_size
from berth.bus.topology import DEAD
from berth.errors import BerthError, DecodeError
from berth.log import get_logger
from berth.messages.attempts import AttemptReport, DeadLetter, Decision, Pending, Ranked, Rejection
from berth.messages.bundles import Bundle
from berth.messages.encoding import Message, encode
from berth.messages.groupattempts import MOST_GROUP_BYTES, GroupPending, GroupRanked, subject_name
from berth.messages.groupattempts import within_bounds as group_within_bounds
from berth.messages.groups import GroupPlan
from berth.messages.subjects import PREFIX, Attempt, Epoch, PodSubject, decision_id, escape_token

OUTCOME: Final = "Berth-Outcome"
# W3C trace context: the only headers of the received message that are passed on.
TRACE: Final = ("traceparent", "tracestate")
TRACE_CHARACTERS: Final = 512  # W3C's limit for a tracestate; a traceparent has 55.
PAYLOAD_CHARACTERS: Final = 64 * 1024  # Of a payload in a dead letter: readable, far below the limit of a message.
REASON_CHARACTERS: Final = 1024  # Of an explanation in a message that is too large.
# Maximum share of a message's limit for PENDING: the scorer adds the rest to the same pod in RANKED.
SHARE_OF_PENDING: Final = 15 / 16
# More than the headers of a message take: two of TRACE_CHARACTERS, an outcome, and an id with a uid.
MOST_HEADER_BYTES: Final = 8192
# Of a dead letter's subject: NATS closes the connection at 4 KiB. Kubernetes' pods have shorter ones.
MOST_SUBJECT_BYTES: Final = 2048
NO_MEMBERS: Final = Bundle(classes=[], members=[])  # Of a group's message that is too large.
FEWER_CANDIDATES: Final = (8, 1)  # Candidates of a RANKED that is too large, one try after the other.

log = get_logger()

Headers = Mapping[str, str]
M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=AttemptReport)


class StagedMessage(NamedTuple):
    """A message to publish; ``headers`` without the message id."""

    subject: str
    data: bytes
    message_id: str
    headers: Headers

    async def publish(self, session: Session) -> PubAck:
        """Raises as :meth:`Session.publish`."""
        return await session.publish(self.subject, self.data, message_id=self.message_id, headers=self.headers)

    def publish_soon(self, session: Session, on_answer: Callable[[PubAck | BerthError], None]) -> None:
        """Publish without waiting, as :meth:`Session.publish_soon`."""
        session.publish_soon(
            self.subject, self.data, message_id=self.message_id, headers=self.headers, on_answer=on_answer
        )


def pending_message(session: Session, message: Pending, headers: Headers | None = None) -> StagedMessage:
    """A message of PENDING, stored once per attempt.

    Of a pod that is too large only the name is published, with the reason: scorer and binder pass it on as an error.
    """
    pod, trace, message_id = message.pod, _trace(headers), message.attempt
    limit = int(session.max_message_bytes * SHARE_OF_PENDING)
    data = encode(message)
    if not _fits(data, message_id, trace, limit):
        remedy = "make it smaller, or raise max_payload of NATS"
        size = _size(data, message_id, trace)
        reason = f"the pod takes {size} bytes as a message, NATS takes {limit} at most: {remedy}"
        log.warning("pod not scheduled", pod=pod.key, reason=reason)
        data = encode(msgspec.structs.replace(message, pod=name_of(pod), error=reason))
    return StagedMessage(_pod_subject("pending", message), data, message_id, trace)


def ranked_message(session: Session, message: Ranked, headers: Headers | None = None) -> StagedMessage:
    """A message of RANKED. A second ranking of the attempt is a duplicate.

    Raises:
        TooLargeError: it cannot be cut to fit.
    """
    trace, message_id = _trace(headers), message.attempt
    data = _fitting(session, message, _smaller_rankings, message_id, trace)
    return StagedMessage(_pod_subject("ranked", message), data, message_id, trace)


def group_pending_message(session: Session, message: GroupPending, headers: Headers | None = None) -> StagedMessage:
    """A message of PENDING about a group, stored once per attempt.

    Of a group that is too large no members are published, only the reason: scorer and binder pass it on as an error.
    """
    trace, message_id = _trace(headers), message.attempt
    limit = min(MOST_GROUP_BYTES, int(session.max_message_bytes * SHARE_OF_PENDING))
    data = encode(message)
    if not _fits(data, message_id, trace, limit):
        size = _size(data, message_id, trace)
        reason = f"the group takes {size} bytes as a message, {limit} are taken at most: make its pods smaller or fewer"
        log.warning("group not scheduled", group=str(message.group.key), reason=reason)
        data = encode(msgspec.structs.replace(message, bundle=NO_MEMBERS, bound=[], error=reason))
    return StagedMessage(_group_subject("pending", message), data, message_id, trace)


def group_ranked_message(session: Session, message: GroupRanked, headers: Headers | None = None) -> StagedMessage:
    """A message of RANKED about a group. A second plan of the attempt is a duplicate.

    Raises:
        TooLargeError: it cannot be cut to fit.
    """
    trace, message_id = _trace(headers), message.attempt
    data = _fitting(session, message, partial(_smaller_plans, limit=session.max_message_bytes), message_id, trace)
    return StagedMessage(_group_subject("ranked", message), data, message_id, trace)


def decision_message(session: Session, message: Decision, headers: Headers | None = None) -> StagedMessage:
    """A message of DECISIONS, with the outcome as a header too. Raises as :func:`ranked_message`."""
    subject = PodSubject(stage="decision", profile=message.profile, namespace=message.namespace, pod=message.pod)
    attempt, epoch = Attempt.parse(message.attempt), Epoch(message.epoch)
    message_id = decision_id(attempt, epoch, message.outcome, message.repeat)
    all_headers = _trace(headers)
    all_headers[OUTCOME] = message.outcome.value
    data = _fitting(session, message, _smaller_decisions, message_id, all_headers)
    return StagedMessage(str(subject), data, message_id, all_headers)


async def publish_pending(session: Session, message: Pending, *, headers: Headers | None = None) -> PubAck:
    """Raises as :meth:`Session.publish`."""
    return await pending_message(session, message, headers).publish(session)


async def publish_ranked(session: Session, message: Ranked, *, headers: Headers | None = None) -> PubAck:
    """Raises as :meth:`Session.publish`."""
    return await ranked_message(session, message, headers).publish(session)


async def publish_decision(session: Session, message: Decision, *, headers: Headers | None = None) -> PubAck:
    """Raises as :meth:`Session.publish`."""
    return await decision_message(session, message, headers).publish(session)


async def publish_dead_letter(session: Session, letter: DeadLetter, *, headers: Headers | None = None) -> None:
    """Publish a dead letter, stored once. Raises as :meth:`Session.publish`.

    A dead letter about a pod's message goes to that pod's subject (``berth.dead.<profile>.<namespace>.<pod>``), so that
    a subscription to the pod receives it; any other, and one with too long a subject, goes to ``berth.dead.<service>``.
    """
    trace = _trace(headers)
    data = _fitting(session, _quoted(letter, PAYLOAD_CHARACTERS), _shorter_letters, "0" * 32, trace)
    message_id = hashlib.blake2b(data, digest_size=16).hexdigest()
    await StagedMessage(dead_subject(letter), data, message_id, trace).publish(session)


def dead_subject(letter: DeadLetter) -> str:
    of_service = f"{PREFIX}.{DEAD}.{escape_token(letter.service)}"
    try:
        of = PodSubject.parse(letter.subject)
    except DecodeError:
        return of_service
    of_pod = str(PodSubject(stage=DEAD, profile=of.profile, namespace=of.namespace, pod=of.pod))
    return of_pod if len(of_pod) <= MOST_SUBJECT_BYTES else of_service


def _pod_subject(stage: str, message: Pending | Ranked) -> str:
    metadata = message.pod.metadata
    return str(PodSubject(stage=stage, profile=message.profile, namespace=metadata.namespace, pod=metadata.name))


def _group_subject(stage: str, message: GroupPending | GroupRanked) -> str:
    key = message.group.key
    return str(PodSubject(stage=stage, profile=message.profile, namespace=key.namespace, pod=subject_name(key)))


def _trace(headers: Headers | None) -> dict[str, str]:
    # The received trace context if it is valid: anybody may have written it.
    found = {name: headers[name] for name in TRACE if name in headers} if headers else {}
    return {name: text for name, text in found.items() if text.isascii() and len(text) <= TRACE_CHARACTERS}


# --- messages that are too large


def _fitting(
    session: Session, message: M, smaller: Callable[[M], Iterable[M]], message_id: str, headers: Headers
) -> bytes:
    """The encoded message, or its first smaller form that fits.

    Raises:
        TooLargeError: no form fits.
    """
    data, limit = encode(message), session.max_message_bytes
    if _fits(data, message_id, headers, limit):
        return data
    size = _size(data, message_id, headers)
    for form in smaller(message):
        data = encode(form)
        if _fits(data, message_id, headers, limit):
            what = type(message).__name__
            log.warning("message cut to fit", message=what, id=message_id, bytes=size, cut_to=len(data))
            return data
    raise TooLargeError(f"publishing {size} bytes: NATS takes {limit} at most, and it cannot be cut any more")


def _fits(data: bytes, message_id: str, headers: Headers, limit: int) -> bool:
    # Headers are encoded only for a message near the limit.
    return len(data) + MOST_HEADER_BYTES <= limit or _size(data, message_id, headers) <= limit


def _size(data: bytes, message_id: str, headers: Headers) -> int:
    return message_size(data, {**headers, MESSAGE_ID: message_id})


def _smaller_rankings(message: Ranked) -> Iterator[Ranked]:
    # The last form is an error in place of the ranking, with the pod's name only.
    yield from _smaller_reports(message)
    reason = message.error or "the ranking does not fit into a message beside the pod"
    yield msgspec.structs.replace(
        message,
        pod=name_of(message.pod),
        scorer=message.scorer[:NAME_CHARACTERS],
        candidates=[],
        weights={},
        rejections=[],
        blockers=[],
        preemption=None,
        devices={},
        message="",
        proposals_counted=False,
        behind=False,
        clears_nomination=False,
        error=reason[:REASON_CHARACTERS],
    )


def _smaller_plans(message: GroupRanked, limit: int) -> Iterator[GroupRanked]:
    # The last form is an error in place of the plan, without the members.
    bounded = group_within_bounds(message, limit - MOST_HEADER_BYTES)
    yield bounded
    classes = [msgspec.structs.replace(each, rejections=_unnamed(each.rejections)) for each in bounded.plan.classes]
    yield msgspec.structs.replace(bounded, plan=msgspec.structs.replace(bounded.plan, classes=classes, devices={}))
    reason = message.plan.error or f"the plan does not fit into a message beside the group: NATS takes {limit} bytes"
    plan = GroupPlan(need=message.need, error=reason[:REASON_CHARACTERS])
    scorer = message.scorer[:NAME_CHARACTERS]
    yield msgspec.structs.replace(message, bundle=NO_MEMBERS, plan=plan, scorer=scorer)


def _smaller_decisions(message: Decision) -> Iterator[Decision]:
    yield from _smaller_reports(message)
    yield msgspec.structs.replace(
        _unexplained(message, 0),
        rejections=[],
        blockers=[],
        preemption=None,
        resource_versions={},
        group=None,
        scorer=message.scorer[:NAME_CHARACTERS],
        reason=message.reason[:NAME_CHARACTERS],
    )


def _smaller_reports(message: R) -> Iterator[R]:
    # First without the scores of each plugin, then with fewer nodes, at last with the first node only.
    yield _unexplained(message, len(message.candidates))
    for count in FEWER_CANDIDATES:
        yield _unexplained(message, count)


def _unexplained(message: R, count: int) -> R:
    candidates = [msgspec.structs.replace(each, scores={}, details={}) for each in message.candidates[:count]]
    rejections, text = _unnamed(message.rejections), message.message[:REASON_CHARACTERS]
    return msgspec.structs.replace(
        message, candidates=candidates, weights={}, rejections=rejections, devices={}, message=text
    )


def _unnamed(rejections: Iterable[Rejection]) -> list[Rejection]:
    return [msgspec.structs.replace(each, examples=[]) for each in rejections]


def _shorter_letters(letter: DeadLetter) -> Iterator[DeadLetter]:
    for length in (PAYLOAD_CHARACTERS // 8, 0):
        yield _quoted(letter, length)
    yield msgspec.structs.replace(_quoted(letter, 0), subject=letter.subject[:REASON_CHARACTERS], attempt="")


def _quoted(letter: DeadLetter, length: int) -> DeadLetter:
    return msgspec.structs.replace(
        letter, payload=letter.payload[:length], reason=letter.reason[: 4 * REASON_CHARACTERS]
    )
