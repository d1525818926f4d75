"""Publishes the messages of the stages: PENDING, RANKED, Decisions and dead letters.

Each goes to its pod's subject with the message id that makes a repeat harmless (docs/protocol.md, 1). One that is
larger than NATS takes is cut here: first explanations, then candidates, then all but the pod's name and the reason.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from berth.api.pod import name_of
from berth.bus.interface import MESSAGE_ID, PubAck, Session, TooLargeError, message_size
from berth.bus.topology import DEAD
from berth.errors import BerthError, DecodeError
from berth.messages.attempts import (
    NAME_CHARACTERS,
    AttemptReport,
    DeadLetter,
    Decision,
    Message,
    Pending,
    Ranked,
    encode,
)
from berth.messages.subjects import PREFIX, Attempt, Epoch, PodSubject, decision_id, escape_token

OUTCOME: Final = "Berth-Outcome"
TRACE: Final = ("traceparent", "tracestate")
"""W3C trace context: the only headers of the received message that are passed on."""
TRACE_CHARACTERS: Final = 512
"""W3C's limit for a tracestate; a traceparent has 55."""
PAYLOAD_CHARACTERS: Final = 64 * 1024
"""How much of a payload a dead letter keeps: enough to read, far below the limit of a message."""
REASON_CHARACTERS: Final = 1024
"""How much is kept of a text that explains a message which is too large."""
SHARE_OF_PENDING: Final = 15 / 16
"""How much of a message's limit a PENDING may take: the rest is for what the scorer adds to the same pod in RANKED."""
MOST_HEADER_BYTES: Final = 8192
"""More than the headers of a message take: two of ``TRACE_CHARACTERS``, an outcome, and an id with a uid in it."""
MOST_SUBJECT_BYTES: Final = 2048
"""Of a dead letter's subject; NATS closes the connection at 4 KiB. What has a longer one is no pod of Kubernetes'."""
FEWER_CANDIDATES: Final = (8, 1)
"""How many nodes a RANKED that is too large names, one try after the other."""

log = logging.getLogger(__name__)

Headers = Mapping[str, str]
M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=AttemptReport)


class StagedMessage(NamedTuple):
    """A message of a stage as it is published; ``headers`` are those beside its id."""

    subject: str
    data: bytes
    message_id: str
    headers: Headers

    async def publish(self, session: Session) -> PubAck:
        """Publish, and wait for the PubAck. Raises as :meth:`Session.publish`."""
        return await session.publish(self.subject, self.data, message_id=self.message_id, headers=self.headers)

    def publish_soon(self, session: Session, on_answer: Callable[[PubAck | BerthError], None]) -> None:
        """Publish without a task that waits; as :meth:`Session.publish_soon`."""
        session.publish_soon(
            self.subject, self.data, message_id=self.message_id, headers=self.headers, on_answer=on_answer
        )


def pending_message(session: Session, message: Pending, headers: Headers | None = None) -> StagedMessage:
    """A message of PENDING. The same attempt is stored once.

    Of a pod that is too large only the name is published, with the reason: scorer and binder pass it on as an error.
    """
    pod, trace, message_id = message.pod, _trace(headers), message.attempt
    limit = int(session.max_message_bytes * SHARE_OF_PENDING)
    data = encode(message)
    if not _fits(data, message_id, trace, limit):
        remedy = "make it smaller, or raise max_payload of NATS"
        size = _size(data, message_id, trace)
        reason = f"the pod takes {size} bytes as a message, NATS takes {limit} at most: {remedy}"
        log.warning("pod %s is not scheduled: %s", pod.key, reason)
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


def decision_message(session: Session, message: Decision, headers: Headers | None = None) -> StagedMessage:
    """A message of DECISIONS, with the outcome in a header too. Raises as :func:`ranked_message`."""
    subject = PodSubject(stage="decision", profile=message.profile, namespace=message.namespace, pod=message.pod)
    attempt, epoch = Attempt.parse(message.attempt), Epoch(message.epoch)
    message_id = decision_id(attempt, epoch, message.outcome, message.repeat)
    all_headers = _trace(headers)
    all_headers[OUTCOME] = message.outcome.value
    data = _fitting(session, message, _smaller_decisions, message_id, all_headers)
    return StagedMessage(str(subject), data, message_id, all_headers)


async def publish_pending(session: Session, message: Pending, *, headers: Headers | None = None) -> PubAck:
    """Publish to PENDING. Raises as :meth:`Session.publish`."""
    return await pending_message(session, message, headers).publish(session)


async def publish_ranked(session: Session, message: Ranked, *, headers: Headers | None = None) -> PubAck:
    """Publish to RANKED. Raises as :meth:`Session.publish`."""
    return await ranked_message(session, message, headers).publish(session)


