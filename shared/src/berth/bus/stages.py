"""The messages of a pod's way on their subjects, with the ids that make a repeat harmless (PROTOCOL 1)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from berth.api.errors import DecodeError
from berth.api.messages import DeadLetter, Decision, Pending, Ranked, encode
from berth.api.subjects import PREFIX, Attempt, Epoch, PodSubject, decision_id, escape_token
from berth.bus.interface import PubAck, Session

OUTCOME: Final = "Berth-Outcome"
TRACE: Final = ("traceparent", "tracestate")
"""W3C trace context: all that is passed on of the headers of the message that led to this one."""
LETTER_CHARACTERS: Final = 64 * 1024
"""How much of a payload a dead letter keeps: enough to read, far below the limit of a message."""
DEAD: Final = "dead"

Headers = Mapping[str, str]


async def publish_pending(session: Session, message: Pending, *, headers: Headers | None = None) -> PubAck:
    """PENDING: rank this pod. Repeated, the same attempt is stored once. Raises as :meth:`Session.publish`."""
    subject = _subject_of("pending", message)
    return await session.publish(subject, encode(message), message_id=message.attempt, headers=_trace(headers))


async def publish_ranked(session: Session, message: Ranked, *, headers: Headers | None = None) -> PubAck:
    """RANKED: the answer to an attempt; whoever comes second is a duplicate. Raises as :meth:`Session.publish`."""
    subject = _subject_of("ranked", message)
    return await session.publish(subject, encode(message), message_id=message.attempt, headers=_trace(headers))


async def publish_decision(session: Session, message: Decision, *, headers: Headers | None = None) -> PubAck:
    """DECISIONS: what became of an attempt, its outcome in a header too. Raises as :meth:`Session.publish`."""
    subject = PodSubject(stage="decision", profile=message.profile, namespace=message.namespace, pod=message.pod)
    attempt, epoch = Attempt.parse(message.attempt), Epoch(message.epoch)
    return await session.publish(
        str(subject),
        encode(message),
        message_id=decision_id(attempt, epoch, message.outcome, message.repeat),
        headers={**_trace(headers), OUTCOME: message.outcome.value},
    )


async def publish_dead_letter(session: Session, letter: DeadLetter, *, headers: Headers | None = None) -> None:
    """dead: put a message aside for people. The same letter twice is stored once. Raises as :meth:`Session.publish`.

    A letter about a pod's message lies on that pod's subject (``berth.dead.<profile>.<namespace>.<pod>``), so that who
    follows the pod meets it; any other lies on ``berth.dead.<service>``.
    """
    data = encode(msgspec.structs.replace(letter, payload=letter.payload[:LETTER_CHARACTERS]))
    message_id = hashlib.blake2b(data, digest_size=16).hexdigest()
    await session.publish(dead_subject(letter), data, message_id=message_id, headers=_trace(headers))


def dead_subject(letter: DeadLetter) -> str:
    """Where a letter lies."""
    try:
        of = PodSubject.parse(letter.subject)
    except DecodeError:
        return f"{PREFIX}.{DEAD}.{escape_token(letter.service)}"
    return str(PodSubject(stage=DEAD, profile=of.profile, namespace=of.namespace, pod=of.pod))


def _subject_of(stage: str, message: Pending | Ranked) -> str:
    metadata = message.pod.metadata
    return str(PodSubject(stage=stage, profile=message.profile, namespace=metadata.namespace, pod=metadata.name))


def _trace(headers: Headers | None) -> dict[str, str]:
    return {name: headers[name] for name in TRACE if name in headers} if headers else {}