async def publish_decision(session: Session, message: Decision, *, headers: Headers | None = None) -> PubAck:
    """Publish to DECISIONS. Raises as :meth:`Session.publish`."""
    return await decision_message(session, message, headers).publish(session)


async def publish_dead_letter(session: Session, letter: DeadLetter, *, headers: Headers | None = None) -> None:
    """Publish a dead letter. The same one is stored once. Raises as :meth:`Session.publish`.

    A dead letter about a pod's message goes to that pod's subject (``berth.dead.<profile>.<namespace>.<pod>``), so that
    a subscription to the pod receives it; any other, and one whose subject would be too long, goes to
    ``berth.dead.<service>``.
    """
    trace = _trace(headers)
    data = _fitting(session, _quoted(letter, PAYLOAD_CHARACTERS), _shorter_letters, "0" * 32, trace)
    message_id = hashlib.blake2b(data, digest_size=16).hexdigest()
    await StagedMessage(dead_subject(letter), data, message_id, trace).publish(session)


def dead_subject(letter: DeadLetter) -> str:
    """The subject of a dead letter."""
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


def _trace(headers: Headers | None) -> dict[str, str]:
    """The trace context of the received message, unless it cannot be one: anybody may have written it."""
    found = {name: headers[name] for name in TRACE if name in headers} if headers else {}
    return {name: text for name, text in found.items() if text.isascii() and len(text) <= TRACE_CHARACTERS}


# --- messages that are too large


def _fitting(
    session: Session, message: M, smaller: Callable[[M], Iterable[M]], message_id: str, headers: Headers
) -> bytes:
    """The message as bytes, or the first of its smaller forms that fits.

    Raises:
        TooLargeError: none does.
    """
    data, limit = encode(message), session.max_message_bytes
    if _fits(data, message_id, headers, limit):
        return data
    size = _size(data, message_id, headers)
    for form in smaller(message):
        data = encode(form)
        if _fits(data, message_id, headers, limit):
            what = type(message).__name__
            log.warning("%s of %s is cut from %d to %d bytes, to fit", what, message_id, size, len(data))
            return data
    raise TooLargeError(f"publishing {size} bytes: NATS takes {limit} at most, and it cannot be cut any more")


def _fits(data: bytes, message_id: str, headers: Headers, limit: int) -> bool:
    """Whether a message is within the limit; headers are written out only for one that is near it."""
    return len(data) + MOST_HEADER_BYTES <= limit or _size(data, message_id, headers) <= limit


def _size(data: bytes, message_id: str, headers: Headers) -> int:
    return message_size(data, {**headers, MESSAGE_ID: message_id})


def _smaller_rankings(message: Ranked) -> Iterator[Ranked]:
    """The last form is an error in place of the ranking, without the pod: its name is enough for that."""
    yield from _smaller_reports(message)
    reason = message.error or "the ranking does not fit into a message beside the pod"
    yield msgspec.structs.replace(
        message,
        pod=name_of(message.pod),
        scorer=message.scorer[:NAME_CHARACTERS],
        candidates=[],
        rejections=[],
        blockers=[],
        preemption=None,
        message="",
        proposals_counted=False,
        behind=False,
        clears_nomination=False,
        error=reason[:REASON_CHARACTERS],
    )


def _smaller_decisions(message: Decision) -> Iterator[Decision]:
    yield from _smaller_reports(message)
    yield msgspec.structs.replace(
        _unexplained(message, 0),
        rejections=[],
        blockers=[],
        preemption=None,
        resource_versions={},
        scorer=message.scorer[:NAME_CHARACTERS],
        reason=message.reason[:NAME_CHARACTERS],
    )


def _smaller_reports(message: R) -> Iterator[R]:
    """Without the scores of each plugin, then with fewer nodes, at last with the first node only."""
    yield _unexplained(message, len(message.candidates))
    for count in FEWER_CANDIDATES:
        yield _unexplained(message, count)


def _unexplained(message: R, count: int) -> R:
    candidates = [msgspec.structs.replace(each, scores={}, details={}) for each in message.candidates[:count]]
    rejections = [msgspec.structs.replace(each, examples=[]) for each in message.rejections]
    text = message.message[:REASON_CHARACTERS]
    return msgspec.structs.replace(message, candidates=candidates, rejections=rejections, message=text)


def _shorter_letters(letter: DeadLetter) -> Iterator[DeadLetter]:
    for length in (PAYLOAD_CHARACTERS // 8, 0):
        yield _quoted(letter, length)
    yield msgspec.structs.replace(_quoted(letter, 0), subject=letter.subject[:REASON_CHARACTERS], attempt="")


def _quoted(letter: DeadLetter, length: int) -> DeadLetter:
    """The dead letter with the first bytes of its message."""
    return msgspec.structs.replace(
        letter, payload=letter.payload[:length], reason=letter.reason[: 4 * REASON_CHARACTERS]
    )
